"""Pods as groups see them: what is kept of one, what ran out of memory in it, and how all of a target differ from what
was ordered (pure).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from protocol.kubernetes import resources as kinds
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    child,
    is_leaving,
    is_over,
    items,
    name_of,
    text,
    whole,
)
from protocol.kubernetes.resources import REPLICA_SETS
from protocol.kubernetes.timestamps import parse_timestamp
from protocol.units import Amount
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.workload import (
    Resource,
    ResourceList,
    RunningPods,
    SizedContainer,
    Workload,
    by_name,
)
from scheduler_plugin.groups.objects.targets import (
    TEMPLATED,
    read_amounts,
    read_container,
    workload_of,
)

OUT_OF_MEMORY: Final = "OOMKilled"
"""The reason with which a kubelet reports a container that the kernel killed for lack of memory."""

_STATUS: Final = ("name", "allocatedResources", "resources", "state", "lastState")
_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "generation", "labels", "deletionTimestamp")


def kept_pod(pod: JsonObject) -> Json:
    """The fields that sizes and kills are read from: a tenth of a pod, since there may be tens of thousands."""
    metadata, status = child(pod, "metadata"), child(pod, "status")
    containers = [_only(container, ("name", "resources")) for container in items(pod, "spec", "containers")]
    sidecars = [
        _only(container, ("name", "resources", "restartPolicy"))
        for container in items(pod, "spec", "initContainers")
        # Only sidecars run as long as the pod; other init containers have ended.
        if container.get("restartPolicy") == "Always"
    ]
    conditions = [condition for condition in items(status, "conditions") if _is_kept(condition)]
    statuses = [_only(container_status, _STATUS) for container_status in items(status, "containerStatuses")]
    trimmed: Json = {"phase": text(status, "phase"), "conditions": conditions, "containerStatuses": statuses}
    spec: Json = {"containers": containers, **({"initContainers": sidecars} if sidecars else {})}
    return {"metadata": _only(metadata, _METADATA), "spec": spec, "status": trimmed}


def _is_kept(condition: JsonObject) -> bool:
    kind = text(condition, "type")
    # `Ready` only while it holds: nothing needs its other states.
    return kind.startswith("PodResize") or (kind == "Ready" and text(condition, "status") == "True")


def _only(found: JsonObject, names: tuple[str, ...]) -> Json:
    return {name: found[name] for name in names if name in found}


def running_containers(pods: Iterable[JsonObject]) -> tuple[SizedContainer, ...]:
    """The containers of pods that run, by name, with the largest of each amount that any of them has."""
    containers: dict[str, SizedContainer] = {}
    for pod in pods:
        if is_leaving(pod) or is_over(pod):
            continue
        for container in _containers(pod):
            largest = containers.get(container.name, SizedContainer(container.name))
            containers[container.name] = SizedContainer(
                container.name,
                _largest(largest.requests, container.requests),
                _largest(largest.limits, container.limits),
            )
    return tuple(containers[name] for name in sorted(containers))


def _containers(pod: JsonObject) -> list[SizedContainer]:
    """A pod's containers; none of one that cannot be read."""
    try:
        return [read_container(container, "spec.containers") for container in items(pod, "spec", "containers")]
    except ValueError:
        return []


def _largest(one: ResourceList, other: ResourceList) -> ResourceList:
    return ResourceList.of(
        lambda resource: max(
            (size.value for size in (one[resource], other[resource]) if size is not None), default=None
        )
    )


def with_defaults(template: Workload, pods: Iterable[JsonObject]) -> Workload:
    """A pod template with the sizes that it leaves out and an admission plugin (LimitRange) gives its pods."""
    running = running_containers(pods)
    containers = (
        SizedContainer(container.name, container.sizes, container.limits).over(by_name(running, container.name))
        for container in template.containers
    )
    return replace(template, containers=tuple(containers))


@dataclass(frozen=True, slots=True)
class Killed:
    """A container of a pod that was killed for lack of memory; ``at`` in seconds since 1970."""

    container: str
    at: float
    pod: str = ""


def killed_in(pod: JsonObject) -> Iterator[Killed]:
    """Every kill in the pod's status: a container that runs again, waits to, or has ended."""
    for status in items(pod, "status", "containerStatuses"):
        # A container that has restarted has its kill in `lastState`.
        for state in ("state", "lastState"):
            ended = child(status, state, "terminated")
            at = parse_timestamp(ended.get("finishedAt"))
            if text(ended, "reason") == OUT_OF_MEMORY and at is not None:
                yield Killed(text(status, "name"), at, text(pod, "metadata", "name"))


def _is_true(pod: JsonObject, kind: str) -> bool:
    return text(condition_of(pod, kind), "status") == "True"


_RESIZING = ("PodResizePending", "PodResizeInProgress")


def running_pods(
    target: JsonObject,
    kind: kinds.Resource,
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
    if kind not in TEMPLATED or "observedGeneration" not in status:
        return None
    running = [pod for pod in pods if not is_leaving(pod) and not is_over(pod)]
    ready = [pod for pod in running if _is_true(pod, "Ready")]
    ordered = workload_of(target, kind).containers
    sizes = [pod_sizes(pod) for pod in ready or running]
    # A Deployment's pods are replaced when its template changes; a ReplicaSet's stay as they are.
    requested = in_place or (ordered if kind == REPLICA_SETS else ())
    unsized = [name_of(pod).name for pod in running if requested and not _has(pod, requested)]
    difference = _progress(target, kind) or (texts.other_size(unsized, len(running)) if unsized else "")
    return RunningPods(
        whole(status, "readyReplicas"),
        _mean(sizes) or ordered,
        difference,
        _most([pod_sizes(pod) for pod in running], in_place) if refused and unsized else (),
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


def _progress(target: JsonObject, kind: kinds.Resource) -> str:
    """The difference of the pods from the target's spec in template, number or readiness; empty if there is none."""
    status, ordered = child(target, "status"), child(target, "spec").get("replicas", 1)
    ordered = ordered if isinstance(ordered, int) else 1
    # The controller has not seen the latest spec yet, so its numbers describe the old one.
    if whole(status, "observedGeneration") < whole(target, "metadata", "generation"):
        return texts.JUST_CHANGED.format(kind=kind.kind)
    updated, there, ready = (whole(status, name) for name in ("updatedReplicas", "replicas", "readyReplicas"))
    # A ReplicaSet has no `updatedReplicas`.
    if kind != REPLICA_SETS and updated < ordered:
        return texts.OLD_TEMPLATE.format(updated=updated, ordered=ordered)
    if there != ordered:
        return texts.OTHER_NUMBER.format(present=there, ordered=ordered)
    return texts.NOT_ALL_READY.format(ready=ready, ordered=ordered) if ready < ordered else ""


def _has(pod: JsonObject, asked: Sequence[SizedContainer]) -> bool:
    """Return True if the pod has the sizes that it is asked to have, and its kubelet says so."""
    sizes = pod_sizes(pod)
    pairs = [(container, by_name(sizes, container.name)) for container in asked]
    return not any(_is_true(pod, kind) for kind in _RESIZING) and all(
        container.sizes.over(has.requests) == has.requests for container, has in pairs if has is not None
    )


def _mean(pods: Sequence[tuple[SizedContainer, ...]]) -> tuple[SizedContainer, ...]:
    """The sizes of the mean pod for each container; a pod without the container counts as zero."""
    names = dict.fromkeys(container.name for pod in pods for container in pod)

    def mean(name: str, resource: Resource) -> int | None:
        amounts = _amounts(pods, name, resource)
        return sum(amounts) // len(pods) if amounts else None

    return tuple(SizedContainer(name, ResourceList.of(partial(mean, name))) for name in names)


def _most(pods: Sequence[tuple[SizedContainer, ...]], asked: Sequence[SizedContainer]) -> tuple[SizedContainer, ...]:
    """The most that any pod has of what is ``asked``, for amounts of which no pod has enough."""

    def most(container: str, resource: Resource, wanted: Amount) -> int | None:
        has = max(_amounts(pods, container, resource), default=None)
        return has if has is not None and has < wanted.value else None

    limited = (
        SizedContainer(container.name, container.sizes.map(partial(most, container.name))) for container in asked
    )
    return tuple(container for container in limited if container.requests)


def _amounts(pods: Sequence[tuple[SizedContainer, ...]], name: str, resource: Resource) -> list[int]:
    """What the containers of that name in those pods have of the resource, as far as they say it."""
    sizes = (container.sizes[resource] for pod in pods if (container := by_name(pod, name)) is not None)
    return [amount.value for amount in sizes if amount is not None]
