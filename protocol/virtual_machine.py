"""Parses NeonVM's VirtualMachine objects, and creates the patch that resizes one (S4.2).

Rules that hold here:

- A slot of memory is a multiple of 8Mi; a VM has 1 to 512 slots; min <= use <= max for CPU and for memory.
- For autoscaling, the annotation ``bounds`` replaces the spec's bounds but is clipped to them. Bounds and ``use`` are
  clipped to what the running machine supports.
- A spec that breaks a rule raises ``InvalidObjectError`` with the path of the field; nothing is guessed.
- Invalid annotations, labels or status never make a VM unreadable. ``problems`` lists the invalid parts, and callers
  must assume the maximum for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, TypeVar

import msgspec

from protocol.field_errors import field_message, shown
from protocol.guest.sleep import SleepReport, sleep_report
from protocol.kubernetes.objects import JsonObject, annotations_of, child, labels_of, text
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_PERMIT, LABEL_ENABLED
from protocol.permits import decode_permit
from protocol.running_machine import RunningMachine, read_machine
from protocol.units import ZERO, Bytes, Resources
from protocol.wire.wire_quantities import WireQuantity, cpu_from_wire, cpu_to_wire, mem_from_wire, slot_count_from_wire

SLOT_GRANULE: Final = Bytes(8 * 1024**2)
"""Every slot size is a multiple of this."""

MAX_SLOTS: Final = 512

REMEMBERED_GUESTS: Final = 1_024
"""Number of cached guest sizes: thousands of VMs share a few, and most changes of a VM do not change its size."""


class InvalidObjectError(ValueError):
    """An API object breaks a rule; the message begins with the path of the field."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of autoscaling for a VM; ``min`` is within ``max``."""

    min: Resources
    max: Resources


class VirtualMachine(msgspec.Struct, frozen=True):
    """The part of a VirtualMachine that this project uses.

    ``problems`` lists invalid values outside of the spec, each with the path of its field. In that case ``bounds`` are
    the spec's (and ``has_bounds`` is False), ``permit`` is None although one may have been granted, and
    ``actual`` is None although the guest has some size; either may be up to ``at_most``. That is the maximum of the
    running machine, or of the spec if no machine is known, regardless of the annotation (None for an unreadable VM).

    ``use`` is the size in the spec, clipped to the running ``machine`` (None while none runs, or if the controller does
    not report it); if clipping changed it, ``after_restart`` is the size in the spec. ``actual`` is the guest's size
    from the status (None if not reported), ``growing_to`` the size that it may reach by orders in progress (zero if
    there are none); ``permit`` is the last permit that a scheduler stored. ``phase`` is empty before the controller
    sets it. ``sleep`` is the controller's report on sleep.
    ``unreadable`` says why the object is invalid, for callers that keep it with the largest sizes that it names.
    """

    name: ObjectName
    uid: str
    resource_version: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    bounds: Bounds
    use: Resources
    actual: Resources | None
    slot_size: Bytes
    pod_name: str | None
    node: str | None
    pod_ip: str | None
    phase: str
    enabled: bool
    permit: Resources | None
    problems: tuple[str, ...] = ()
    has_bounds: bool = True
    at_most: Resources | None = None
    unreadable: str = ""
    machine: RunningMachine | None = None
    after_restart: Resources | None = None
    sleep: SleepReport = SleepReport()
    growing_to: Resources = ZERO

    @property
    def wakes_with(self) -> Resources:
        """The size with which a sleeping guest resumes: at least its size before, even if the spec is smaller now."""
        return self.use.at_least(self.sleep.size)


class _Metadata(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - the name in the API


class _Range(msgspec.Struct, frozen=True):
    min: WireQuantity = 1
    max: WireQuantity | None = None
    use: WireQuantity | None = None


class _Guest(msgspec.Struct, frozen=True):
    cpus: _Range = _Range()
    memorySlots: _Range = _Range()  # noqa: N815 - the name in the API
    memorySlotSize: WireQuantity = "1Gi"  # noqa: N815 - the name in the API


class _Spec(msgspec.Struct, frozen=True):
    guest: _Guest


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec


class _Bound(msgspec.Struct, frozen=True):
    cpu: WireQuantity
    mem: WireQuantity


class _Bounds(msgspec.Struct, frozen=True):
    min: _Bound
    max: _Bound


_BOUNDS: Final = msgspec.json.Decoder(_Bounds)


def parse_virtual_machine(obj: Mapping[str, object]) -> VirtualMachine:
    """Parse a VirtualMachine from the API's JSON. Raises ``InvalidObjectError``.

    Defaults of the spec: a slot is 1Gi, ``min`` is 1, ``use`` is ``min`` and ``max`` is ``use``.

    >>> guest = {"cpus": {"min": "250m", "max": 4}, "memorySlots": {"min": 1, "max": 8}}
    >>> vm = parse_virtual_machine({"metadata": {"namespace": "default", "name": "db"}, "spec": {"guest": guest}})
    >>> str(vm.name), str(vm.use), str(vm.bounds.max)
    ('default/db', '250m cpu, 1Gi', '4 cpu, 8Gi')
    """
    try:
        return _virtual_machine(msgspec.convert(obj, _Object), obj)
    except (ValueError, RecursionError) as error:
        raise InvalidObjectError(field_message(error)) from None


def use_patch(use: Resources, slot_size: Bytes, before: Resources | None = None) -> dict[str, object]:
    """The merge patch that sets ``use``, with memory rounded down to whole slots.

    It omits an amount that equals ``before``'s: the amount may have been clipped to the running machine and thus
    lie outside of the spec's own bounds, and then the API server would reject the whole patch.

    >>> use_patch(Resources.parse("1500m", "2Gi"), Bytes.parse("1Gi"))
    {'spec': {'guest': {'cpus': {'use': '1500m'}, 'memorySlots': {'use': 2}}}}
    """
    guest: dict[str, object] = {}
    if before is None or use.cpu != before.cpu:
        guest["cpus"] = {"use": cpu_to_wire(use.cpu)}
    if before is None or use.mem != before.mem:
        guest["memorySlots"] = {"use": use.mem.units_down(slot_size)}
    return {"spec": {"guest": guest}}


def _virtual_machine(decoded: _Object, obj: JsonObject) -> VirtualMachine:
    meta, status = decoded.metadata, child(obj, "status")
    labels, annotations, problems = labels_of(obj), annotations_of(obj), list[str]()
    slot_size, spec_bounds, spec_use = _sizes(decoded.spec.guest)
    bounds = _annotated(ANNOTATION_BOUNDS, annotations, partial(_bounds, spec_bounds, slot_size, problems), problems)
    machine = _read_or_problem(partial(read_machine, status), problems)
    # The part of the spec beyond the running machine applies after the next restart.
    limits, use = _clipped(bounds or spec_bounds, spec_use, machine, slot_size)
    return VirtualMachine(
        name=ObjectName(meta.namespace, meta.name),
        uid=meta.uid,
        resource_version=meta.resourceVersion,
        labels=labels,
        annotations=annotations,
        bounds=limits,
        use=use,
        actual=_actual(status, problems),
        slot_size=slot_size,
        pod_name=text(status, "podName") or None,
        node=text(status, "node") or None,
        pod_ip=text(status, "podIP") or None,
        phase=text(status, "phase"),
        enabled=labels.get(LABEL_ENABLED) == "true",
        permit=_annotated(ANNOTATION_PERMIT, annotations, decode_permit, problems),
        has_bounds=bounds is not None or ANNOTATION_BOUNDS not in annotations,
        machine=machine,
        after_restart=spec_use if spec_use != use else None,
        # The annotation must not lower the maximum that is assumed for invalid parts.
        at_most=spec_bounds.max if machine is None else machine.most,
        growing_to=_read_or_problem(partial(_guest_size, child(status, "growingTo"), _GROWING), problems) or ZERO,
        # After everything that adds to them.
        problems=tuple(problems),
        sleep=sleep_report(obj),
    )


def _slot_size(quantity: WireQuantity) -> Bytes:
    path = "spec.guest.memorySlotSize"
    size = mem_from_wire(path, quantity)
    if not size or not size.is_multiple_of(SLOT_GRANULE):
        raise ValueError(f"{path}: expected a multiple of {SLOT_GRANULE} above zero, got {size}")
    return size


@lru_cache(REMEMBERED_GUESTS)
def _sizes(guest: _Guest) -> tuple[Bytes, Bounds, Resources]:
    """The slot size, the bounds and ``use``. Raises ``ValueError``, which is not cached."""
    slot_size = _slot_size(guest.memorySlotSize)
    cpu = [cpu_from_wire(path, value) for path, value in _filled("spec.guest.cpus", guest.cpus)]
    slots = [slot_count_from_wire(path, value) for path, value in _filled("spec.guest.memorySlots", guest.memorySlots)]
    _ordered("spec.guest.cpus", [c.value for c in cpu], cpu)
    _ordered("spec.guest.memorySlots", slots, slots)
    if slots[2] > MAX_SLOTS:
        raise ValueError(f"spec.guest.memorySlots.max: expected at most {MAX_SLOTS} slots, got {slots[2]}")
    # In order: min, use, max.
    low, use, high = (Resources(c, slot_size * s) for c, s in zip(cpu, slots, strict=True))
    return slot_size, Bounds(low, high), use


def _filled(path: str, bounds: _Range) -> list[tuple[str, WireQuantity]]:
    """The paths and values of min, use and max, in this order, with the defaults filled in."""
    # NeonVM's defaults: ``use`` is ``min``, and ``max`` is ``use``.
    use = bounds.min if bounds.use is None else bounds.use
    most = use if bounds.max is None else bounds.max
    return [(f"{path}.min", bounds.min), (f"{path}.use", use), (f"{path}.max", most)]


def _ordered(path: str, amounts: Sequence[int], written: Sequence[object]) -> None:
    low, use, high = amounts
    if not 0 < low <= use <= high:
        raise ValueError(
            f"{path}: expected 0 < min <= use <= max, got min {written[0]}, use {written[1]}, max {written[2]}"
        )


T = TypeVar("T")


def _annotated(name: str, annotations: Mapping[str, str], read: Callable[[str], T], problems: list[str]) -> T | None:
    """The decoded annotation; None if it is missing or invalid. An invalid one is added to ``problems``."""
    annotation = annotations.get(name)
    if annotation is None:
        return None
    try:
        return read(annotation)
    except (ValueError, RecursionError) as error:
        problems.append(_problem(name, field_message(error)))
        return None


def _problem(annotation: str, what: str) -> str:
    return f"metadata.annotations[{annotation}]: {what}"


def _bounds(spec: Bounds, slot_size: Bytes, problems: list[str], annotated: str) -> Bounds:
    """The intersection of the annotation and the spec; an empty one counts as invalid."""
    parsed = _BOUNDS.decode(annotated)
    low, high = _bound("min", parsed.min, slot_size), _bound("max", parsed.max, slot_size)
    both = Bounds(low.at_least(spec.min), high.at_most(spec.max))
    expected = f"expected min <= max, both within {spec.min} to {spec.max} as in spec.guest, got {low} to {high}"
    # If the annotation lies completely outside of the spec, no size is possible.
    if not (low.within(high) and both.min.within(both.max)):
        raise ValueError(expected)
    # Clip to the spec and report it, so that an outdated annotation does not make the VM unreadable.
    if both != Bounds(low, high):
        problems.append(_problem(ANNOTATION_BOUNDS, f"{expected}: using {both.min} to {both.max}"))
    return both


def _bound(path: str, bound: _Bound, slot_size: Bytes) -> Resources:
    size = Resources(cpu_from_wire(f"{path}.cpu", bound.cpu), mem_from_wire(f"{path}.mem", bound.mem))
    if not size.mem.is_multiple_of(slot_size):
        raise ValueError(f"{path}.mem: expected a multiple of the slot size {slot_size}, got {size.mem}")
    return size


def _clipped(
    bounds: Bounds, use: Resources, machine: RunningMachine | None, slot_size: Bytes
) -> tuple[Bounds, Resources]:
    """Bounds and use clipped to what the machine supports, the bounds in whole slots."""
    if machine is None:
        return bounds, use
    low, high, use = machine.clip(bounds.min), machine.clip(bounds.max), machine.clip(use)
    # A machine's memory may not be a multiple of the slot size.
    least, most = low.mem.up_to(slot_size), high.mem.down_to(slot_size)
    # If no size in whole slots fits the machine, the VM keeps its size.
    if least > most:
        least = most = use.mem
    return Bounds(Resources(low.cpu, least), Resources(high.cpu, most)), use


def _actual(status: JsonObject, problems: list[str]) -> Resources | None:
    actual = _read_or_problem(partial(_guest_size, status, "status"), problems)
    return actual if actual is not None and actual.cpu and actual.mem else None


_GROWING: Final = "status.growingTo"


def _guest_size(fields: JsonObject, path: str) -> Resources | None:
    cpus, memory = fields.get("cpus"), fields.get("memorySize")
    if cpus is None or memory is None:
        return None
    return Resources(_read(f"{path}.cpus", cpus, cpu_from_wire), _read(f"{path}.memorySize", memory, mem_from_wire))


def _read_or_problem(read: Callable[[], T | None], problems: list[str]) -> T | None:
    try:
        return read()
    except ValueError as error:
        problems.append(str(error))
        return None


def _read(path: str, value: object, read: Callable[[str, WireQuantity], T]) -> T:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{path}: expected a quantity, got {shown(value)}")
    return read(path, value)
