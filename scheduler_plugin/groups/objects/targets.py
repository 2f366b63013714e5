"""Scalable kinds, and their decoding as workloads (S1.1, S1.10).

- A VM is one replica with one container, ``vm``, whose request is the ``min`` of the VM's bounds. ``max`` does not
  change, and only the VM's agent writes ``use`` between them.
- A kind whose replicas are sized by others (a group of VMs, a CloudNativePG Cluster) has replicas but no containers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from protocol.kubernetes import resources as kinds
from protocol.kubernetes.conditions import is_condition_true
from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    child,
    has_finished,
    integer,
    is_terminating,
    items,
    name_of,
    text,
)
from protocol.kubernetes.resources import (
    CNPG_CLUSTERS,
    DEPLOYMENTS,
    REPLICA_SETS,
    STATEFUL_SETS,
    VIRTUAL_MACHINES,
    VM_GROUPS,
)
from protocol.kubernetes.timestamps import parse_timestamp
from protocol.units import Amount, Bytes, MilliCpu, QuantityError
from protocol.virtual_machine import parse_virtual_machine
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.workload import Resource, ResourceList, RunningPods, SizedContainer, Workload, by_name

A = TypeVar("A", bound=Amount)


def read_amounts(obj: JsonObject, path: str) -> ResourceList:
    """CPU and memory of a JSON object. Raises ``ValueError`` with the path of a bad quantity.

    >>> read_amounts({"cpu": "500m", "nvidia.com/gpu": 1}, "requests")
    ResourceList(cpu=MilliCpu(value=500), memory=None)
    """
    cpu = _read(obj.get("cpu"), MilliCpu.parse, f"{path}.cpu")
    return ResourceList(cpu, _read(obj.get("memory"), Bytes.parse, f"{path}.memory"))


def _read(value: Any, parse: Callable[[Any], A], path: str) -> A | None:
    try:
        return None if value is None else parse(value)
    except QuantityError as error:
        raise ValueError(f"{path}: {error}") from None


def write_amounts(amounts: ResourceList) -> Json:
    """The amounts as JSON.

    >>> write_amounts(ResourceList(cpu=MilliCpu(500)))
    {'cpu': '500m'}
    """
    return {resource: str(amount) for resource, amount in amounts}


def read_container(obj: JsonObject, path: str) -> SizedContainer:
    """A container's name and ``resources``. Raises ``ValueError``."""
    resources = child(obj, "resources")
    return SizedContainer(
        text(obj, "name"),
        read_amounts(child(resources, "requests"), f"{path}.resources.requests"),
        read_amounts(child(resources, "limits"), f"{path}.resources.limits"),
    )


def write_container(container: SizedContainer) -> Json:
    """The container's name and ``resources``, without missing ones."""
    parts = {"requests": write_amounts(container.requests), "limits": write_amounts(container.limits)}
    return {"name": container.name, "resources": {name: amounts for name, amounts in parts.items() if amounts}}


VM_CONTAINER: Final = "vm"
"""Name of a VM's only container."""


@dataclass(frozen=True, slots=True)
class TargetRef:
    """The object that a group scales: kind, and name in the group's namespace."""

    group: str
    kind: str
    name: str

    @property
    def resource(self) -> kinds.Resource:
        """The API resource of its kind. Only for references from ``read_reference``, which checks the kind."""
        return TARGET_KINDS[self.group, self.kind]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


TEMPLATED: Final = frozenset({DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS})
"""Kinds with a pod template."""

OF_PODS: Final = TEMPLATED | {CNPG_CLUSTERS}
"""Kinds whose replicas are pods."""

TARGET_KINDS: Final = {
    (kind.group, kind.kind): kind
    for kind in (DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS, CNPG_CLUSTERS, VIRTUAL_MACHINES, VM_GROUPS)
}
"""Scalable kinds by API group and kind."""


class InvalidSpecError(ValueError):
    """The spec of a group is invalid; the message has one sentence per field."""


class InvalidTargetError(ValueError):
    """The target cannot be scaled; the message names the field."""


def api_group(reference: JsonObject) -> str:
    """API group of a reference or object."""
    return text(reference, "apiVersion").rpartition("/")[0]


def read_reference(obj: JsonObject, path: str) -> TargetRef:
    """A reference with ``apiVersion``, ``kind`` and ``name``. Raises ``InvalidSpecError``.

    >>> str(read_reference({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "spec.targetRef"))
    'Deployment web'
    """
    reference = TargetRef(api_group(obj), text(obj, "kind"), text(obj, "name"))
    if not reference.name:
        raise InvalidSpecError(f"{path}.name: expected the name of the target")
    if (reference.group, reference.kind) not in TARGET_KINDS:
        supported = ", ".join(f"{kind.api_version} {kind.kind}" for kind in TARGET_KINDS.values())
        what = f"{text(obj, 'apiVersion')} {reference.kind}".strip()
        raise InvalidSpecError(f"{path}: expected one of {supported}, got {what!r}")
    return reference


def workload_of(target: JsonObject, kind: kinds.Resource) -> Workload:
    """The target as a workload. Raises ``InvalidTargetError``."""
    try:
        return _READERS.get(kind, _replicated)(target)
    except ValueError as error:
        raise InvalidTargetError(f"{kind.kind} {name_of(target)}: {error}") from None


def _replicated(target: JsonObject) -> Workload:
    path = "spec.template.spec.containers"
    listed = items(target, "spec", "template", "spec", "containers")
    containers = tuple(read_container(container, f"{path}[{index}]") for index, container in enumerate(listed))
    replicas = child(target, "spec").get("replicas", 1)
    return Workload(
        replicas if isinstance(replicas, int) else 1, integer(target, "status", "readyReplicas"), containers
    )


def _cluster(target: JsonObject) -> Workload:
    # Without container sizes: if they change, the operator restarts every instance.
    return Workload(integer(target, "spec", "instances"), integer(target, "status", "readyInstances"))


def _vm(target: JsonObject) -> Workload:
    vm = parse_virtual_machine(target)
    container = SizedContainer(VM_CONTAINER, ResourceList(vm.bounds.min.cpu, vm.bounds.min.mem))
    return Workload(1, int(text(target, "status", "phase") == "Running"), (container,))


_READERS: Final = {CNPG_CLUSTERS: _cluster, VIRTUAL_MACHINES: _vm}

OUT_OF_MEMORY: Final = "OOMKilled"
"""The kubelet's reason for an OOM-killed container."""


def _containers(pod: JsonObject) -> list[SizedContainer]:
    """A pod's containers; empty if they are unreadable."""
    try:
        return [read_container(container, "spec.containers") for container in items(pod, "spec", "containers")]
    except ValueError:
        return []


def with_defaults(template: Workload, pods: Iterable[JsonObject]) -> Workload:
    """Add to a pod template the defaults that an admission plugin (LimitRange) has set on its pods."""
    running = [sized for pod in pods if not is_terminating(pod) and not has_finished(pod) for sized in _containers(pod)]

    def largest(amounts: Sequence[ResourceList]) -> ResourceList:
        # `is not None`, because zero is a value.
        return ResourceList.of(
            lambda name: max((has.value for row in amounts if (has := row[name]) is not None), default=None)
        )

    containers = []
    for container in template.containers:
        same = [other for other in running if other.name == container.name]
        requests = container.sizes.over(largest([other.requests for other in same]))
        limits = container.limits.over(largest([other.limits for other in same]))
        containers.append(SizedContainer(container.name, requests, limits))
    return replace(template, containers=tuple(containers))


@dataclass(frozen=True, slots=True)
class OomKill:
    """An OOM-killed container; ``at`` in Unix seconds."""

    container: str
    at: float
    pod: str = ""


def oom_kills(pod: JsonObject) -> Iterator[OomKill]:
    """Yield the last OOM kills of the pod's containers in any state."""
    for status in items(pod, "status", "containerStatuses"):
        # After a restart the kill is in `lastState`.
        for state in ("state", "lastState"):
            ended = child(status, state, "terminated")
            at = parse_timestamp(ended.get("finishedAt"))
            if text(ended, "reason") == OUT_OF_MEMORY and at is not None:
                yield OomKill(text(status, "name"), at, text(pod, "metadata", "name"))


def running_pods(
    target: JsonObject,
    kind: kinds.Resource,
    pods: Sequence[JsonObject],
    in_place: tuple[SizedContainer, ...] = (),
    *,
    refused: bool = False,
) -> RunningPods | None:
    """The pods of ``target``; None if its status is missing. Raises ``ValueError`` for bad quantities.

    ``in_place`` are the sizes to which running pods are resized; ``refused`` is True if a resize was refused.
    """
    status = child(target, "status")
    # Without `observedGeneration` the controller has not reported yet.
    if kind not in TEMPLATED or "observedGeneration" not in status:
        return None
    running = [pod for pod in pods if not is_terminating(pod) and not has_finished(pod)]
    ready = [pod for pod in running if is_condition_true(pod, "Ready")]
    template = workload_of(target, kind)
    sizes = [pod_sizes(pod) for pod in ready or running]
    # A Deployment replaces its pods when its template changes; a ReplicaSet does not.
    requested = in_place or (template.containers if kind == REPLICA_SETS else ())
    unsized = [name_of(pod).name for pod in running if requested and not _has(pod, requested)]
    difference = _progress(target, kind, template.replicas) or (
        texts.other_size(unsized, len(running)) if unsized else ""
    )
    return RunningPods(
        integer(status, "readyReplicas"),
        _mean(sizes) or template.containers,
        difference,
        _largest([pod_sizes(pod) for pod in running], in_place) if refused and unsized else (),
    )


def pod_sizes(pod: JsonObject) -> tuple[SizedContainer, ...]:
    """Sizes of the pod's containers, including sidecars. Raises ``ValueError``."""
    statuses = {text(status, "name"): status for status in items(pod, "status", "containerStatuses")}
    sidecars = [init for init in items(pod, "spec", "initContainers") if init.get("restartPolicy") == "Always"]
    sizes = []
    for spec in (*items(pod, "spec", "containers"), *sidecars):
        container = read_container(spec, "spec.containers")
        # The kubelet's allocation, or else the request.
        allocated = read_amounts(child(statuses.get(container.name, {}), "allocatedResources"), "allocatedResources")
        sizes.append(SizedContainer(container.name, allocated.over(container.sizes)))
    return tuple(sizes)


def _progress(target: JsonObject, kind: kinds.Resource, ordered: int) -> str:
    """The pods' difference from the target's spec in template, number or readiness; empty if there is none."""
    status = child(target, "status")
    # The status describes an older spec.
    if integer(status, "observedGeneration") < integer(target, "metadata", "generation"):
        return texts.JUST_CHANGED.format(kind=kind.kind)
    updated, present, ready = (integer(status, name) for name in ("updatedReplicas", "replicas", "readyReplicas"))
    # A ReplicaSet has no `updatedReplicas`.
    if kind != REPLICA_SETS and updated < ordered:
        return texts.OLD_TEMPLATE.format(updated=updated, ordered=ordered)
    if present != ordered:
        return texts.OTHER_NUMBER.format(present=present, ordered=ordered)
    return texts.NOT_ALL_READY.format(ready=ready, ordered=ordered) if ready < ordered else ""


def _has(pod: JsonObject, sized: Sequence[SizedContainer]) -> bool:
    """Return True if the pod has the ``sized`` sizes according to the kubelet."""
    sizes = pod_sizes(pod)
    pairs = [(container, by_name(sizes, container.name)) for container in sized]
    return not (is_condition_true(pod, "PodResizePending") or is_condition_true(pod, "PodResizeInProgress")) and all(
        container.sizes.over(has.requests) == has.requests for container, has in pairs if has is not None
    )


def _mean(pods: Sequence[tuple[SizedContainer, ...]]) -> tuple[SizedContainer, ...]:
    """Mean container sizes; a pod without the container counts as zero."""
    names = dict.fromkeys(container.name for pod in pods for container in pod)

    def mean(name: str, resource: Resource) -> int | None:
        amounts = _amounts(pods, name, resource)
        return sum(amounts) // len(pods) if amounts else None

    return tuple(SizedContainer(name, ResourceList.of(partial(mean, name))) for name in names)


def _largest(pods: Sequence[tuple[SizedContainer, ...]], sized: Sequence[SizedContainer]) -> tuple[SizedContainer, ...]:
    """For each requested amount that no pod has reached, the largest amount of any pod."""

    def largest(container: str, resource: Resource, desired: Amount) -> int | None:
        has = max(_amounts(pods, container, resource), default=None)
        return has if has is not None and has < desired.value else None

    limited = (
        SizedContainer(container.name, container.sizes.map(partial(largest, container.name))) for container in sized
    )
    return tuple(container for container in limited if container.requests)


def _amounts(pods: Sequence[tuple[SizedContainer, ...]], name: str, resource: Resource) -> list[int]:
    """Amounts of the resource in containers of that name, in thousandths of a vCPU or bytes."""
    sizes = (container.sizes[resource] for pod in pods if (container := by_name(pod, name)) is not None)
    return [amount.value for amount in sizes if amount is not None]
