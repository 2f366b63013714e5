"""Rounding a need to the sizes that a VM may ask for (S4.6).

Rules that hold here:

- A request is a whole multiple of the compute unit in each resource, and whole memory slots.
- A permit need not be a multiple; what a VM takes of it is whole slots, rounded down.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TypeVar

from protocol.units import Amount, Bytes, ComputeUnit, Resources
from protocol.virtual_machine import Bounds


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of one VM: its bounds, its slots, and the compute unit of its node."""

    unit: ComputeUnit
    bounds: Bounds
    slot_size: Bytes

    def covering(self, need: Resources) -> Resources:
        """The least size that covers ``need`` with whole compute units, within the bounds."""
        return self.rounded(self.unit * need.units_up(self.unit))

    def rounded(self, amounts: Resources) -> Resources:
        """Each amount up to a multiple, within the bounds."""
        # Bounds first, then steps: a minimum that is no multiple is rounded up as well.
        return self.not_less(amounts.at_least(self.bounds.min)).at_most(self.bounds.max)

    def not_less(self, amounts: Resources) -> Resources:
        """Each amount up to a multiple, but not past the maximum unless the amount itself is past it."""
        most, mem_step = self.bounds.max, lcm(self.unit.mem.value, self.slot_size.value)
        return Resources(
            _stepped(amounts.cpu, self.unit.cpu.value, most.cpu),
            _stepped(amounts.mem, mem_step, most.mem),
        )


def whole_slots(amounts: Resources, slot_size: Bytes) -> Resources:
    """``amounts`` with memory rounded down to whole slots."""
    return Resources(amounts.cpu, amounts.mem.down_to(slot_size))


A = TypeVar("A", bound=Amount)


def _stepped(amount: A, step: int, most: A) -> A:
    missing = -amount.value % step
    if not missing:
        return amount
    up = amount.value + missing
    # A maximum that is no multiple may be asked for exactly, so that all of it can be used.
    return most if amount.value <= most.value < up else type(amount)(up)
