"""The floor that a Tortoise keeps under a single VM, played on a recording that begins on a Monday in UTC (S3.7)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from protocol.units import Bytes, MilliCpu, Resources
from protocol.virtual_machine import Bounds
from scheduler_plugin.groups.core.tortoise.floor import Peaks, wanted_floor
from scheduler_plugin.groups.core.tortoise.phases import TortoiseMode
from scheduler_plugin.groups.core.tortoise.slots import SlotLayout

BEGIN: Final = datetime(2026, 5, 4, tzinfo=UTC)
LOOK: Final = 60.0
"""Seconds from one look at the VM to the next."""

_LAYOUT: Final = SlotLayout(1, "daily", ZoneInfo("UTC"))
_NO_MEMORY: Final = Bytes(0)


class SlotFloor:
    """The floor of one VM of at most ``cap`` vCPUs, from what it was given in the same hour of the days before."""

    def __init__(self, cap: float) -> None:
        self._bounds = Bounds(Resources(MilliCpu(0), _NO_MEMORY), Resources(MilliCpu.cores(cap), _NO_MEMORY))
        self._peaks, self._looked, self._floor = Peaks.empty(_LAYOUT), -LOOK, 0.0

    def at(self, seconds: float, given: float) -> float:
        """The least that the VM goes to at that time, in vCPUs; it has ``given``."""
        # Peaks are learned by the minute; a recording may have a step of a second.
        if seconds - self._looked >= LOOK:
            self._looked, now = seconds, BEGIN + timedelta(seconds=seconds)
            self._peaks = self._peaks.learned(Resources(MilliCpu.cores(given), _NO_MEMORY), _LAYOUT, now)
            floor = wanted_floor(self._peaks, TortoiseMode.AUTO, self._bounds, now)
            self._floor = 0.0 if floor is None else floor.cpu.as_cores
        return self._floor
