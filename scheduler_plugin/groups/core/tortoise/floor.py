"""The floor of a single VM, a minimum size for its agent: half of the peak of the same time slot (S3.7).

- Although the sizes that are learned include the floor, it does not sustain itself: it is half of the peak, which
  decays each time its slot recurs.
- A floor rises a little before its slot, is at most the VM's maximum, and expires unless renewed.
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
    """Peak of each slot, in thousandths of a vCPU and bytes."""

    cpu: SlotMemory
    memory: SlotMemory

    @classmethod
    def empty(cls, layout: SlotLayout) -> Peaks:
        """Without data."""
        return cls(SlotMemory(layout), SlotMemory(layout))

    def learned(self, use: Resources, layout: SlotLayout, now: datetime) -> Peaks:
        """Convert to ``layout``, and update with the VM's ``use``."""
        cpu, memory = self.cpu.converted_to(layout), self.memory.converted_to(layout)
        return Peaks(cpu.learned(use.cpu.value, SLOT_DECAY, now), memory.learned(use.mem.value, SLOT_DECAY, now))

    def of_slots(self, *moments: datetime) -> Resources:
        """Maximum peak of the slots at these times; zero if unknown."""
        return Resources(
            MilliCpu(max(self.cpu.at_or_zero(moment) for moment in moments)),
            Bytes(max(self.memory.at_or_zero(moment) for moment in moments)),
        )

    @property
    def maximum(self) -> Resources:
        """Maximum peak of all slots."""
        return Resources(MilliCpu(self.cpu.maximum or 0), Bytes(self.memory.maximum or 0))


def desired_floor(peaks: Peaks, mode: TortoiseMode, bounds: Bounds, now: datetime) -> Resources | None:
    """The floor at ``now``, in an emergency the maximum of all slots.

    None if the mode is Off, or the floor is not above the VM's minimum.
    """
    if mode is TortoiseMode.OFF:
        return None
    peak = peaks.maximum if mode is TortoiseMode.EMERGENCY else peaks.of_slots(now, now + FLOOR_LEAD)
    share = Fraction(1) if mode is TortoiseMode.EMERGENCY else FLOOR_SHARE
    floor = Resources(peak.cpu.scaled(share), peak.mem.scaled(share)).at_most(bounds.max)
    return None if floor.within(bounds.min) else floor


def renewed(old: Floor | None, size: Resources | None, now: datetime, lifetime: timedelta = FLOOR_LIFE) -> Floor | None:
    """The floor to write for ``size``: ``old`` if it has that size and at least half of its ``lifetime`` left."""
    if size is None:
        return None
    if old is not None and old.size == size:
        lasts = timedelta(seconds=old.until - now.timestamp())
        # Renew at half of its life to save writes. More than its life left means that another clock set it.
        if lifetime / 2 <= lasts <= lifetime:
            return old
    # The timestamp in the annotation has whole seconds.
    return Floor(size, float(int((now + lifetime).timestamp())))
