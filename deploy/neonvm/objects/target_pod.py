"""The target pod of a migration: the VM's runner pod with another owner and more constraints on its node (pure).

Constraints that contradict each other leave no node. A guest brings its memory and what it has written to its disk; the
target makes the machine and the disk's base again, as the source's were, whatever the VM's spec or the image's tag has
come to mean since.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from deploy.neonvm.objects.owners import owner_reference
from deploy.neonvm.objects.pods import runner_of, runner_pod
from protocol.kubernetes.objects import Json, child, items, text, texts
from protocol.kubernetes.resources import MIGRATIONS
from protocol.units import Resources

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def target_pod(migration: Json, vm: Json, use: Resources) -> Json:
    """The pod named by the migration's status; it belongs to the migration until the VM has arrived in it."""
    pod = runner_pod(vm, text(migration, "status", "targetPodName"), use)
    spec = child(pod, "spec")
    affinity = {**child(spec, "affinity"), "nodeAffinity": _node_affinity(migration, vm)}
    metadata = {**child(pod, "metadata"), "ownerReferences": [owner_reference(MIGRATIONS, migration)]}
    parts = {key: value for key, value in affinity.items() if value}
    return {**pod, "metadata": metadata, "spec": {**spec, **({"affinity": parts} if parts else {})}}


def _node_affinity(migration: Json, vm: Json) -> Json:
    theirs = child(vm, "spec", "affinity", "nodeAffinity")
    ours = child(migration, "spec", "nodeAffinity")
    # The migration's constraints hold in addition to the VM's.
    terms = _both(_both(_terms(theirs), _terms(ours)), _own_term(migration))
    # Preferences only add weight, so the two lists are just joined.
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


def _both(some: Sequence[Json], others: Sequence[Json]) -> list[Json]:
    """The terms of two sides that must hold together; a side without terms demands nothing."""
    if not some or not others:
        return [*some, *others]
    # Terms are alternatives, so every pair of them is one alternative.
    return [_joined(one, other) for one in some for other in others]


def _joined(one: Json, other: Json) -> Json:
    kinds = ("matchExpressions", "matchFields")
    joined = {kind: [*items(one, kind), *items(other, kind)] for kind in kinds}
    return {kind: requirements for kind, requirements in joined.items() if requirements}


DISK: Final = "init"
"""The init container that copies the disk's base."""

# Some container runtimes put a scheme such as `docker-pullable://` in front.
_PINNED: Final = re.compile(r"(?:[a-z-]+://)?(?P<image>\S+@sha256:[0-9a-f]{64})")


def with_guest_of(target: Json, source: Json) -> Json:
    """``target`` with the machine and the disk's base of ``source``."""
    spec = child(target, "spec")
    return {
        **target,
        "spec": {
            **spec,
            # The runner's arguments are the record of the booted machine.
            "containers": [_same(container, runner_of(source), "args") for container in items(spec, "containers")],
            "initContainers": [_same(container, _disk(source), "image") for container in items(spec, "initContainers")],
        },
    }


def _same(container: Json, of_source: Json, field: str) -> Json:
    is_same = text(container, "name") == text(of_source, "name")
    return {**container, field: of_source[field]} if is_same and of_source.get(field) else container


def _disk(pod: Json) -> Json:
    """The container that copied the source's disk, with the image that it ran from."""
    copier = next(
        (container for container in items(pod, "spec", "initContainers") if text(container, "name") == DISK), {}
    )
    statuses = [status for status in items(pod, "status", "initContainerStatuses") if text(status, "name") == DISK]
    # The status names the digest that really ran; a tag may have been pushed again since.
    pinned = _PINNED.fullmatch(text(statuses[0], "imageID")) if statuses else None
    # Without a digest, a local image for instance, the tag is the best there is.
    return {**copier, "image": pinned["image"]} if copier and pinned else copier
