"""Decides if a cluster has had room for long enough to move VMs before any is denied (B.17). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from protocol.units import Instant, Seconds
from scheduler_plugin.placement.verdict import Room

ROOMY: Final = Fraction(17, 20)
"""Maximum share of all open nodes' watermarks that is reserved in a cluster with room."""

LASTING: Final = Seconds(3600.0)
"""Minimum time below ``ROOMY``."""


class Roominess:
    """Observes how long the cluster has had room.

    A fuller cluster needs its emptiest nodes for VMs that are denied, and a VM that has moved must not move again for
    an hour. So loads that fill the cluster every hour or so do not count as room in between.
    """

    def __init__(self) -> None:
        self._full_at: Instant | None = None

    def has_lasted(self, rooms: Mapping[str, Room], now: Instant) -> bool:
        """Return True if the cluster with these ``rooms`` has had room for ``LASTING``, observed without a break."""
        # After a start, the past is unknown.
        if self._full_at is None or not _is_roomy(rooms):
            self._full_at = now
        return self.lasts(now)

    def lasts(self, now: Instant) -> bool:
        """Return True if the cluster had room for ``LASTING`` when last observed."""
        return self._full_at is not None and now - self._full_at >= LASTING


def _is_roomy(rooms: Mapping[str, Room]) -> bool:
    cpu = mem = cpu_mark = mem_mark = 0
    # Plain numbers, because this runs for every node.
    for room in rooms.values():
        if room.is_open:
            used, mark = room.reserved, room.watermark
            cpu, cpu_mark = cpu + used.cpu.value, cpu_mark + mark.cpu.value
            mem, mem_mark = mem + used.mem.value, mem_mark + mark.mem.value
    return cpu <= cpu_mark * ROOMY and mem <= mem_mark * ROOMY
