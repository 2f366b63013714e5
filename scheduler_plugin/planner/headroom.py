"""Headroom of the cluster: has it lasted long enough to move VMs before any is denied (B.17)? Pure."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from protocol.units import Instant, Seconds
from scheduler_plugin.placement.verdict import Room

MAX_RESERVED_SHARE: Final = Fraction(17, 20)
"""A cluster has headroom while at most this share of all open nodes' watermarks is reserved."""

LASTING: Final = Seconds(3600.0)
"""How long the cluster must have had headroom."""

LACKING: Final = Seconds(600.0)
"""After so long without headroom, the VMs of nodes that are short of room grow only by need."""


class Headroom:
    """Tracks how long the cluster has had headroom, or none.

    A fuller cluster needs its emptiest nodes for denied VMs, and a moved VM stays in cooldown for an hour. So a cluster
    that load fills every hour or so never counts as having headroom.
    """

    def __init__(self) -> None:
        self._full_at: Instant | None = None
        self._roomy_at: Instant | None = None

    def has_lasted(self, rooms: Mapping[str, Room], now: Instant) -> bool:
        """Record the current ``rooms``. Return True if the cluster has had headroom for all of ``LASTING``."""
        has_headroom = _has_headroom(rooms)
        # After a start, the past is unknown.
        if self._full_at is None or not has_headroom:
            self._full_at = now
        if self._roomy_at is None or has_headroom:
            self._roomy_at = now
        return self.was_lasting(now)

    def was_lasting(self, now: Instant) -> bool:
        """Return True if the cluster had had headroom for ``LASTING`` when last observed."""
        return self._full_at is not None and now - self._full_at >= LASTING

    def is_lacking(self, now: Instant) -> bool:
        """Return True if the cluster had had no headroom for ``LACKING`` when last observed."""
        return self._roomy_at is not None and now - self._roomy_at >= LACKING


def _has_headroom(rooms: Mapping[str, Room]) -> bool:
    cpu = mem = cpu_mark = mem_mark = 0
    # Plain numbers, because this runs for every node.
    for room in rooms.values():
        if room.is_open:
            used, mark = room.reserved, room.watermark
            cpu, cpu_mark = cpu + used.cpu.value, cpu_mark + mark.cpu.value
            mem, mem_mark = mem + used.mem.value, mem_mark + mark.mem.value
    return cpu <= cpu_mark * MAX_RESERVED_SHARE and mem <= mem_mark * MAX_RESERVED_SHARE
