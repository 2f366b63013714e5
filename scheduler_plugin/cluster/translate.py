"""Objects of the Kubernetes API into facts for the ledger. Nobody else looks inside a pod or a node.

Rules that hold here:

- A pod's requests are counted as kube-scheduler counts them: the larger of all containers together (sidecars, that is
  init containers that restart always, included) and of each init container with the sidecars started before it; plus
  the overhead. A request on the pod itself replaces the sum of its containers. Missing requests count as nothing.
- An amount is read as Kubernetes reads it; one that cannot be read raises ``ValueError`` with the path of the field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from protocol.field_errors import field_message
from protocol.kubernetes.objects import JsonObject, number
from protocol.messages import ObjectName
from protocol.names import (
    GPU_SUFFIX,
    LABEL_AUTO_MIGRATION,
    LABEL_MACHINE,
    LABEL_MACHINE_OLD,
    LABEL_VM_NAME,
    MIGRATION_KIND,
    SCHEDULER_NAME,
    VM_GROUP,
    VM_PLURAL,
    VM_VERSION,
)
from protocol.units import ZERO, Resources
from protocol.virtual_machine import VirtualMachine, parse_virtual_machine
from protocol.wire_quantities import WireQuantity, cpu_from_wire, mem_from_wire
from scheduler_plugin.cluster.informer import Kind
from scheduler_plugin.ledger import NodeFacts, NodePolicy, PodFacts, VmFacts

TERMINAL: Final = frozenset({"Succeeded", "Failed"})
"""Phases after which a pod needs nothing."""

WITHOUT_GUEST: Final = frozenset({"Pending", "Succeeded", "Failed"})
"""Phases of a VM in which its status may still say what an earlier guest had, and no guest has anything."""

Amounts = dict[str, WireQuantity]


class _Owner(msgspec.Struct, frozen=True):
    kind: str
    name: str


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    ownerReferences: list[_Owner] | None = None  # noqa: N815 - the name in the API


class _Requests(msgspec.Struct, frozen=True):
    requests: Amounts | None = None


class _Container(msgspec.Struct, frozen=True):
    resources: _Requests | None = None
    restartPolicy: str | None = None  # noqa: N815 - the name in the API


class _PodSpec(msgspec.Struct, frozen=True):
    containers: list[_Container] = msgspec.field(default_factory=list)
    initContainers: list[_Container] | None = None  # noqa: N815 - the name in the API
    overhead: Amounts | None = None
    resources: _Requests | None = None
    nodeName: str | None = None  # noqa: N815 - the name in the API
    schedulerName: str | None = None  # noqa: N815 - the name in the API


class _PodStatus(msgspec.Struct, frozen=True):
    phase: str | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _PodSpec
    status: _PodStatus | None = None


class _NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool | None = None


class _NodeStatus(msgspec.Struct, frozen=True):
    allocatable: Amounts | None = None
    capacity: Amounts | None = None


class _Node(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node as the API has it, before the settings say how it is to be kept. ``machine`` is its instance type."""

    name: str
    allocatable: Resources
    is_open: bool = True
    machine: str = ""
    gpus: int = 0

    def facts(self, policy: NodePolicy, price: float) -> NodeFacts:
        """The node with its policy and its price per hour, for the ledger."""
        return NodeFacts(self.name, self.allocatable, policy, self.is_open, price)


T = TypeVar("T")


def _converted(obj: JsonObject, kind: type[T]) -> T:
    try:
        return msgspec.convert(obj, kind)
    except (ValueError, RecursionError) as error:
        raise ValueError(field_message(error)) from None


def read_node(obj: JsonObject) -> ClusterNode:
    """A Node; capacity stands in where nothing is said to be allocatable. Raises ``ValueError``."""
    return _cluster_node(_converted(obj, _Node))


_NODE: Final = msgspec.json.Decoder(_Node)


def decode_node(body: bytes | msgspec.Raw) -> ClusterNode:
    """A Node from its JSON text. Raises ``ValueError``."""
    try:
        return _cluster_node(_NODE.decode(body))
    except (ValueError, RecursionError) as error:
        raise ValueError(field_message(error)) from None


def _cluster_node(found: _Node) -> ClusterNode:
    status, spec = found.status or _NodeStatus(), found.spec or _NodeSpec()
    held = ("status.allocatable", status.allocatable) if status.allocatable else ("status.capacity", status.capacity)
    labels = found.metadata.labels or {}
    return ClusterNode(
        name=found.metadata.name,
        allocatable=_amounts(*held),
        is_open=not spec.unschedulable,
        machine=labels.get(LABEL_MACHINE) or labels.get(LABEL_MACHINE_OLD, ""),
        gpus=_gpus(*held),
    )


def _gpus(path: str, held: Amounts | None) -> int:
    gpus = [(name, count) for name, count in (held or {}).items() if name.endswith(GPU_SUFFIX)]
    return sum(mem_from_wire(f"{path}.{name}", count).value for name, count in gpus)


def read_pod(obj: JsonObject, scheduler: str = SCHEDULER_NAME) -> PodFacts:
    """A Pod; it is ours where ``scheduler`` places it. Raises ``ValueError``."""
    found = _converted(obj, _Pod)
    return _pod_facts(found, is_ours=found.spec.schedulerName == scheduler)


_POD: Final = msgspec.json.Decoder(_Pod)


def decode_pod(body: bytes | msgspec.Raw) -> PodFacts:
    """A Pod that our extender is asked about, from its JSON text, for hot paths. Raises ``ValueError``."""
    try:
        return _pod_facts(_POD.decode(body), is_ours=True)
    except (ValueError, RecursionError) as error:
        raise ValueError(field_message(error)) from None


def _pod_facts(found: _Pod, *, is_ours: bool) -> PodFacts:
    meta = found.metadata
    vm = (meta.labels or {}).get(LABEL_VM_NAME)
    return PodFacts(
        uid=meta.uid,
        name=ObjectName(meta.namespace, meta.name),
        requests=_requests(found.spec),
        vm=ObjectName(meta.namespace, vm) if vm else None,
        node=found.spec.nodeName or None,
        finished=found.status is not None and found.status.phase in TERMINAL,
        migration=_migration(meta),
        is_ours=is_ours,
    )


def _migration(meta: _Metadata) -> ObjectName | None:
    """The migration that has made the pod as its target; once it has succeeded, the VM owns the pod."""
    for owner in meta.ownerReferences or ():
        if owner.kind == MIGRATION_KIND:
            return ObjectName(meta.namespace, owner.name)
    return None


def _requests(spec: _PodSpec) -> Resources:
    overhead = _amounts("spec.overhead", spec.overhead)
    running = Resources.sum(_container(f"spec.containers[{i}]", c) for i, c in enumerate(spec.containers))
    sidecars, starting = ZERO, ZERO
    for index, init in enumerate(spec.initContainers or ()):
        size = _container(f"spec.initContainers[{index}]", init)
        starting = starting.at_least(sidecars + size)
        if init.restartPolicy == "Always":
            sidecars = sidecars + size
    counted = (running + sidecars).at_least(starting)
    if spec.resources is not None and spec.resources.requests:
        counted = _replaced("spec.resources.requests", spec.resources.requests, counted)
    return counted + overhead


def _container(path: str, container: _Container) -> Resources:
    held = container.resources
    return ZERO if held is None else _amounts(f"{path}.resources.requests", held.requests)


def _replaced(path: str, given: Amounts, counted: Resources) -> Resources:
    said = _amounts(path, given)
    return Resources(said.cpu if "cpu" in given else counted.cpu, said.mem if "memory" in given else counted.mem)


def _amounts(path: str, given: Amounts | None) -> Resources:
    if not given:
        return ZERO
    return Resources(
        cpu_from_wire(f"{path}.cpu", given.get("cpu", 0)), mem_from_wire(f"{path}.memory", given.get("memory", 0))
    )


def vm_facts(vm: VirtualMachine) -> VmFacts:
    """A VirtualMachine as the ledger wants it. A resourceVersion that is no number counts as the oldest."""
    return VmFacts(
        name=vm.name,
        uid=vm.uid,
        version=number(vm.resource_version),
        most=vm.bounds.max,
        use=vm.use,
        actual=None if vm.phase in WITHOUT_GUEST else vm.actual,
        permit=vm.permit,
        pod=ObjectName(vm.name.namespace, vm.pod_name) if vm.pod_name else None,
        may_move=vm.enabled and vm.labels.get(LABEL_AUTO_MIGRATION) != "false",
        phase=vm.phase,
    )


NODES: Final = Kind("nodes", "/api/v1/nodes", read_node)
PODS: Final = Kind("pods", "/api/v1/pods", read_pod)
VMS: Final[Kind[VirtualMachine]] = Kind(VM_PLURAL, f"/apis/{VM_GROUP}/{VM_VERSION}/{VM_PLURAL}", parse_virtual_machine)


def vm_path(name: ObjectName) -> str:
    """The path of one VirtualMachine."""
    return f"/apis/{VM_GROUP}/{VM_VERSION}/namespaces/{name.namespace}/{VM_PLURAL}/{name.name}"


def pod_path(name: ObjectName) -> str:
    """The path of one Pod."""
    return f"/api/v1/namespaces/{quote(name.namespace, safe='')}/pods/{quote(name.name, safe='')}"
