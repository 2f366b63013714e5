"""Sentences of ``/nodes`` and ``/explain``, and the reasons of migrations. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from protocol.messages import ObjectName
from protocol.units import Bytes, Resources
from scheduler_plugin.texts.amounts import amounts_text, memory
from scheduler_plugin.texts.events import UNKNOWN_TARGET, because

# Sources of a reservation, which is the largest of their amounts

POD_REQUESTS: Final = "requests of the pod"
SIZE_WHEN_LEFT: Final = "size of the VM when it left this pod"
UNREADABLE_MOST: Final = "maximum of an unreadable VM"
GUEST_USE: Final = "spec.guest use"
HELD_PERMIT: Final = "permit the agent may hold"
OFFERED_PERMIT: Final = "permit being written"
STORED_PERMIT: Final = "permit the API may hold"
GUEST_HAS: Final = "current size of the guest"
CONTAINER_REQUESTS: Final = "requests of the container"
CONTAINER_HAS: Final = "actual resources of the container"
ORIGINALS_GRANT: Final = "granted by the original's scheduler: annotation {annotation}"
RESIZE_LANDING: Final = "pod resize in progress"

# Denials, and pod requests that differ from reservations

FROZEN_BY_MIGRATION: Final = "the VM is being migrated and cannot grow until that ends"
NODE_FULL: Final = "node {room.node} has {free} free of {room.total}; {lacking} more needed"
RESERVED_FOR_WAKING: Final = "{text}; {room.for_waking} is reserved for its sleeping VMs"
NODE_SHARED: Final = (
    "node {room.node} has {free} free of {room.total}, shared with other denied VMs; {lacking} more needed"
)
LEFT_AS_THEY_ARE: Final = (
    "the pod's requests are not changed: it has none, or its guest container has limits or restarts"
)
EXEMPT: Final = "the pod's requests cannot be changed, so permits do not wait for them: {why}"
NOT_GIVEN: Final = "the kubelet has not granted the pod's requests: {why}"
NOT_RAISED: Final = "the pod's requests were not raised: {why}"
NOT_LOWERED: Final = "the pod's requests were not lowered: {why}"
CHANGE_UNKNOWN: Final = "unknown whether the pod's requests were changed: {why}"
NOT_ALLOCATED_YET: Final = "the kubelet has not applied the pod's requests yet"
TOO_LITTLE: Final = "the pod requests less than its VM needs"
NODE_HAS_NO_MORE: Final = "the pod requests less than its VM needs: its node is too small"
CHANGED_BY_API: Final = "the API server changed them to {requests}"

# Sleep

ASLEEP: Final = "asleep: nothing is reserved for it; it needs {size} to wake"
ASLEEP_WITH_PERMIT: Final = "asleep: {reserved} stays reserved until its agent gives up the permit"
WAKES: Final = "waking: the permit for {size} is stored, the guest is starting"
WAKES_LATER: Final = "waking: waiting for a permit for {size}: {why}"
WAKES_AT_ONCE: Final = "node {node} wakes at most {most} VMs at once, and {wakes} wakes are under way"
WAKES_SOON: Final = "waking: its agent is requesting a permit for {size}"
NEVER_WAKES: Final = "node {room.node} has only {room.total} for all pods"

# Permits that are not stored

NO_LONGER_WANTED: Final = "the VM has an agent again"
OVERTAKEN: Final = "superseded by a newer permit"
GIVEN_UP: Final = "the write was abandoned"
VM_GONE: Final = "the VirtualMachine is gone"
ALTERED: Final = "wrote permit {permit}, but the API server stored {stored}: a webhook or a policy changed it"
COSTLY_CONSTRAINTS: Final = "its constraints take long to compare with all pods and nodes; it waits for its turn"
TOO_MANY_CONSTRAINTS: Final = "spec: too many constraints; at most 1000 parts, 100 of them about pods, are read"
NOTHING_READABLE: Final = "an unreadable value"
NO_OP: Final = "no-op write (resourceVersion unchanged); an earlier write may still apply"
RESTORED: Final = "the cluster's store was restored from a backup and has not been listed since"

# Objects that cannot be read

VM_UNREADABLE: Final = "VirtualMachine {vm} cannot be read: {why}"
POD_UNREADABLE: Final = "pod {pod} cannot be read: {why}"
POD_UNSERVED: Final = "pod {pod} is not resized: {why}"

# Why a database in a pod gets no more than it has

NOT_READ_YET: Final = "the scheduler has not yet listed the autoscalers and Clusters that may also size the pod"
BY_UTILIZATION: Final = (
    "HorizontalPodAutoscaler {name} scales on utilization of requests, which a resize changes: use AverageValue"
)
VERTICAL_IS_ON: Final = "VerticalPodAutoscaler {name} also sizes the pod: set its updateMode to Off"
CNPG_REVERTS: Final = (
    "Cluster {name} has resourcesUpdateStrategy inPlace, so CloudNativePG reverts resizes: annotate the Cluster with"
    " {annotation}: disabled"
)
KUBEBLOCKS: Final = (
    "KubeBlocks may replace resized pods: set IGNORE_POD_VERTICAL_SCALING in its operator, then annotate the pod with"
    ' {annotation}: "true"'
)

# Why no VM moves at all

NO_ROUND_YET: Final = "no planning round has run yet"
DISABLED: Final = "migration.enabled is false in the settings"
NO_MIGRATIONS: Final = "the cluster has no VirtualMachineMigrations (its CRD is missing)"
PLANNING_FAILED: Final = "planning migrations failed; see the scheduler log"
ORDER_REFUSED: Final = "the API server refused the last migration; see the scheduler log"
ORDER_IN_DOUBT: Final = "the API server has not confirmed yet that it created {migration}"

# Why VMs do not move: each follows a number of VMs

NOT_KNOWN: Final = "not known to the scheduler"
NOT_AUTOSCALED: Final = "not autoscaled"
NOT_READABLE: Final = "not readable"
NO_OVERLAY: Final = "without a flat-network address, so migration would break its connections"
BOOTING: Final = "booting"
ORDINARY_POD: Final = "in an ordinary pod, which cannot be migrated"
KEPT_IN_PLACE: Final = "kept in place by a label or annotation"
NOT_OPTED_IN: Final = "not opted in"
OTHER_SCHEDULER: Final = "placed by another scheduler"
NOT_STARTED: Final = "in a migration that has not started"
MIGRATING: Final = "already migrating"
NOT_IN_ONE_POD: Final = "not running in one pod"
SLEEPS: Final = "asleep, so migration would free nothing"
IN_PHASE: Final = "in phase {phase}"
COOLDOWN: Final = "in cooldown after a migration"
MIGRATION_BEING_DELETED: Final = "with a finished migration that is still being deleted"
NODE_LOST: Final = "on a node that is not ready or gone, with a silent agent"
LARGE_NEIGHBOUR: Final = "on a node where one VM requests more than the whole node"
REFUSED_BY_API: Final = "refused by the API server"
REFUSED_NAMESPACE: Final = "in a namespace whose last migration the API server refused"

# Why a node is not a target

NODE_STATE: Final = "the node is {faults}"
NOT_READY: Final = "not ready"
FAULTS: Final = {
    "MemoryPressure": "under memory pressure",
    "DiskPressure": "under disk pressure",
    "PIDPressure": "under PID pressure",
    "NetworkUnavailable": "without a network",
}
"""Conditions of a node that keep VMs away while they are True."""
REFUSED_LATELY: Final = "was recently refused there: {why}"
FOUND_NO_NODE: Final = "no node was found for its target pod"
FOUND_NO_NODE_YET: Final = "kube-scheduler has found no node for it"
TARGET_POD_WAITED: Final = "its target pod has waited for {span:g} s"
NO_OTHER_NODE: Final = "no other node accepts pods"
NEAREST: Final = "no node has room for {need}; closest is {node}, which lacks {lacking}"

# Why a VM moves, and why a migration has no room or is cancelled

CORDONED: Final = "node {node} is cordoned"
ABOVE_WATERMARK: Final = "node {node} is {excess} above its watermark"
CROWDED: Final = "node {node} lacks {excess} for one of its VMs to grow"
DENIES_VMS: Final = "node {node} lacks {excess} and denies VMs"
DEFERS_POD: Final = "node {node} lacks {excess} and defers a pod's resize"
STALLED: Final = "its target pod has had no node for {span:g} s, so it is ignored until it has one"
NODE_GONE: Final = "node {node} is gone"
NODE_REFUSES: Final = "node {node}: {why}"
NOT_PLACED: Final = "kube-scheduler does not place it on node {node}: {why}"
CANNOT_GO: Final = "it cannot be placed on its target: {why}"
SOURCE_LOST: Final = "node {node} is not ready or gone, and the VM's agent is silent"
TIMED_OUT: Final = "it did not finish within {span:g} s"
NOT_NEEDED: Final = "node {node} no longer needs it"
CANCELLED_VM_GONE: Final = "VM {vm} is gone"
NOT_WANTED: Final = "it is no longer wanted"
NO_SUCH_OBJECT: Final = "the API server has no such object"
ENDED: Final = "it has ended"

# Why a VM has no room to grow, and none leaves for it

NO_ROOM_TO_GROW: Final = "{vm} could not grow to its maximum, for which node {node} lacks {lacking}: {why}"
NO_MOVES_FOR_GROWTH: Final = "migration.makeRoomToGrow is false in the settings"
PRESSURE_FIRST: Final = "its denials, its watermark or its drain come first"
CLUSTER_WAS_FULL: Final = (
    "no VM moves for growth until at most {share:.0%} of the cluster's watermarks have been reserved for an hour,"
    " counted from the scheduler's start"
)
GROWTH_SETTLES: Final = "a VM may leave once this has lasted for {span:g} s"
NO_TARGET: Final = "no node has room below {full_from} for {need}"

GIVES_BACK: Final = "VM {vm} has been asked to give back {room} that it does not need"

_MOST_NAMED: Final = 3
_IDLE: Final = 0.05
"""A load below this would print as 0.0."""


def moves(vm: ObjectName, source: str | None, target: str | None, reason: str) -> str:
    """A move, with its reason if known."""
    return f"VM {vm} is migrating from {source} to {target or UNKNOWN_TARGET}{because(reason)}"


def costs(freed: Resources, copied: Bytes, load: float, moved: int) -> str:
    """Gain and cost of a move, in words; an infinite ``load`` is unknown."""
    state = "its load is unknown" if load == inf else "it is idle" if load < _IDLE else f"its load is {load:.1f}"
    again = f"; move {moved + 1} within an hour" if moved else ""
    return f"moving it frees {amounts_text(freed)} and copies {memory(copied)}; {state}{again}"


def named(names: Sequence[str]) -> str:
    """The first names, and the number of others.

    >>> named(["a", "b"]), named(["a", "b", "c", "d"])
    ('a, b', 'a, b, c and 1 more')
    """
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def all_moves_taken(limit: int, of_others: Sequence[ObjectName]) -> str:
    """Concurrent migrations are at their limit. It includes others' and cancelled migrations, which may never end."""
    names = named([str(name) for name in sorted(of_others)])
    return f"concurrent migrations are at their limit of {limit}; ordered by others or cancelled: {names}"


def unrelieved(movable: int, others: Mapping[str, int], obstacles: Mapping[str, int], full_from: str | None) -> str:
    """The reason why none of ``movable`` VMs leaves a node, with counts of ``others`` that may not move.

    ``full_from`` is the level below which no node has room, with ``obstacles`` against nodes that have; None if one of
    the VMs has a target.
    """
    if movable and full_from is not None:
        reasons = "".join(f"; {reason} ({count} nodes)" for reason, count in sorted(obstacles.items()))
        return f"no node has room below {full_from} for any of {movable} movable VMs{reasons}"
    if movable:
        return f"none of {movable} movable VMs would relieve it"
    excluded = ", ".join(f"{count} {why}" for why, count in sorted(others.items()))
    return f"no VM may move: {excluded}" if excluded else "no VM is on it"
