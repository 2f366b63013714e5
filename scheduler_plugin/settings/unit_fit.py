"""Check that a node's compute unit fits a VM. Pure.

A VM is sized in whole compute units within its bounds (S4.6). If the unit is larger than the range between the bounds,
any growth goes straight to the maximum. If a bound is not a whole number of units, or a unit not a whole number of
memory slots, sizes are rounded, and the VM has more or less than its agent says.
"""

from __future__ import annotations

from protocol.units import Amount, Bytes, ComputeUnit
from protocol.virtual_machine import Bounds
from scheduler_plugin.texts import events


def misfit(bounds: Bounds, slot_size: Bytes, unit: ComputeUnit) -> str | None:
    """The reason why VMs with these bounds cannot be sized well in this unit; None if they can.

    A resource whose bounds are equal is ignored: it never changes.
    """
    cpu = _amount_misfit("CPU", bounds.min.cpu, bounds.max.cpu, unit.cpu)
    memory = _amount_misfit("memory", bounds.min.mem, bounds.max.mem, unit.mem)
    # Memory is plugged in slots, so a unit that is not a multiple of the slot is always rounded.
    if memory is None and bounds.min.mem < bounds.max.mem and not unit.mem.is_multiple_of(slot_size):
        memory = events.SLOTS_MISFIT.format(unit=unit.mem, slot=slot_size)
    return "; ".join(filter(None, (cpu, memory))) or None


def _amount_misfit(what: str, least: Amount, most: Amount, unit: Amount) -> str | None:
    if least.value == most.value:
        return None
    # Any growth would go straight to the maximum.
    if unit.value > most.value - least.value:
        return events.UNIT_TOO_LARGE.format(what=what, unit=unit, least=least, most=most)
    if least.value % unit.value or most.value % unit.value:
        return events.BOUNDS_MISFIT.format(what=what, unit=unit, least=least, most=most)
    return None
