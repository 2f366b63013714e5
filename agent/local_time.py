"""Local time in any time zone, from the system's tz database."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from agent.core.sleep.windows import LocalTime


def local_time(wall: float, zone: str) -> LocalTime:
    """The time in the IANA ``zone`` at ``wall`` (seconds since 1970). Raises ``ValueError`` for an unknown zone.

    >>> local_time(1767225600.0, "Asia/Tokyo")
    LocalTime(weekday=3, minute=540)
    """
    try:
        at = datetime.fromtimestamp(wall, ZoneInfo(zone))
    # ``KeyError`` for an unknown zone, ``OSError`` for a directory of zones.
    except (KeyError, OSError, ValueError):
        raise ValueError(f"no such time zone: {zone}") from None
    return LocalTime(at.weekday(), at.hour * 60 + at.minute)
