"""Effective intervals shrink only where less has been enough for a while (S1.12).

Rules that hold here:

- A wish for less waits. It then goes to the maximum need while it waited, so that noise turns nothing around.
- A sample that needs the present size, or nearly (the least change), restarts the time.
- Growth never waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from scheduler_plugin.groups.core.hvpa.spec import ScalingTimes, Shrinking
from scheduler_plugin.groups.core.hvpa.wishes import Recommendation


def at_most_needed(memory: ScalingTimes, wish: Recommendation) -> Recommendation:
    """The wish, where it is for less, with the maximum need since less is enough."""
    known = _known(memory, wish)
    return wish if known is None or wish.grows else wish.at(min(wish.now, max(wish.value, known.highest)))


def enough_since(memory: ScalingTimes, wish: Recommendation, now: datetime) -> datetime:
    """Since when less than there is has been enough; a time in the future is now."""
    known = _known(memory, wish)
    return now if known is None else min(known.since, now)


def with_waiting(memory: ScalingTimes, waiting: Iterable[Recommendation], now: datetime) -> ScalingTimes:
    """The memory with these wishes for less, and no others."""
    found = tuple(Shrinking(each.subject, enough_since(memory, each, now), each.value) for each in waiting)
    return replace(memory, shrinking=found)


def _known(memory: ScalingTimes, wish: Recommendation) -> Shrinking | None:
    return next((each for each in memory.shrinking if each.subject == wish.subject), None)
