"""VirtualMachines of the Kubernetes API into facts for the ledger (S4.2).

Rules that hold here:

- A VM that cannot be read counts as the most that it may be: the largest size that its object names anywhere. Where it
  does not name its maximum, what it may be has no bound.
- A permit that cannot be read counts as the most that it may have been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from protocol.kubernetes.objects import JsonObject, child, name_of, number, text, texts, uid_of, version_of
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_PERMIT, LABEL_AUTO_MIGRATION, LABEL_ENABLED
from protocol.units import ZERO, Bytes, MilliCpu, Resources
from protocol.virtual_machine import Bounds, VirtualMachine
from protocol.wire_quantities import WireQuantity, cpu_from_wire, mem_from_wire, slot_count_from_wire
from scheduler_plugin.ledger import VmFacts
from scheduler_plugin.ledger.facts import WITHOUT_GUEST

DEFAULT_SLOT: Final = Bytes.parse("1Gi")

Q = TypeVar("Q", MilliCpu, Bytes, int)


def vm_facts(vm: VirtualMachine) -> VmFacts:
    """A VirtualMachine as the ledger wants it. A resourceVersion that is no number counts as the oldest."""
    return VmFacts(
        name=vm.name,
        uid=vm.uid,
        version=number(vm.resource_version),
        most=vm.bounds.max,
        use=vm.use,
        actual=None if vm.phase in WITHOUT_GUEST else _or_most(vm.actual, vm, "status."),
        permit=_or_most(vm.permit, vm, f"metadata.annotations[{ANNOTATION_PERMIT}]"),
        pod=ObjectName(vm.name.namespace, vm.pod_name) if vm.pod_name else None,
        may_move=vm.enabled and not vm.unreadable and vm.labels.get(LABEL_AUTO_MIGRATION) != "false",
        phase=vm.phase,
        has_agent=vm.enabled,
        unreadable=vm.unreadable,
        is_bounded=bool(vm.bounds.max.cpu and vm.bounds.max.mem),
    )


def _or_most(amount: Resources | None, vm: VirtualMachine, path: str) -> Resources | None:
    """An amount of the object, or the most that it may be where something at ``path`` cannot be read."""
    return vm.at_most if any(problem.startswith(path) for problem in vm.problems) else amount


def vm_at_most(obj: JsonObject, reason: str) -> VirtualMachine:
    """A VirtualMachine that cannot be read for ``reason``, as far as it can. Never raises.

    ``use`` is the largest size that is named anywhere; what of ``bounds.max`` is zero has no bound.
    """
    guest, status, labels = child(obj, "spec", "guest"), child(obj, "status"), texts(obj, "metadata", "labels")
    slot = _read(mem_from_wire, guest.get("memorySlotSize", "1Gi"))
    cpus = _sizes(cpu_from_wire, guest.get("cpus", {}), MilliCpu.cores(1))
    counts = _sizes(slot_count_from_wire, guest.get("memorySlots", {}), 1)
    mems = None if counts is None or slot is None else [slot * count for count in counts]
    high = Resources(max(cpus) if cpus else MilliCpu(0), max(mems) if mems else Bytes(0))
    has = Resources(
        _read(cpu_from_wire, status.get("cpus")) or MilliCpu(0),
        _read(mem_from_wire, status.get("memorySize")) or Bytes(0),
    )
    return VirtualMachine(
        name=name_of(obj),
        uid=uid_of(obj),
        resource_version=version_of(obj),
        labels=labels,
        annotations=texts(obj, "metadata", "annotations"),
        bounds=Bounds(ZERO, high),
        use=high.at_least(has),
        actual=None,
        slot_size=slot or DEFAULT_SLOT,
        pod_name=text(status, "podName") or None,
        node=text(status, "node") or None,
        pod_ip=text(status, "podIP") or None,
        phase=text(status, "phase"),
        enabled=labels.get(LABEL_ENABLED) == "true",
        permit=None,
        unreadable=reason,
    )


def _sizes(read: Callable[[str, WireQuantity], Q], given: object, default: Q) -> list[Q] | None:
    """Every size of a range; None where one of them cannot be read, so that the largest is not known."""
    if not isinstance(given, Mapping):
        return None
    sizes = [default]
    for key in ("min", "use", "max"):
        size = default if given.get(key) is None else _read(read, given[key])
        if size is None:
            return None
        sizes.append(size)
    return sizes


def _read(read: Callable[[str, WireQuantity], Q], quantity: object) -> Q | None:
    if isinstance(quantity, bool) or not isinstance(quantity, int | float | str):
        return None
    try:
        return read("", quantity)
    except ValueError:
        return None
