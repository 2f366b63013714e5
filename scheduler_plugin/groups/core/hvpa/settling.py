"""Effective intervals shrink only where less has been enough for a while (S1.12).

Rules that hold here:

- A wish for less waits. It then goes to the most that was needed while it waited, so that noise turns nothing around.
- A look at which what there is was needed, or nearly (the least change), begins the time anew.
- Growth never waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from scheduler_plugin.groups.core.hvpa.spec import Memory, Shrinking
from scheduler_plugin.groups.core.hvpa.wishes import Wish


def at_most_needed(memory: Memory, wish: Wish) -> Wish:
    """The wish, where it is for less, with the most that was needed since less is enough."""
    known = _known(memory, wish)
    return wish if known is None or wish.grows else wish.at(min(wish.now, max(wish.value, known.highest)))


def enough_since(memory: Memory, wish: Wish, now: datetime) -> datetime:
    """Since when less than there is has been enough; a time in the future is now."""
    known = _known(memory, wish)
    return now if known is None else min(known.since, now)


def with_waiting(memory: Memory, waiting: Iterable[Wish], now: datetime) -> Memory:
    """The memory with these wishes for less, and no others."""
    found = tuple(Shrinking(each.subject, enough_since(memory, each, now), each.value) for each in waiting)
    return replace(memory, shrinking=found)


def _known(memory: Memory, wish: Wish) -> Shrinking | None:
    return next((each for each in memory.shrinking if each.subject == wish.subject), None)
