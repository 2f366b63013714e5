"""Pods of the Kubernetes API into facts for the ledger. Nothing else looks inside a pod.

Rules that hold here:

- A pod's requests are counted as kube-scheduler counts them: the larger of all containers together (sidecars, that is
  init containers that restart always, included) and of each init container with the sidecars started before it; plus
  the overhead. A request on the pod itself replaces the sum of its containers. Missing requests count as nothing.
- A container that is resized in place counts with the largest of what it asks for, what the kubelet has allocated and
  what it actually has; what it asks for is left out once the kubelet has said that it is infeasible. What the kubelet
  said of an earlier wish does not count.
  What the kubelet has deferred is counted, and told apart in a pod without a VM.
- The guest's container is the one named ``neonvm-runner``; in a VM's pod without one the first counts as it.
- A pod runs a VM only where the VM, or a migration as its controller, owns it by UID. Labels alone prove nothing.
- An amount is read as Kubernetes reads it; one that cannot be read raises ``ValueError`` with the path of the field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Final

import msgspec

from protocol.field_errors import field_message
from protocol.kubernetes.managed_fields import ManagedFields, resized_by
from protocol.kubernetes.objects import JsonObject, child, flag, items, name_of, text, texts, uid_of
from protocol.messages import ObjectName
from protocol.names import (
    LABEL_MAKE_ROOM,
    LABEL_VM_NAME,
    MIGRATION_KIND,
    RUNNER_CONTAINER,
    SCHEDULER_NAME,
    VM_GROUP,
    VM_KIND,
)
from protocol.units import ZERO, Resources
from protocol.wire.wire_quantities import WireQuantity, cpu_from_wire, mem_from_wire
from scheduler_plugin.cluster.scheduling_fields import pod_traits
from scheduler_plugin.constraints import PLAIN_POD, PodTraits
from scheduler_plugin.ledger import PodFacts, RunnerRequests

TERMINAL: Final = frozenset({"Succeeded", "Failed"})
"""Phases after which a pod needs nothing."""

RESIZE_PENDING: Final = "PodResizePending"
INFEASIBLE: Final = "Infeasible"
BURSTABLE: Final = "Burstable"
DEFERRED: Final = "Deferred"
RESTART: Final = "RestartContainer"

MOST_PARTS: Final = 1000
"""An object with more containers, or amounts, than this is not read: it would hold the event loop for long."""

Amounts = Annotated[dict[str, WireQuantity], msgspec.Meta(max_length=MOST_PARTS)]


class Owner(msgspec.Struct, frozen=True):
    """An owner reference."""

    kind: str
    name: str
    uid: str = ""
    apiVersion: str = ""  # noqa: N815 - the name in the API
    controller: bool | None = None


class Metadata(msgspec.Struct, frozen=True):
    """What is needed of any object's metadata."""

    name: str
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    ownerReferences: list[Owner] | None = None  # noqa: N815 - the name in the API
    resourceVersion: str = ""  # noqa: N815 - the name in the API
    generation: int = 0


class PodMetadata(Metadata, frozen=True):
    """What is needed of a pod's metadata."""

    managedFields: list[ManagedFields] | None = None  # noqa: N815 - the name in the API


class _Requests(msgspec.Struct, frozen=True):
    requests: Amounts | None = None


class _Resources(msgspec.Struct, frozen=True):
    requests: Amounts | None = None
    limits: Amounts | None = None


class _ResizePolicy(msgspec.Struct, frozen=True):
    restartPolicy: str = ""  # noqa: N815 - the name in the API


class Container(msgspec.Struct, frozen=True):
    """What is needed of a container."""

    name: str = ""
    resources: _Resources | None = None
    resizePolicy: Annotated[list[_ResizePolicy], msgspec.Meta(max_length=MOST_PARTS)] | None = None  # noqa: N815 - the name in the API
    restartPolicy: str | None = None  # noqa: N815 - the name in the API


Containers = Annotated[list[Container], msgspec.Meta(max_length=MOST_PARTS)]


class PodSpec(msgspec.Struct, frozen=True):
    """What is needed of a pod's spec."""

    containers: Containers = msgspec.field(default_factory=list)
    initContainers: Containers | None = None  # noqa: N815 - the name in the API
    overhead: Amounts | None = None
    resources: _Requests | None = None
    nodeName: str | None = None  # noqa: N815 - the name in the API
    schedulerName: str | None = None  # noqa: N815 - the name in the API
    hostNetwork: bool | None = None  # noqa: N815 - the name in the API


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    observedGeneration: int = 0  # noqa: N815 - the name in the API


class _Held(msgspec.Struct, frozen=True):
    """What the kubelet has allocated to a container or pod, and what it actually has."""

    name: str = ""
    allocatedResources: Amounts | None = None  # noqa: N815 - the name in the API
    resources: _Requests | None = None


Statuses = Annotated[list[_Held], msgspec.Meta(max_length=MOST_PARTS)]
Conditions = Annotated[list[_Condition], msgspec.Meta(max_length=MOST_PARTS)]


class _Ip(msgspec.Struct, frozen=True):
    ip: str = ""


class PodStatus(msgspec.Struct, frozen=True):
    """What is needed of a pod's status."""

    phase: str | None = None
    qosClass: str | None = None  # noqa: N815 - the name in the API
    podIP: str | None = None  # noqa: N815 - the name in the API
    podIPs: Annotated[list[_Ip], msgspec.Meta(max_length=MOST_PARTS)] | None = None  # noqa: N815 - the name in the API
    conditions: Conditions | None = None
    containerStatuses: Statuses | None = None  # noqa: N815 - the name in the API
    initContainerStatuses: Statuses | None = None  # noqa: N815 - the name in the API
    allocatedResources: Amounts | None = None  # noqa: N815 - the name in the API
    resources: _Requests | None = None
    observedGeneration: int = 0  # noqa: N815 - the name in the API


class Pod(msgspec.Struct, frozen=True):
    """What is needed of a pod."""

    metadata: PodMetadata
    spec: PodSpec
    status: PodStatus | None = None


def read_pod(obj: JsonObject) -> PodFacts:
    """A Pod. Raises ``ValueError``."""
    try:
        facts = pod_facts(msgspec.convert(obj, Pod))
    except (ValueError, RecursionError) as error:
        raise ValueError(field_message(error)) from None
    is_leaving = bool(text(obj, "metadata", "deletionTimestamp"))
    traits = pod_traits(texts(obj, "metadata", "labels"), child(obj, "spec"), is_leaving=is_leaving)
    return facts if traits is PLAIN_POD else replace(facts, traits=traits)


def pod_at_most(obj: JsonObject, reason: str) -> PodFacts:
    """A Pod that cannot be read for ``reason``, as far as it can: what it needs is not known. Never raises."""
    name = name_of(obj)
    owners = [_owner_at_most(each) for each in items(obj, "metadata", "ownerReferences")]
    meta = PodMetadata(name.name, name.namespace, uid_of(obj), texts(obj, "metadata", "labels"), owners)
    spec = PodSpec(nodeName=text(obj, "spec", "nodeName"), schedulerName=text(obj, "spec", "schedulerName"))
    known = pod_facts(Pod(meta, spec, PodStatus(text(obj, "status", "phase"))))
    return replace(known, unreadable=reason, has_runner=True)


def _owner_at_most(obj: JsonObject) -> Owner:
    kind, name, uid, version = (text(obj, key) for key in ("kind", "name", "uid", "apiVersion"))
    return Owner(kind, name, uid, version, flag(obj, "controller"))


def pod_facts(found: Pod, traits: PodTraits = PLAIN_POD) -> PodFacts:
    """The facts about a pod. Raises ``ValueError``."""
    meta, status = found.metadata, found.status or PodStatus()
    vm, vm_uid, migration, migration_uid = _run_by(meta)
    requests, around = _counted(meta, found.spec, status)
    return PodFacts(
        uid=meta.uid,
        name=ObjectName(meta.namespace, meta.name),
        requests=requests,
        vm=vm,
        node=found.spec.nodeName or None,
        finished=status.phase in TERMINAL,
        migration=migration,
        scheduler=found.spec.schedulerName or "",
        vm_uid=vm_uid,
        migration_uid=migration_uid,
        around=ZERO if vm is None else around,
        unschedulable="" if migration is None else _unschedulable(status),
        deferred=_deferred(found, status, requests) if vm is None else ZERO,
        asks_room=vm is None and (meta.labels or {}).get(LABEL_MAKE_ROOM) == "true",
        traits=traits,
        has_runner=vm is None or any(each.name == RUNNER_CONTAINER for each in found.spec.containers),
        runner=None if vm is None else _runner(meta, found.spec, status),
        addresses=() if found.spec.hostNetwork else _addresses(status),
    )


def _addresses(status: PodStatus) -> tuple[str, ...]:
    """One for each family; the API says the first of them twice."""
    if status.phase in TERMINAL:
        return ()
    said = (status.podIP, *(each.ip for each in status.podIPs or ()))
    return tuple(dict.fromkeys(address for address in said if address))


def _unschedulable(status: PodStatus) -> str:
    """What kube-scheduler says of a pod that it finds no node for."""
    for condition in status.conditions or ():
        if (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "Unschedulable"):
            return condition.message or "kube-scheduler finds no node for it"
    return ""


def _run_by(meta: Metadata) -> tuple[ObjectName | None, str, ObjectName | None, str]:
    """The VM that the pod runs and the migration that it is the target of, each with its UID.

    A target is the migration's until that has succeeded, and then the VM's; until then its label says which VM. The
    source of a migration has it as an owner too, but not as its controller.
    """
    owners = [each for each in meta.ownerReferences or () if each.apiVersion.partition("/")[0] in ("", VM_GROUP)]
    for owner in owners:
        if owner.kind == MIGRATION_KIND and owner.controller:
            vm = (meta.labels or {}).get(LABEL_VM_NAME)
            migration = ObjectName(meta.namespace, owner.name)
            return ObjectName(meta.namespace, vm) if vm else None, "", migration, owner.uid
    for owner in owners:
        if owner.kind == VM_KIND:
            return ObjectName(meta.namespace, owner.name), owner.uid, None, ""
    return None, "", None, ""


# Requests ------------------------------------------------------------------------------------------------------------


def _runner(meta: PodMetadata, spec: PodSpec, status: PodStatus) -> RunnerRequests | None:
    """What the guest's container requests, where that may be changed in place (B.10).

    A pod keeps its class of service, so one without any request cannot be given some, and one whose requests are its
    limits would need both changed. Limits are the operator's: a container that has some is left as it is. So is one
    that its kubelet would restart: that ends the guest.
    """
    found = next((each for each in spec.containers if each.name == RUNNER_CONTAINER), None)
    if found is None or status.qosClass != BURSTABLE or spec.resources is not None:
        return None
    resources = found.resources or _Resources()
    if (resources.limits or {}).keys() & {"cpu", "memory"}:
        return None
    if any(each.restartPolicy == RESTART for each in found.resizePolicy or ()):
        return None
    held = next((each for each in status.containerStatuses or () if each.name == found.name), _Held())
    allocated, asked = held.allocatedResources, resources.requests or {}
    written = resized_by(SCHEDULER_NAME, meta.managedFields or ())
    return RunnerRequests(
        asked=_amounts("requests of the guest's container", asked),
        allocated=None if allocated is None else _amounts("status: allocatedResources", allocated),
        problem=_resize_problem(meta, status),
        version=meta.resourceVersion,
        by_us=_amounts("requests by us", {name: amount for name, amount in asked.items() if name in written}),
        is_seen=not 0 < status.observedGeneration < meta.generation,
    )


def _resize_problem(meta: Metadata, status: PodStatus) -> str:
    """What the kubelet says against the present requests."""
    verdicts = (f"{each.reason}: {each.message or ''}" for each in _verdicts(meta, status) if each.status == "True")
    return next(verdicts, "")


def _deferred(found: Pod, status: PodStatus, requests: Resources) -> Resources:
    """How much of ``requests`` the kubelet gives only when others have left the node."""
    if not _resize_is(DEFERRED, found.metadata, status):
        return ZERO
    has, _ = _held(found.spec, status, is_feasible=False)
    return requests.minus_or_zero(has)


def _resize_is(reason: str, meta: Metadata, status: PodStatus) -> bool:
    return any(each.reason == reason for each in _verdicts(meta, status))


def _verdicts(meta: Metadata, status: PodStatus) -> Iterator[_Condition]:
    """What the kubelet says of the present requests; what it said of earlier ones does not count."""
    for each in status.conditions or ():
        if each.type == RESIZE_PENDING and (not each.observedGeneration or each.observedGeneration >= meta.generation):
            yield each


def _counted(meta: Metadata, spec: PodSpec, status: PodStatus) -> tuple[Resources, Resources]:
    """What kube-scheduler counts for the pod, and how much of that lies around the container that runs a guest."""
    return _held(spec, status, is_feasible=not _resize_is(INFEASIBLE, meta, status))


def _held(spec: PodSpec, status: PodStatus, *, is_feasible: bool) -> tuple[Resources, Resources]:
    """As ``_counted``, with or without what is asked for beyond what each container has."""
    held = {each.name: each for each in status.containerStatuses or ()}
    sizes = [
        _size(f"spec.containers[{index}]", each, held.get(each.name), is_feasible=is_feasible)
        for index, each in enumerate(spec.containers)
    ]
    sidecars, starting = _init_sizes(spec, status, is_feasible=is_feasible)
    counted = (Resources.sum(sizes) + sidecars).at_least(starting)
    counted = _pod_level(spec, status, counted, is_feasible=is_feasible)
    overhead = _amounts("spec.overhead", spec.overhead)
    runner = next((index for index, each in enumerate(spec.containers) if each.name == RUNNER_CONTAINER), 0)
    beside = Resources.sum(size for index, size in enumerate(sizes) if index != runner)
    return counted + overhead, beside + sidecars + overhead


def _init_sizes(spec: PodSpec, status: PodStatus, *, is_feasible: bool) -> tuple[Resources, Resources]:
    """What all sidecars need together, and the most that any moment of starting needs."""
    held = {each.name: each for each in status.initContainerStatuses or ()}
    sidecars, starting = ZERO, ZERO
    for index, init in enumerate(spec.initContainers or ()):
        is_sidecar = init.restartPolicy == "Always"
        kept = held.get(init.name) if is_sidecar else None
        size = _size(f"spec.initContainers[{index}]", init, kept, is_feasible=is_feasible)
        starting = starting.at_least(sidecars + size)
        if is_sidecar:
            sidecars = sidecars + size
    return sidecars, starting


def _size(path: str, container: Container, held: _Held | None, *, is_feasible: bool) -> Resources:
    asked = (
        ZERO if container.resources is None else _amounts(f"{path}.resources.requests", container.resources.requests)
    )
    if held is None or (held.resources is None and not held.allocatedResources):
        return asked
    has = _has(f"status of {container.name}", held.allocatedResources, held.resources)
    return asked.at_least(has) if is_feasible else has


def _has(path: str, allocated: Amounts | None, actual: _Requests | None) -> Resources:
    has = _amounts(f"{path}: allocatedResources", allocated)
    return has if actual is None else has.at_least(_amounts(f"{path}: resources.requests", actual.requests))


def _pod_level(spec: PodSpec, status: PodStatus, counted: Resources, *, is_feasible: bool) -> Resources:
    """A request on the pod itself replaces what its containers come to."""
    if spec.resources is None or not spec.resources.requests:
        return counted
    given = spec.resources.requests
    said = _amounts("spec.resources.requests", given)
    if status.resources is not None or status.allocatedResources:
        has = _has("status", status.allocatedResources, status.resources)
        said = said.at_least(has) if is_feasible else has
    return Resources(said.cpu if "cpu" in given else counted.cpu, said.mem if "memory" in given else counted.mem)


def _amounts(path: str, given: Amounts | None) -> Resources:
    if not given:
        return ZERO
    return Resources(
        cpu_from_wire(f"{path}.cpu", given.get("cpu", 0)), mem_from_wire(f"{path}.memory", given.get("memory", 0))
    )


# Addresses -----------------------------------------------------------------------------------------------------------


class PodAddresses:
    """The pods that have an address of their own, by that address."""

    def __init__(self) -> None:
        self._at: dict[str, dict[ObjectName, PodFacts]] = {}

    def change(self, before: PodFacts | None, after: PodFacts | None) -> None:
        """A pod as it was and as it is; None is one that is not there."""
        if before is not None:
            for address in before.addresses:
                self._at[address].pop(before.name, None)
                if not self._at[address]:
                    del self._at[address]
        if after is not None:
            for address in after.addresses:
                self._at.setdefault(address, {})[after.name] = after

    def only_pod_at(self, address: str) -> PodFacts | None:
        """The pod with that address; None where there is none, or more than one."""
        pods = self._at.get(address, {})
        return next(iter(pods.values())) if len(pods) == 1 else None
