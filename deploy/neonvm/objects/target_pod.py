"""The target pod of a migration: the VM's runner pod with another owner and additional node constraints (pure).

A migration transfers the guest's memory and the changes to its disk. So the target must have the same machine and the
same base image as the source, even if the VM's spec or the image's tag has changed since.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import product
from typing import Final

from deploy.neonvm.objects.owners import owner_reference
from deploy.neonvm.objects.pods import runner_of, runner_pod
from protocol.kubernetes.objects import Json, child, items, text, texts
from protocol.kubernetes.resources import MIGRATIONS
from protocol.units import Resources

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_MAX_SIZE: Final = 256 * 1024
"""Maximum size of a target pod's node selector terms in characters of JSON."""
_TERM_SIZE: Final = 100
"""Size added for each term, so that their number is limited too."""


def target_pod(migration: Json, vm: Json, use: Resources) -> Json:
    """The target pod, with the name in the migration's status. The migration owns it until the guest runs in it."""
    pod = runner_pod(vm, text(migration, "status", "targetPodName"), use)
    spec = child(pod, "spec")
    affinity = {**child(spec, "affinity"), "nodeAffinity": _node_affinity(migration, vm)}
    metadata = {**child(pod, "metadata"), "ownerReferences": [owner_reference(MIGRATIONS, migration)]}
    parts = {key: value for key, value in affinity.items() if value}
    return {**pod, "metadata": metadata, "spec": {**spec, **({"affinity": parts} if parts else {})}}


def _node_affinity(migration: Json, vm: Json) -> Json:
    theirs = child(vm, "spec", "affinity", "nodeAffinity")
    ours = child(migration, "spec", "nodeAffinity")
    # The migration's constraints apply in addition to the VM's.
    terms = _combined(_combined(_terms(theirs), _terms(ours)), _own_term(migration))
    # Preferences only add weight, so concatenate the two lists.
    preferred = [*items(theirs, _PREFERRED), *items(ours, _PREFERRED)]
    return {
        **({_REQUIRED: {"nodeSelectorTerms": terms}} if terms else {}),
        **({_PREFERRED: preferred} if preferred else {}),
    }


def _terms(affinity: Json) -> list[Json]:
    return items(affinity, _REQUIRED, "nodeSelectorTerms")


def _own_term(migration: Json) -> list[Json]:
    """``nodeSelector`` and ``preventMigrationToSameHost`` as one term; empty if neither is set."""
    selector = sorted(texts(migration, "spec", "nodeSelector").items())
    labels = [{"key": key, "operator": "In", "values": [value]} for key, value in selector]
    # The API's default is true, so only an explicit false allows the same node.
    elsewhere = child(migration, "spec").get("preventMigrationToSameHost") is not False
    source = text(migration, "status", "sourceNode")
    names = [{"key": "metadata.name", "operator": "NotIn", "values": [source]}] if elsewhere else []
    parts: Json = {**({"matchExpressions": labels} if labels else {}), **({"matchFields": names} if names else {})}
    return [parts] if parts else []


def _combined(some: Sequence[Json], others: Sequence[Json]) -> list[Json]:
    """Terms that match the nodes which both lists match; an empty list matches every node."""
    if not some or not others:
        return [*some, *others]
    terms: list[Json] = []
    left = _MAX_SIZE
    # Terms are ORed, so each pair becomes one term. A tenant writes both lists, and their product may exceed all
    # memory. Omitting a term excludes nodes, and never allows another one.
    for one, other in product(some, others):
        joined = _joined(one, other)
        left -= _TERM_SIZE + len(json.dumps(joined))
        if left < 0:
            break
        terms.append(joined)
    return terms or [{}]


def _joined(one: Json, other: Json) -> Json:
    kinds = ("matchExpressions", "matchFields")
    # An empty term matches no node.
    if not all(any(items(term, kind) for kind in kinds) for term in (one, other)):
        return {}
    joined = {kind: [*items(one, kind), *items(other, kind)] for kind in kinds}
    return {kind: requirements for kind, requirements in joined.items() if requirements}


DISK: Final = "init"
"""Name of the init container that copies the base image of the disk."""

# Some container runtimes prepend a scheme such as `docker-pullable://`.
_PINNED: Final = re.compile(r"(?:[a-z-]+://)?(?P<image>\S+@sha256:[0-9a-f]{64})")


def with_guest_of(target: Json, source: Json) -> Json:
    """``target`` with the machine and the base image of ``source``."""
    spec = child(target, "spec")
    return {
        **target,
        "spec": {
            **spec,
            # The runner's arguments are the record of the booted machine.
            "containers": [_copied(container, runner_of(source), "args") for container in items(spec, "containers")],
            "initContainers": [
                _copied(container, _disk_copier(source), "image") for container in items(spec, "initContainers")
            ],
        },
    }


def _copied(container: Json, source: Json, field: str) -> Json:
    """``container`` with ``field`` of ``source``, if both have the same name."""
    is_same = text(container, "name") == text(source, "name")
    return {**container, field: source[field]} if is_same and source.get(field) else container


def _disk_copier(pod: Json) -> Json:
    """The init container that copied the disk, with the digest of the image that it ran."""
    copier = next(
        (container for container in items(pod, "spec", "initContainers") if text(container, "name") == DISK), {}
    )
    statuses = [status for status in items(pod, "status", "initContainerStatuses") if text(status, "name") == DISK]
    # The status has the digest; the tag may point to another image by now.
    pinned = _PINNED.fullmatch(text(statuses[0], "imageID")) if statuses else None
    # A local image has no digest; use the tag.
    return {**copier, "image": pinned["image"]} if copier and pinned else copier
