"""Decodes VirtualMachines into facts for the ledger (S4.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from msgspec.structs import asdict, replace

from protocol import names
from protocol.guest.sleep import SLEEPING, WAKING
from protocol.kubernetes.objects import (
    JsonObject,
    child,
    flag,
    integer,
    items,
    name_of,
    number,
    text,
    texts,
    uid_of,
    version_of,
)
from protocol.messages import ObjectName
from protocol.permits import decode_holders, decode_permit, encode_permit
from protocol.units import ZERO, Bytes, MilliCpu, Resources
from protocol.virtual_machine import Bounds, VirtualMachine, parse_virtual_machine
from protocol.wire.wire_quantities import WireQuantity, cpu_from_wire, mem_from_wire, slot_count_from_wire
from scheduler_plugin.cluster.scheduling_fields import pod_constraints
from scheduler_plugin.constraints.model import UNCONSTRAINED, PodConstraints
from scheduler_plugin.ledger.facts import DEFAULT_WEIGHT, MAX_WEIGHT, RUNNING, WITHOUT_GUEST, VmFacts
from scheduler_plugin.texts import explanations

DEFAULT_SLOT: Final = Bytes.parse("1Gi")

_PERMIT: Final = f"metadata.annotations[{names.ANNOTATION_PERMIT}]"

Q = TypeVar("Q", MilliCpu, Bytes, int)


class ClusterVm(VirtualMachine, frozen=True):
    """A VirtualMachine with the fields that restrict its migration."""

    constraints: PodConstraints = UNCONSTRAINED
    has_overlay: bool = True  # its guest keeps its IP address when it moves
    is_booting: bool = False  # reported by its controller, which would refuse to move it
    is_waking: bool = False  # in phase Running while its saved memory is still being read
    first_requests: Resources | None = None  # in ``podResources``
    generation: int = 0  # changes with the spec only; 0 if not reported


def read_vm(obj: JsonObject) -> ClusterVm:
    """Decode a VirtualMachine. Raises ``ValueError``."""
    vm, spec = parse_virtual_machine(obj), child(obj, "spec")
    has_overlay = flag(spec, "extraNetwork", "enable") or bool(text(obj, "status", "extraNetIP"))
    # The controller sets this reason while the guest boots, and refuses to migrate the VM.
    booting = any(text(condition, "reason") == names.BOOTING for condition in items(obj, "status", "conditions"))
    return ClusterVm(
        **asdict(vm),
        constraints=pod_constraints(spec),
        has_overlay=has_overlay,
        is_booting=booting,
        is_waking=vm.phase == RUNNING and text(obj, "status", "sleep", "state") == WAKING,
        first_requests=_first_requests(spec),
        generation=integer(obj, "metadata", "generation"),
    )


def with_permit(vm: ClusterVm, permit: Resources, answer: JsonObject) -> ClusterVm | None:
    """``vm`` after the response to a write of ``permit`` to its version; None if more may have changed.

    A webhook's change shows in the UID, generation, labels or annotations, and this call writes no status, so the rest
    of the response need not be decoded.
    """
    metadata = answer.get("metadata")
    # Without a generation a spec change does not show, and an object with problems must be decoded whole.
    if not vm.generation or vm.problems or vm.unreadable or type(metadata) is not dict:
        return None
    annotations, version = metadata.get("annotations"), metadata.get("resourceVersion")
    if type(annotations) is not dict or type(version) is not str:
        return None
    written = {
        names.ANNOTATION_PERMIT: encode_permit(permit),
        names.ANNOTATION_PERMIT_WRITER: text(annotations, names.ANNOTATION_PERMIT_WRITER),
    }
    answered = metadata.get("uid"), metadata.get("generation"), metadata.get("labels", {}), annotations
    if answered != (vm.uid, vm.generation, vm.labels, {**vm.annotations, **written}):
        return None
    return replace(vm, resource_version=version, annotations=annotations, permit=permit)


def vm_facts(vm: ClusterVm) -> VmFacts:
    """Facts of a VirtualMachine. A resourceVersion that is not a number counts as older than any other."""
    # Without an agent no permit controls the wake, so the spec counts.
    sleeps = vm.phase in SLEEPING and vm.enabled and not vm.unreadable
    use = vm.wakes_with if vm.phase in SLEEPING or vm.is_waking else vm.use
    return VmFacts(
        name=vm.name,
        uid=vm.uid,
        version=number(vm.resource_version),
        maximum=vm.bounds.max,
        use=ZERO if sleeps else use,
        # The status may still have the size of a stopped guest.
        actual=None if sleeps or vm.phase in WITHOUT_GUEST else _or_maximum(_actual(vm), vm, "status."),
        permit=_or_maximum(vm.permit, vm, _PERMIT),
        holders=decode_holders(vm.annotations.get(names.ANNOTATION_PERMIT_WRITER, "")),
        # The stand-in of an unreadable permit is not a stored permit.
        is_permit_known=not any(problem.startswith(_PERMIT) for problem in vm.problems),
        pod=ObjectName(vm.name.namespace, vm.pod_name) if vm.pod_name else None,
        stays_because=_stays_because(vm),
        auto_migration=_auto_migration(vm),
        phase=vm.phase,
        has_agent=vm.enabled,
        granted=_granted(vm),
        unreadable=vm.unreadable,
        is_bounded=bool(vm.bounds.max.cpu and vm.bounds.max.mem),
        constraints=vm.constraints,
        first_requests=vm.first_requests,
        after_restart=vm.after_restart,
        is_booting=vm.is_booting,
        limit=_limit(vm),
        weight=weight_of(vm) or DEFAULT_WEIGHT,
        wakes_with=use if sleeps else None,
        is_waking=vm.is_waking,
    )


def _actual(vm: ClusterVm) -> Resources | None:
    """The size that the guest has, or may reach before its controller reports again."""
    return vm.actual if not vm.growing_to.any else vm.growing_to.at_least(vm.actual or ZERO)


def weight_of(vm: VirtualMachine) -> int | None:
    """The weight in the VM's label; None if missing or not an integer from 1 to 100."""
    label = vm.labels.get(names.LABEL_WEIGHT, "")
    # Digits may be many, or not ASCII.
    weight = int(label) if len(label) <= len(str(MAX_WEIGHT)) and label.isascii() and label.isdigit() else 0
    return weight if 0 < weight <= MAX_WEIGHT else None


def _limit(vm: VirtualMachine) -> Resources:
    """Maximum that the VM may have been granted, even before its bounds were lowered."""
    return vm.bounds.max if vm.at_most is None else vm.at_most


def _first_requests(spec: JsonObject) -> Resources | None:
    requests = child(spec, "podResources", "requests")
    if not requests:
        return ZERO
    cpu, mem = _read(cpu_from_wire, requests.get("cpu", 0)), _read(mem_from_wire, requests.get("memory", 0))
    return None if cpu is None or mem is None else Resources(cpu, mem)


def _granted(vm: VirtualMachine) -> Resources:
    """The original scheduler's grant, at most the VM's limit."""
    annotated = vm.annotations.get(names.ANNOTATION_APPROVED)
    if annotated is None or not vm.enabled:
        return ZERO
    try:
        # Its agent uses the grant without asking, under any scheduler, so it counts while it is on the VM (B.11).
        return decode_permit(annotated).at_most(_limit(vm))
    except ValueError:
        # An unreadable grant may be anything up to the limit.
        return _limit(vm)


def _stays_because(vm: ClusterVm) -> str | None:
    if not vm.enabled:
        return explanations.NOT_AUTOSCALED
    if vm.unreadable:
        return explanations.NOT_READABLE
    if not vm.has_overlay:
        return explanations.NO_OVERLAY
    return explanations.BOOTING if vm.is_booting else None


def _auto_migration(vm: VirtualMachine) -> bool | None:
    """The VM's opt-in or opt-out of migration, by label or annotation; None if it has neither."""
    choices = vm.labels.get(names.AUTO_MIGRATION), vm.annotations.get(names.AUTO_MIGRATION)
    # An opt-out wins.
    return False if "false" in choices else True if "true" in choices else None


def _or_maximum(amount: Resources | None, vm: VirtualMachine, path: str) -> Resources | None:
    """An amount of the object, or the maximum if something at ``path`` is unreadable."""
    if not vm.problems:
        return amount
    return vm.at_most if any(problem.startswith(path) for problem in vm.problems) else amount


def vm_at_most(obj: JsonObject, reason: str) -> ClusterVm:
    """A VirtualMachine that cannot be decoded for ``reason``, from its readable parts. Never raises.

    ``use`` is the largest size in its spec or status; zero in ``bounds.max`` means no bound.
    """
    guest, status, labels = child(obj, "spec", "guest"), child(obj, "status"), texts(obj, "metadata", "labels")
    # The CRD's default.
    slot = _read(mem_from_wire, guest.get("memorySlotSize", "1Gi"))
    cpus = _sizes(cpu_from_wire, guest.get("cpus", {}), MilliCpu.cores(1))
    counts = _sizes(slot_count_from_wire, guest.get("memorySlots", {}), 1)
    # An unreadable size may be the largest: zero, no bound.
    mems = None if counts is None or slot is None else [slot * count for count in counts]
    high = Resources(max(cpus) if cpus else MilliCpu(0), max(mems) if mems else Bytes(0))
    # A growth has not ended because its VM became unreadable.
    has, growing_to = (
        Resources(
            _read(cpu_from_wire, sizes.get("cpus")) or MilliCpu(0),
            _read(mem_from_wire, sizes.get("memorySize")) or Bytes(0),
        )
        for sizes in (status, child(status, "growingTo"))
    )
    return ClusterVm(
        name=name_of(obj),
        uid=uid_of(obj),
        resource_version=version_of(obj),
        labels=labels,
        annotations=texts(obj, "metadata", "annotations"),
        bounds=Bounds(ZERO, high),
        use=high.at_least(has).at_least(growing_to),
        actual=None,
        slot_size=slot or DEFAULT_SLOT,
        pod_name=text(status, "podName") or None,
        node=text(status, "node") or None,
        pod_ip=text(status, "podIP") or None,
        phase=text(status, "phase"),
        enabled=labels.get(names.LABEL_ENABLED) == "true",
        # Its agent keeps using the permit once the VM is readable.
        permit=_permit_at_most(obj, high),
        unreadable=reason,
    )


def _permit_at_most(obj: JsonObject, high: Resources) -> Resources | None:
    """The stored permit; ``high`` if unreadable, None if missing."""
    annotated = texts(obj, "metadata", "annotations").get(names.ANNOTATION_PERMIT)
    if annotated is None:
        return None
    try:
        return decode_permit(annotated)
    except ValueError:
        return high


def _sizes(read: Callable[[str, WireQuantity], Q], value: object, default: Q) -> list[Q] | None:
    """All sizes of a range; None if one is unreadable, because the largest is then unknown."""
    if not isinstance(value, Mapping):
        return None
    sizes = [default]
    for key in ("min", "use", "max"):
        size = default if value.get(key) is None else _read(read, value[key])
        if size is None:
            return None
        sizes.append(size)
    return sizes


def _read(read: Callable[[str, WireQuantity], Q], quantity: object) -> Q | None:
    # A Python bool is an int, but not a quantity.
    if isinstance(quantity, bool) or not isinstance(quantity, int | float | str):
        return None
    try:
        return read("", quantity)
    except ValueError:
        return None
