"""Effective intervals shrink only after less has been enough for a while (S1.12). Growth never waits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from scheduler_plugin.groups.core.hvpa.spec import ScalingTimes, Shrinking
from scheduler_plugin.groups.core.hvpa.wishes import Recommendation


def at_most_needed(memory: ScalingTimes, wish: Recommendation) -> Recommendation:
    """The wish; one for less goes no lower than the maximum need since less has been enough."""
    waiting = _known(memory, wish)
    # The maximum over that time, so that noise does not reverse the change right after it.
    return wish if waiting is None or wish.grows else wish.at(min(wish.now, max(wish.value, waiting.highest)))


def enough_since(memory: ScalingTimes, wish: Recommendation, now: datetime) -> datetime:
    """Since when less than there is has been enough; a time in the future is now."""
    waiting = _known(memory, wish)
    # A time in the future comes from another clock.
    return now if waiting is None else min(waiting.since, now)


def with_waiting(memory: ScalingTimes, waiting: Iterable[Recommendation], now: datetime) -> ScalingTimes:
    """The memory with these wishes for less, and no others."""
    # Wishes that no longer wait are dropped, so a sample that needs the present size restarts the time.
    shrinking = tuple(Shrinking(wish.subject, enough_since(memory, wish, now), wish.value) for wish in waiting)
    return replace(memory, shrinking=shrinking)


def _known(memory: ScalingTimes, wish: Recommendation) -> Shrinking | None:
    return next((shrinking for shrinking in memory.shrinking if shrinking.subject == wish.subject), None)
