"""The pods of a target as they are, beside what was ordered: from its status and from the pods themselves (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from protocol.kubernetes.objects import JsonObject, child, is_leaving, is_over, items, name_of, text, whole
from protocol.kubernetes.resources import REPLICA_SETS
from protocol.units import Amount
from scheduler_plugin.groups.core.workload import (
    NOTHING,
    RESOURCES,
    Resource,
    ResourceList,
    RunningPods,
    SizedContainer,
    by_name,
)
from scheduler_plugin.groups.objects.amounts import read_amounts, read_container
from scheduler_plugin.groups.objects.targets import TargetFields, TargetKind, workload_of

_RESIZING = ("PodResizePending", "PodResizeInProgress")


def running_pods(
    target: JsonObject,
    kind: TargetKind,
    pods: Sequence[JsonObject],
    in_place: tuple[SizedContainer, ...] = (),
    *,
    refused: bool = False,
) -> RunningPods | None:
    """The pods of ``target``; None if its status says nothing yet.

    ``in_place`` are the sizes that running pods were asked to have, and ``refused`` says that some do not get them.
    Raises ``ValueError`` for an amount that is no quantity.
    """
    status = child(target, "status")
    # Without `observedGeneration` the target's controller has not reported yet, so its pods are not judged.
    if kind.shape is not TargetFields.TEMPLATE or "observedGeneration" not in status:
        return None
    running = [pod for pod in pods if not is_leaving(pod) and not is_over(pod)]
    ready = [pod for pod in running if is_ready(pod)]
    ordered = workload_of(target, kind).containers
    sizes = [pod_sizes(pod) for pod in ready or running]
    # A Deployment's pods are replaced when its template changes; a ReplicaSet's stay as they are.
    requested = in_place or (ordered if kind.resource == REPLICA_SETS else ())
    unsized = [name_of(pod).name for pod in running if requested and not _has(pod, requested)]
    difference = _progress(target, kind) or _unsized(unsized, len(running))
    return RunningPods(
        whole(status, "readyReplicas"),
        _mean(sizes) or ordered,
        difference,
        _most([pod_sizes(pod) for pod in running], in_place) if refused and unsized else (),
    )


def is_ready(pod: JsonObject) -> bool:
    """Return True if the pod's condition ``Ready`` holds."""
    return any(
        (text(condition, "type"), text(condition, "status")) == ("Ready", "True")
        for condition in items(pod, "status", "conditions")
    )


def pod_sizes(pod: JsonObject) -> tuple[SizedContainer, ...]:
    """The sizes of each container of the pod, sidecars among the init containers included. Raises ``ValueError``."""
    statuses = {text(status, "name"): status for status in items(pod, "status", "containerStatuses")}
    sidecars = [init for init in items(pod, "spec", "initContainers") if init.get("restartPolicy") == "Always"]
    sizes = []
    for spec in (*items(pod, "spec", "containers"), *sidecars):
        container = read_container(spec, "spec.containers")
        # What the kubelet has allocated counts; until it has said so, what the pod requests.
        allocated = read_amounts(child(statuses.get(container.name, {}), "allocatedResources"), "allocatedResources")
        sizes.append(SizedContainer(container.name, allocated.over(container.sizes)))
    return tuple(sizes)


def _progress(target: JsonObject, kind: TargetKind) -> str:
    """The difference of the pods from the target's spec in template, number or readiness; empty if there is none."""
    status, ordered = child(target, "status"), child(target, "spec").get("replicas", 1)
    ordered = ordered if isinstance(ordered, int) else 1
    # The controller has not seen the latest spec yet, so its numbers describe the old one.
    if whole(status, "observedGeneration") < whole(target, "metadata", "generation"):
        return f"the {kind.resource.kind} was changed just now"
    updated, there, ready = (whole(status, name) for name in ("updatedReplicas", "replicas", "readyReplicas"))
    # A ReplicaSet has no `updatedReplicas`.
    if kind.resource != REPLICA_SETS and updated < ordered:
        return f"{updated} of {ordered} pods are of the latest template"
    if there != ordered:
        return f"there are {there} pods of {ordered}"
    return f"{ready} of {ordered} pods are ready" if ready < ordered else ""


def _unsized(names: Sequence[str], pods: int) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{len(names)} of {pods} pods have another size: {', '.join(names[:3])}{more}" if names else ""


def _has(pod: JsonObject, asked: Sequence[SizedContainer]) -> bool:
    """Return True if the pod has the sizes that it is asked to have, and its kubelet says so."""
    conditions, sizes = items(pod, "status", "conditions"), pod_sizes(pod)
    pairs = [(container, by_name(sizes, container.name)) for container in asked]
    is_resizing = any(
        text(condition, "type") in _RESIZING and text(condition, "status") == "True" for condition in conditions
    )
    return not is_resizing and all(
        container.sizes.over(has.requests) == has.requests for container, has in pairs if has is not None
    )


def _mean(pods: Sequence[tuple[SizedContainer, ...]]) -> tuple[SizedContainer, ...]:
    """The sizes of the mean pod for each container; a pod without the container counts as zero."""
    names = dict.fromkeys(container.name for pod in pods for container in pod)
    return tuple(
        SizedContainer(name, _of(_amounts(pods, name), lambda values: sum(values) // len(pods))) for name in names
    )


def _most(pods: Sequence[tuple[SizedContainer, ...]], asked: Sequence[SizedContainer]) -> tuple[SizedContainer, ...]:
    """The most that any pod has of what is ``asked``, for amounts of which no pod has enough."""
    limited = []
    for container in asked:
        wanted = container.sizes
        most = _of(_amounts(pods, container.name), max)
        limited.append(SizedContainer(container.name, most.map(partial(_less, wanted))))
    return tuple(container for container in limited if container.requests)


def _less(wanted: ResourceList, resource: Resource, has: Amount) -> int | None:
    """The amount of a resource of which more is wanted."""
    amount = wanted[resource]
    return has.value if amount is not None and has.value < amount.value else None


def _of(values: dict[Resource, list[int]], total: Callable[[list[int]], int]) -> ResourceList:
    amounts = NOTHING
    for resource, numbers in values.items():
        amounts = amounts.with_value(resource, total(numbers) if numbers else None)
    return amounts


def _amounts(pods: Sequence[tuple[SizedContainer, ...]], name: str) -> dict[Resource, list[int]]:
    """The amounts of each resource that the container of that name has in those pods that say it."""
    named = [container.sizes for pod in pods if (container := by_name(pod, name)) is not None]
    return {
        resource: [amount.value for sizes in named if (amount := sizes[resource]) is not None] for resource in RESOURCES
    }
