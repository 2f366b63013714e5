"""The target pod of a migration: the VM's runner pod with another owner and more constraints on its node (pure).

- The migration's ``nodeSelector`` and ``nodeAffinity`` hold in addition to the VM's, and
  ``preventMigrationToSameHost`` excludes the source's node. Constraints that contradict each other leave no node.
- The terms of a node affinity are alternatives; where both sides have some, every pair of terms is one alternative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deploy.neonvm.objects.owners import owner_reference
from deploy.neonvm.objects.pods import runner_pod
from protocol.kubernetes.objects import Json, child, items, text, texts
from protocol.kubernetes.resources import MIGRATIONS
from protocol.units import Resources

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def target_pod(migration: Json, vm: Json, use: Resources, sidecar: bool) -> Json:
    """The pod named by the migration's status; it belongs to the migration until the VM has arrived in it."""
    made = runner_pod(vm, text(migration, "status", "targetPodName"), use, sidecar)
    spec = child(made, "spec")
    affinity = {**child(spec, "affinity"), "nodeAffinity": _node_affinity(migration, vm)}
    metadata = {**child(made, "metadata"), "ownerReferences": [owner_reference(MIGRATIONS, migration)]}
    kept = {key: value for key, value in affinity.items() if value}
    return {**made, "metadata": metadata, "spec": {**spec, **({"affinity": kept} if kept else {})}}


def _node_affinity(migration: Json, vm: Json) -> Json:
    theirs = child(vm, "spec", "affinity", "nodeAffinity")
    ours = child(migration, "spec", "nodeAffinity")
    terms = _both(_both(_terms(theirs), _terms(ours)), _own_term(migration))
    preferred = [*items(theirs, _PREFERRED), *items(ours, _PREFERRED)]
    return {
        **({_REQUIRED: {"nodeSelectorTerms": terms}} if terms else {}),
        **({_PREFERRED: preferred} if preferred else {}),
    }


def _terms(affinity: Json) -> list[Json]:
    return items(affinity, _REQUIRED, "nodeSelectorTerms")


def _own_term(migration: Json) -> list[Json]:
    """``nodeSelector`` and ``preventMigrationToSameHost`` as one term; None if neither is set."""
    selector = sorted(texts(migration, "spec", "nodeSelector").items())
    labels = [{"key": key, "operator": "In", "values": [value]} for key, value in selector]
    elsewhere = child(migration, "spec").get("preventMigrationToSameHost") is not False
    source = text(migration, "status", "sourceNode")
    names = [{"key": "metadata.name", "operator": "NotIn", "values": [source]}] if elsewhere else []
    parts: Json = {
        **({"matchExpressions": labels} if labels else {}),
        **({"matchFields": names} if names else {}),
    }
    return [parts] if parts else []


def _both(some: Sequence[Json], others: Sequence[Json]) -> list[Json]:
    """The terms of two sides that must hold together; a side without terms demands nothing."""
    if not some or not others:
        return [*some, *others]
    return [_joined(one, other) for one in some for other in others]


def _joined(one: Json, other: Json) -> Json:
    kinds = ("matchExpressions", "matchFields")
    joined = {kind: [*items(one, kind), *items(other, kind)] for kind in kinds}
    return {kind: found for kind, found in joined.items() if found}
