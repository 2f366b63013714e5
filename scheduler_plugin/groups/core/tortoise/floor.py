"""The floor of a single VM: half of the peak of the same slot, as a minimum for its agent (S3.7).

- Half of a peak cannot sustain itself, although a VM's size includes its floor: the peak decays each time its slot
  recurs.
- A floor rises a little before its slot, is within the bounds, and expires unless renewed.
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
        """Updated with the VM's ``use``, and converted to ``layout``."""
        cpu, memory = self.cpu.laid_out(layout), self.memory.laid_out(layout)
        return Peaks(cpu.learned(use.cpu.value, SLOT_DECAY, now), memory.learned(use.mem.value, SLOT_DECAY, now))

    def of_slots(self, *moments: datetime) -> Resources:
        """Maximum of the slots of ``moments``; zero if unknown."""
        return Resources(
            MilliCpu(max(self.cpu.exactly_at(moment) for moment in moments)),
            Bytes(max(self.memory.exactly_at(moment) for moment in moments)),
        )

    @property
    def most(self) -> Resources:
        """Maximum of all slots."""
        return Resources(MilliCpu(self.cpu.most or 0), Bytes(self.memory.most or 0))


def wanted_floor(peaks: Peaks, mode: TortoiseMode, bounds: Bounds, now: datetime) -> Resources | None:
    """The floor at ``now``; None if it would change nothing, or nothing is to be written.

    In an emergency it is the maximum of all slots.
    """
    if mode is TortoiseMode.OFF:
        return None
    peak = peaks.most if mode is TortoiseMode.EMERGENCY else peaks.of_slots(now, now + FLOOR_LEAD)
    share = Fraction(1) if mode is TortoiseMode.EMERGENCY else FLOOR_SHARE
    # At most the VM's maximum.
    floor = Resources(peak.cpu.scaled(share), peak.mem.scaled(share)).at_most(bounds.max)
    # The VM has at least that much anyway.
    return None if floor.within(bounds.min) else floor


def renewed(old: Floor | None, size: Resources | None, now: datetime, life: timedelta = FLOOR_LIFE) -> Floor | None:
    """The floor to write: ``old`` while it is equal and has at least half of its ``life`` left."""
    if size is None:
        return None
    if old is not None and old.size == size:
        lasts = timedelta(seconds=old.until - now.timestamp())
        # Renew at half of its life to save writes. A longer rest is from another clock.
        if life / 2 <= lasts <= life:
            return old
    # The timestamp in the annotation has whole seconds.
    return Floor(size, float(int((now + life).timestamp())))
