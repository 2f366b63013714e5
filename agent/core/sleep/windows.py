"""Weekly keep-awake windows such as ``Mon-Fri 07:00-20:00 Europe/Berlin`` (B.18).

Days and times are local wall-clock time, so a window keeps its hours across daylight saving. A skipped hour is in no
window; a repeated hour counts twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from protocol.field_errors import shown

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
WHOLE_DAY: Final = 24 * 60
"""Minutes."""

_DAY: Final = f"(?:{'|'.join(DAYS)})"
_RANGE: Final = f"{_DAY}(?:-{_DAY})?"
_FORM: Final = re.compile(
    rf"({_RANGE}(?:,{_RANGE}){{0,6}}) ([0-9]{{2}}):([0-9]{{2}})-([0-9]{{2}}):([0-9]{{2}}) ([A-Za-z0-9_+/-]{{1,64}})"
)


@dataclass(frozen=True, slots=True)
class LocalTime:
    """Wall-clock time in a zone: ``weekday`` 0 (Monday) to 6, ``minute`` of the day 0 to 1439."""

    weekday: int
    minute: int


LocalClock = Callable[[str], LocalTime]
"""Returns the current local time in a zone, given its IANA name."""


@dataclass(frozen=True, slots=True)
class Window:
    """From ``start`` to ``end`` (minutes of the day) on each of ``days``; if ``end`` is before ``start``, it ends on
    the next day.
    """

    days: frozenset[int]
    start: int
    end: int
    zone: str

    def contains(self, at: LocalTime) -> bool:
        """Return True if ``at`` is within the window."""
        if self.start < self.end:
            return at.weekday in self.days and self.start <= at.minute < self.end
        began_today = at.weekday in self.days and at.minute >= self.start
        return began_today or ((at.weekday - 1) % len(DAYS) in self.days and at.minute < self.end)


@lru_cache(256)
def parse_window(text: str) -> Window:
    """Parse a window. Raises ``ValueError``. Does not check that the zone exists.

    >>> window = parse_window("Sat,Mon-Tue 22:00-06:30 UTC")
    >>> sorted(window.days), window.start, window.end, window.zone
    ([0, 1, 5], 1320, 390, 'UTC')
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"expected days, times and a time zone like 'Mon-Fri 07:00-20:00 UTC', got {shown(text)}")
    days, zone = match[1], match[6]
    start, end = (_minute(hour, minute, text) for hour, minute in ((match[2], match[3]), (match[4], match[5])))
    if start in {WHOLE_DAY, end}:
        raise ValueError(f"expected a start before 24:00 and a different end, got {shown(text)}")
    return Window(frozenset(day for part in days.split(",") for day in _days(part)), start, end, zone)


def window_now(windows: Sequence[str], clock: LocalClock) -> str | None:
    """The first of the valid ``windows`` that applies now; None if none does."""
    parsed = ((text, parse_window(text)) for text in windows)
    return next((text for text, window in parsed if window.contains(clock(window.zone))), None)


def _minute(hour: str, minute: str, text: str) -> int:
    at = int(hour) * 60 + int(minute)
    if int(minute) > 59 or at > WHOLE_DAY:
        raise ValueError(f"expected times from 00:00 to 24:00, got {shown(text)}")
    return at


def _days(part: str) -> list[int]:
    first, _, last = part.partition("-")
    begin = DAYS.index(first)
    # A range may wrap around at Sunday.
    return [(begin + n) % len(DAYS) for n in range((DAYS.index(last or first) - begin) % len(DAYS) + 1)]
