"""The daily window in which scaling is allowed: ``begin`` and ``end`` as ``HHMMSS+ZZZZ``, compared in UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Final

from protocol.field_errors import shown

_TIME: Final = re.compile(r"([0-9]{2})([0-9]{2})([0-9]{2})([+-])([0-9]{2})([0-9]{2})")
_DAY: Final = 24 * 3600


def parse_maintenance_time(text: object) -> time:
    """The time of day in UTC. Raises ``ValueError`` for anything but ``HHMMSS`` and a numeric zone.

    >>> parse_maintenance_time("220000+0100")
    datetime.time(21, 0)
    """
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[1] > "23" or max(match[2], match[3], match[6]) > "59" or match[5] > "23":
        raise ValueError(f'expected a time of day with a zone such as "220000+0100", got {shown(text)}')
    hour, minute, second, zone_hours, zone_minutes = (int(match[group]) for group in (1, 2, 3, 5, 6))
    zone = (zone_hours * 3600 + zone_minutes * 60) * (1 if match[4] == "+" else -1)
    # The modulo wraps an offset that crosses midnight.
    seconds = (hour * 3600 + minute * 60 + second - zone) % _DAY
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60)


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """From ``begin`` to ``end`` (UTC) of every day, both included; over midnight if ``end`` is before ``begin``."""

    begin: time
    end: time

    def contains(self, now: datetime) -> bool:
        """Return True if ``now``, an aware time, is within the window. A begun second counts as the whole one."""
        # Whole seconds, so that the last second of the window is inside.
        at = now.astimezone(UTC).time().replace(microsecond=0)
        if self.begin <= self.end:
            return self.begin <= at <= self.end
        # This window spans midnight.
        return at >= self.begin or at <= self.end

    def __str__(self) -> str:
        return f"{self.begin:%H:%M:%S} to {self.end:%H:%M:%S} UTC"
