"""Slots of the day or week in local time of one time zone, and the need of each (S3.2).

- A slot is identified by local hour and weekday. On a day of 25 hours one hour occurs twice, as the same slot; on a day
  of 23 hours a slot is skipped.
- There are at most 168 slots. A slot's number falls only when the slot recurs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from functools import cache
from math import floor
from typing import Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

Period = Literal["daily", "weekly"]
"""Period of the slots."""

WEEKDAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
HOURS: Final = 24


class Slot(NamedTuple):
    """Local hours from ``start`` to ``end`` (exclusive) of one ``weekday``; None for every day."""

    start: int
    end: int
    weekday: str | None = None

    def overlaps(self, other: Slot) -> bool:
        """Return True if both slots share an hour of the same day."""
        same_day = self.weekday is None or other.weekday in (None, self.weekday)
        return same_day and self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """Slots of ``range_hours`` (a divisor of 24).

    Raises ``ValueError`` if the hours do not divide a day.
    """

    range_hours: int
    period: Period
    zone: ZoneInfo

    def __post_init__(self) -> None:
        if self.range_hours < 1 or HOURS % self.range_hours:
            raise ValueError(f"expected 1, 2, 3, 4, 6, 8, 12 or 24 hours, got {self.range_hours}")

    def slots(self) -> tuple[Slot, ...]:
        """All slots in order, Sunday first: 24 / ``range_hours``, times seven by weekday."""
        return _slots(self.range_hours, self.period)

    def slot_at(self, now: datetime) -> Slot:
        """The slot at ``now`` (aware)."""
        local = now.astimezone(self.zone)
        # `isoweekday` has Sunday as 7.
        weekday = WEEKDAYS[local.isoweekday() % 7]
        # Slots never cross midnight.
        start = local.hour - local.hour % self.range_hours
        return Slot(start, start + self.range_hours, weekday if self.period == "weekly" else None)

    def recurs(self, last: datetime, now: datetime) -> bool:
        """Return True if the slot at ``now`` is a later occurrence than the one at ``last``.

        The date differs, and ``last`` is at least a day minus one slot ago in local time.
        """
        # Naive times give the local difference, also on days of 23 and 25 hours.
        before, after = (moment.astimezone(self.zone).replace(tzinfo=None) for moment in (last, now))
        return before.date() != after.date() and after - before >= timedelta(hours=HOURS - self.range_hours)


# Cached: few layouts, and every read or write iterates over all slots.
@cache
def _slots(range_hours: int, period: Period) -> tuple[Slot, ...]:
    days: tuple[str | None, ...] = WEEKDAYS if period == "weekly" else (None,)
    return tuple(Slot(start, start + range_hours, day) for day in days for start in range(0, HOURS, range_hours))


@dataclass(frozen=True, slots=True)
class SlotValue:
    """Number of one slot, and when it was last updated."""

    value: int
    at: datetime


@dataclass(frozen=True, slots=True)
class SlotMemory:
    """The number of each slot of one layout."""

    layout: SlotLayout
    values: Mapping[Slot, SlotValue] = field(default_factory=dict)

    def learned(self, value: int, decay: Fraction, now: datetime) -> SlotMemory:
        """Update the slot at ``now`` with ``value`` (>= 0); on recurrence its old number decays by ``decay`` (0..1).

        >>> from datetime import UTC
        >>> from zoneinfo import ZoneInfo
        >>> noon = datetime(2026, 5, 4, 12, tzinfo=UTC)
        >>> memory = SlotMemory(SlotLayout(1, "daily", ZoneInfo("UTC"))).learned(100, Fraction("0.95"), noon)
        >>> [memory.learned(7, Fraction("0.95"), noon.replace(day=day)).at(noon) for day in (4, 5)]
        [100, 95]
        """
        slot = self.layout.slot_at(now)
        previous = self.values.get(slot)
        if previous is None:
            return self._with(slot, value, now)
        again = self.layout.recurs(previous.at, now)
        # Within one occurrence the number only rises; on recurrence it decays first.
        highest = max(value, floor(previous.value * decay) if again else previous.value)
        # A future date, from a clock that was set back, would prevent decay until then, so replace it. Otherwise keep
        # the memory unchanged, to save status writes.
        return self._with(slot, highest, now) if again or highest != previous.value or previous.at > now else self

    def at(self, now: datetime) -> int | None:
        """Need in the slot at ``now``; the maximum of all slots if that one has no data; None without any data.

        A slot may have no data: the hour that is skipped in spring, or one without running replicas.
        """
        previous = self.values.get(self.layout.slot_at(now))
        return previous.value if previous is not None else self.maximum

    def at_or_zero(self, now: datetime) -> int:
        """Need in the slot at ``now``; 0 without data."""
        previous = self.values.get(self.layout.slot_at(now))
        return 0 if previous is None else previous.value

    @property
    def maximum(self) -> int | None:
        """Maximum of all slots; None without data."""
        return max((remembered.value for remembered in self.values.values()), default=None)

    def converted_to(self, layout: SlotLayout) -> SlotMemory:
        """Convert to another layout: each slot gets the maximum of those that it overlaps.

        The result is empty if the time zone differs, because its hours are other times.
        """
        if layout == self.layout:
            return self
        if layout.zone != self.layout.zone:
            return SlotMemory(layout)
        values = {
            slot: max(overlapping, key=lambda remembered: remembered.value)
            for slot in layout.slots()
            if (overlapping := [remembered for old, remembered in self.values.items() if old.overlaps(slot)])
        }
        return SlotMemory(layout, values)

    def __iter__(self) -> Iterator[tuple[Slot, SlotValue]]:
        """Slots with data, in order."""
        return ((slot, self.values[slot]) for slot in self.layout.slots() if slot in self.values)

    def _with(self, slot: Slot, value: int, now: datetime) -> SlotMemory:
        return SlotMemory(self.layout, {**self.values, slot: SlotValue(value, now)})
