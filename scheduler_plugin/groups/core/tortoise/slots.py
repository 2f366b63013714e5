"""Slots of the day or of the week, by the clock on the wall of one time zone (S3.2).

Rules that hold here:

- A slot is found by local hour and weekday. On a day of 25 hours one hour comes twice and is one slot; on a day of 23
  hours a slot does not come at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

Period = Literal["daily", "weekly"]
"""After how long slots repeat."""

WEEKDAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
HOURS: Final = 24


class Slot(NamedTuple):
    """The local hours from ``start`` up to, not including, ``end``, of one ``weekday``, or of every day if None."""

    start: int
    end: int
    weekday: str | None = None

    def covers(self, weekday: str, hour: int) -> bool:
        """Return True if that hour of that day lies in the slot."""
        return self.start <= hour < self.end and self.weekday in (None, weekday)


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """Division of time into slots of ``range_hours`` (a divisor of 24).

    Raises ``ValueError`` if the hours do not divide a day.
    """

    range_hours: int
    period: Period
    zone: ZoneInfo

    def __post_init__(self) -> None:
        if self.range_hours < 1 or HOURS % self.range_hours:
            raise ValueError(f"expected 1, 2, 3, 4, 6, 8, 12 or 24 hours, got {self.range_hours}")

    def slots(self) -> tuple[Slot, ...]:
        """All slots in their order, Sunday first: 24 / ``range_hours`` of them, seven times as many by weekday."""
        return _slots(self.range_hours, self.period)

    def slot_at(self, now: datetime) -> Slot:
        """The slot of that moment; ``now`` is aware."""
        weekday, hour = local_hour(now, self.zone)
        # Slots begin at multiples of their length, so none crosses midnight.
        start = hour - hour % self.range_hours
        return Slot(start, start + self.range_hours, weekday if self.period == "weekly" else None)

    def comes_again(self, last: datetime, now: datetime) -> bool:
        """Return True if a slot that was seen at ``last`` has come again by ``now``, a moment within it.

        Another date, and at least as long ago by the clock on the wall as lies between two of its occurrences.
        """
        # Without the zone the difference is in wall-clock time, on days of 23 and 25 hours too.
        before, after = (moment.astimezone(self.zone).replace(tzinfo=None) for moment in (last, now))
        return before.date() != after.date() and after - before >= timedelta(hours=HOURS - self.range_hours)


def local_hour(now: datetime, zone: ZoneInfo) -> tuple[str, int]:
    """Weekday and hour of that moment on the wall.

    >>> from datetime import UTC
    >>> local_hour(datetime(2023, 3, 18, 15, tzinfo=UTC), ZoneInfo("Asia/Tokyo"))
    ('Sunday', 0)
    """
    local = now.astimezone(zone)
    # `isoweekday` has Sunday as 7, the list has it first.
    return WEEKDAYS[local.isoweekday() % 7], local.hour


# Cached: there are few layouts, and reading or writing a memory walks through all slots.
@cache
def _slots(range_hours: int, period: Period) -> tuple[Slot, ...]:
    days: tuple[str | None, ...] = WEEKDAYS if period == "weekly" else (None,)
    return tuple(Slot(start, start + range_hours, day) for day in days for start in range(0, HOURS, range_hours))
