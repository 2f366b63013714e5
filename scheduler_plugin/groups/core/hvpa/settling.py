"""Effective intervals shrink only where less has been enough for a while (S1.12). Growth never waits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from scheduler_plugin.groups.core.hvpa.spec import ScalingTimes, Shrinking
from scheduler_plugin.groups.core.hvpa.wishes import Recommendation


def at_most_needed(memory: ScalingTimes, wish: Recommendation) -> Recommendation:
    """The wish, where it is for less, with the maximum need since less is enough."""
    waiting = _known(memory, wish)
    # What it goes to is the maximum need since then, so that noise turns nothing around.
    return wish if waiting is None or wish.grows else wish.at(min(wish.now, max(wish.value, waiting.highest)))


def enough_since(memory: ScalingTimes, wish: Recommendation, now: datetime) -> datetime:
    """Since when less than there is has been enough; a time in the future is now."""
    waiting = _known(memory, wish)
    # A time ahead is another clock's.
    return now if waiting is None else min(waiting.since, now)


def with_waiting(memory: ScalingTimes, waiting: Iterable[Recommendation], now: datetime) -> ScalingTimes:
    """The memory with these wishes for less, and no others."""
    # Wishes that no longer wait are dropped: a sample that needed the present size restarts the time.
    shrinking = tuple(Shrinking(wish.subject, enough_since(memory, wish, now), wish.value) for wish in waiting)
    return replace(memory, shrinking=shrinking)


def _known(memory: ScalingTimes, wish: Recommendation) -> Shrinking | None:
    return next((shrinking for shrinking in memory.shrinking if shrinking.subject == wish.subject), None)
