"""What a group can scale: which kinds, how each is read as a workload, and how it is written (S1.1, S1.10).

Rules that hold here:

- Replicas are written through ``/scale``, sizes where the kind keeps them: in the pod template, or in a VM's bounds.
- A VM is one replica with one container, ``vm``, that requests the ``min`` of its bounds. Their ``max`` stays, and its
  agent alone writes ``use``, between the two.
- A kind without a template (a group of VMs) has replicas and no containers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    annotations_of,
    child,
    items,
    name_of,
    text,
    texts,
    version_of,
    whole,
)
from protocol.kubernetes.resources import (
    DEPLOYMENTS,
    REPLICA_SETS,
    STATEFUL_SETS,
    VIRTUAL_MACHINES,
    VM_GROUPS,
    Resource,
)
from protocol.names import ANNOTATION_BOUNDS
from protocol.units import Amount, Bytes, MilliCpu, QuantityError, Resources
from protocol.virtual_machine import VirtualMachine, parse_virtual_machine
from scheduler_plugin.groups.core.workload import ResourceList, SizedContainer, Workload, by_name
from scheduler_plugin.groups.core.writes import Write, controller_of

A = TypeVar("A", bound=Amount)


def read_amounts(found: JsonObject, path: str) -> ResourceList:
    """The amounts of one JSON object; other resources than CPU and memory are left out.

    Raises ``ValueError`` with the path of an amount that is no quantity.

    >>> read_amounts({"cpu": "500m", "nvidia.com/gpu": 1}, "requests")
    ResourceList(cpu=MilliCpu(value=500), memory=None)
    """
    cpu = _read(found.get("cpu"), MilliCpu.parse, f"{path}.cpu")
    return ResourceList(cpu, _read(found.get("memory"), Bytes.parse, f"{path}.memory"))


def _read(given: Any, parse: Callable[[Any], A], path: str) -> A | None:
    try:
        return None if given is None else parse(given)
    except QuantityError as error:
        raise ValueError(f"{path}: {error}") from None


def write_amounts(amounts: ResourceList) -> Json:
    """The same amounts as JSON.

    >>> write_amounts(ResourceList(cpu=MilliCpu(500)))
    {'cpu': '500m'}
    """
    return {resource: str(amount) for resource, amount in amounts}


def read_container(found: JsonObject, path: str) -> SizedContainer:
    """A container with its name and ``resources``. Raises ``ValueError``."""
    resources = child(found, "resources")
    return SizedContainer(
        text(found, "name"),
        read_amounts(child(resources, "requests"), f"{path}.resources.requests"),
        read_amounts(child(resources, "limits"), f"{path}.resources.limits"),
    )


def write_container(container: SizedContainer) -> Json:
    """The container's name and ``resources``, as far as they are given."""
    parts = {"requests": write_amounts(container.requests), "limits": write_amounts(container.limits)}
    return {"name": container.name, "resources": {name: amounts for name, amounts in parts.items() if amounts}}


VM_CONTAINER: Final = "vm"
"""The name of a VM's only container."""


@dataclass(frozen=True, slots=True)
class TargetRef:
    """The object that a group scales: its kind, and its name in the group's namespace."""

    group: str
    kind: str
    name: str

    @property
    def resource(self) -> Resource:
        """Its kind; only of a reference that ``read_reference`` has read."""
        return TARGET_KINDS[self.group, self.kind]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


TEMPLATED: Final = frozenset({DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS})
"""The kinds whose replicas are pods of a template."""

TARGET_KINDS: Final = {
    (kind.group, kind.kind): kind for kind in (DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS, VIRTUAL_MACHINES, VM_GROUPS)
}
"""Everything that can be scaled, by API group and kind."""


class InvalidSpecError(ValueError):
    """The spec of a group cannot be used; the message has a sentence for each field that is wrong."""


class InvalidTargetError(ValueError):
    """The target cannot be scaled as it is; the message says which field is wrong."""


def api_group(reference: JsonObject) -> str:
    """The API group of a reference or an object."""
    return text(reference, "apiVersion").rpartition("/")[0]


def read_reference(found: JsonObject, path: str) -> TargetRef:
    """A reference with ``apiVersion``, ``kind`` and ``name``. Raises ``InvalidSpecError``.

    >>> str(read_reference({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "spec.targetRef"))
    'Deployment web'
    """
    reference = TargetRef(api_group(found), text(found, "kind"), text(found, "name"))
    if not reference.name:
        raise InvalidSpecError(f"{path}.name: expected the name of what is to be scaled")
    if (reference.group, reference.kind) not in TARGET_KINDS:
        supported = ", ".join(f"{kind.api_version} {kind.kind}" for kind in TARGET_KINDS.values())
        what = f"{text(found, 'apiVersion')} {reference.kind}".strip()
        raise InvalidSpecError(f"{path}: expected one of {supported}, got {what!r}")
    return reference


def workload_of(target: JsonObject, kind: Resource) -> Workload:
    """The target as a workload. Raises ``InvalidTargetError``."""
    try:
        return _vm(target) if kind is VIRTUAL_MACHINES else _replicated(target)
    except ValueError as error:
        raise InvalidTargetError(f"{kind.kind} {name_of(target)}: {error}") from None


def _replicated(target: JsonObject) -> Workload:
    path = "spec.template.spec.containers"
    listed = items(target, "spec", "template", "spec", "containers")
    containers = tuple(read_container(container, f"{path}[{index}]") for index, container in enumerate(listed))
    replicas = child(target, "spec").get("replicas", 1)
    return Workload(replicas if isinstance(replicas, int) else 1, whole(target, "status", "readyReplicas"), containers)


def _vm(target: JsonObject) -> Workload:
    vm = parse_virtual_machine(target)
    container = SizedContainer(VM_CONTAINER, ResourceList(vm.bounds.min.cpu, vm.bounds.min.mem))
    return Workload(1, int(text(target, "status", "phase") == "Running"), (container,))


def kept_by(target: JsonObject) -> str:
    """Kind and name of the target's controller if that can be a target itself, such as a ReplicaSet's Deployment; else
    empty. Other controllers, such as operators, may leave sizes and replicas to a group.
    """
    owner = controller_of(target) or {}
    reference = api_group(owner), text(owner, "kind")
    # Such a controller would undo every write.
    return f"{reference[1]} {text(owner, 'name')}" if reference in TARGET_KINDS else ""


def selector_of(target: JsonObject) -> str:
    """The label selector of the target's pods, as ``/scale`` shows it; empty if it has none."""
    if selector := text(target, "status", "selector"):
        return selector
    equal = sorted(f"{key}={value}" for key, value in texts(target, "spec", "selector", "matchLabels").items())
    return ",".join([*equal, *map(_requirement, items(target, "spec", "selector", "matchExpressions"))])


def _requirement(found: JsonObject) -> str:
    """One of ``matchExpressions`` as text."""
    key, operator, values = text(found, "key"), text(found, "operator"), found.get("values")
    if operator in {"Exists", "DoesNotExist"}:
        return key if operator == "Exists" else f"!{key}"
    return f"{key} {operator.lower()} ({','.join(map(str, values if isinstance(values, list) else ()))})"


def scale(target: JsonObject, kind: Resource, replicas: int) -> Write:
    """Sets how many replicas there are."""
    body: Json = {"spec": {"replicas": replicas}}
    return Write("replicas", kind, name_of(target), body, "scale", version_of(target))


def resize(target: JsonObject, kind: Resource, containers: tuple[SizedContainer, ...]) -> Write:
    """Sets the sizes of ``containers``, as far as they are given; all others stay."""
    name, version = name_of(target), version_of(target)
    if kind is VIRTUAL_MACHINES:
        vm = parse_virtual_machine(target)
        least = _least(target, vm, (by_name(containers, VM_CONTAINER) or SizedContainer(VM_CONTAINER)).requests)
        bounds = msgspec.json.encode({"min": _bound(least), "max": _bound(vm.bounds.max)}).decode()
        annotations: Json = {"metadata": {"annotations": {ANNOTATION_BOUNDS: bounds}}}
        # In an annotation, because the spec of the VM belongs to whoever made it.
        return Write("bounds", kind, name, annotations, version=version)
    body: Json = {
        "spec": {"template": {"spec": {"containers": [write_container(container) for container in containers]}}}
    }
    return Write("requests", kind, name, body, version=version, merges_lists=True)


def achievable(
    target: JsonObject, kind: Resource, containers: tuple[SizedContainer, ...]
) -> tuple[SizedContainer, ...]:
    """``containers`` as they can be written: of a VM in whole slots, and no more than its bounds allow."""
    if kind is not VIRTUAL_MACHINES:
        return containers
    container = by_name(containers, VM_CONTAINER)
    if container is None:
        return ()
    least = _least(target, parse_virtual_machine(target), container.requests)
    sizes = {"cpu": least.cpu.value, "memory": least.mem.value}
    return (SizedContainer(VM_CONTAINER, container.requests.map(lambda resource, _: sizes[resource])),)


def _least(target: JsonObject, vm: VirtualMachine, requests: ResourceList) -> Resources:
    """The least size of a VM that is to have ``requests``: never less than its spec says, whatever is annotated."""
    metadata = child(target, "metadata")
    # Without our own annotation the bounds are those of the spec.
    others = {name: value for name, value in annotations_of(target).items() if name != ANNOTATION_BOUNDS}
    spec = parse_virtual_machine({**target, "metadata": {**metadata, "annotations": others}}).bounds
    # Memory comes in slots, so it is rounded up to whole ones.
    memory = vm.bounds.min.mem if requests.memory is None else requests.memory.up_to(vm.slot_size)
    # Applied last, so the upper bound wins.
    return Resources(requests.cpu or vm.bounds.min.cpu, memory).at_least(spec.min).at_most(vm.bounds.max)


def _bound(size: Resources) -> Json:
    return {"cpu": size.cpu.quantity(), "mem": size.mem.quantity()}
