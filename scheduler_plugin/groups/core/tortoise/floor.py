"""The floor of a single VM: half of what the same slot needed at its peak, and for its agent the least (S3.7).

- A VM's size is what its agent proved or asked to need, a floor included. Half of a peak cannot keep itself alive,
  because the peak fades each time that its slot comes again.
- A floor rises a little before its slot, lies within the bounds, and ends by itself unless it is renewed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction

from protocol.floors import Floor
from protocol.units import Bytes, MilliCpu, Resources
from protocol.virtual_machine import Bounds
from scheduler_plugin.groups.core.tortoise.configuration import FLOOR_LEAD, FLOOR_LIFE, FLOOR_SHARE, SLOT_DECAY
from scheduler_plugin.groups.core.tortoise.slots import SlotLayout, SlotMemory
from scheduler_plugin.groups.core.tortoise.tortoise_memory import TortoiseMode


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most that each slot needed: thousandths of a vCPU, and bytes."""

    cpu: SlotMemory
    memory: SlotMemory

    @classmethod
    def empty(cls, layout: SlotLayout) -> Peaks:
        """Nothing is known yet."""
        return cls(SlotMemory(layout), SlotMemory(layout))

    def learned(self, use: Resources, layout: SlotLayout, now: datetime) -> Peaks:
        """After the VM was seen with ``use``; the old state is converted to ``layout``."""
        cpu, memory = self.cpu.laid_out(layout), self.memory.laid_out(layout)
        return Peaks(cpu.learned(use.cpu.value, SLOT_DECAY, now), memory.learned(use.mem.value, SLOT_DECAY, now))

    def of_slots(self, *moments: datetime) -> Resources:
        """The most of the slots of ``moments``; nothing for those that are not known."""
        return Resources(
            MilliCpu(max(self.cpu.exactly_at(moment) for moment in moments)),
            Bytes(max(self.memory.exactly_at(moment) for moment in moments)),
        )

    @property
    def most(self) -> Resources:
        """The most of all slots."""
        return Resources(MilliCpu(self.cpu.most or 0), Bytes(self.memory.most or 0))


def wanted_floor(peaks: Peaks, mode: TortoiseMode, bounds: Bounds, now: datetime) -> Resources | None:
    """The floor that should hold at ``now``; None if it would change nothing, or nothing is to be written.

    In an emergency it is the maximum of all slots: nothing shrinks below what was ever needed.
    """
    if mode is TortoiseMode.OFF:
        return None
    peak = peaks.most if mode is TortoiseMode.EMERGENCY else peaks.of_slots(now, now + FLOOR_LEAD)
    share = Fraction(1) if mode is TortoiseMode.EMERGENCY else FLOOR_SHARE
    # A floor never asks for more than the VM may have.
    floor = Resources(peak.cpu.scaled(share), peak.mem.scaled(share)).at_most(bounds.max)
    # The VM has at least that much anyway, so an annotation would change nothing.
    return None if floor.within(bounds.min) else floor


def renewed(old: Floor | None, size: Resources | None, now: datetime, life: timedelta = FLOOR_LIFE) -> Floor | None:
    """The floor to write: ``old`` while it says the same and lasts for another half of its ``life``."""
    if size is None:
        return None
    if old is not None and old.size == size:
        lasts = timedelta(seconds=old.until - now.timestamp())
        # Renewed at half of its life, so that not every look is a write. One that lasts too long comes from another
        # clock.
        if life / 2 <= lasts <= life:
            return old
    # The timestamp in the annotation has whole seconds.
    return Floor(size, float(int((now + life).timestamp())))
