"""The sentence for people when no node has room for a VM that is to move. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.units import Resources
from scheduler_plugin.placement import Room
from scheduler_plugin.planner.wording import some


def no_room(rooms: Iterable[Room], need: Resources) -> str:
    """The sentence about ``rooms``, for people; empty if one of them has room for ``need``."""
    candidates = [room for room in rooms if room.is_open]
    if any(need.within(room.free) for room in candidates):
        return ""
    if not candidates:
        return "no other node takes pods"
    # The name decides between equals, so that the sentence does not change from look to look.
    nearest = min(candidates, key=lambda room: (_lacking_share(room, need), room.node))
    lacking = some(need.minus_or_zero(nearest.free))
    return f"no node has room for {some(need)}; {nearest.node} comes nearest, it lacks {lacking}"


def _lacking_share(room: Room, need: Resources) -> float:
    """The greater share of CPU or memory that the node lacks of ``need``."""
    lacking = need.minus_or_zero(room.free)
    return max(lacking.cpu.value / max(1, need.cpu.value), lacking.mem.value / max(1, need.mem.value))
