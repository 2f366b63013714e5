"""Durations in configuration files and flags. The only parser of durations in this project.

Rules that hold here:

- Numbers are seconds. A text is a number, or numbers with units in Go's format: ``90s``, ``5m``, ``1h30m``, ``1.5h``,
  ``250ms``, without spaces or sign. ``d`` is a day of 24 hours.
- A duration is never negative and never longer than ``LONGEST``.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Final

from protocol.field_errors import shown
from protocol.units import Seconds

LONGEST: Final = Seconds(10 * 366 * 86_400.0)
"""Ten years."""

# Limits the time to parse untrusted text.
_LONGEST_TEXT: Final = 64
_UNITS: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "\u00b5s": 1e-6,  # micro sign
    "\u03bcs": 1e-6,  # Greek letter mu
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}
_NUMBER: Final = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_PLAIN: Final = re.compile(_NUMBER)
_PART: Final = re.compile(rf"({_NUMBER})({'|'.join(_UNITS)})")
_EXPECTED: Final = 'expected seconds or a duration such as "90s", "5m" or "1h30m"'


class DurationError(ValueError):
    """Not a valid duration; the message quotes the value and says what is accepted."""


def parse_duration(value: object) -> Seconds:
    """Parse a duration to seconds, zero or more. Raises ``DurationError``.

    >>> parse_duration("1h30m")
    5400.0
    >>> parse_duration(2.5)
    2.5
    >>> parse_duration("soon")
    Traceback (most recent call last):
    protocol.durations.DurationError: expected seconds or a duration such as "90s", "5m" or "1h30m", got 'soon'
    """
    if isinstance(value, str):
        seconds = _read(value)
    # ``bool`` is an int in Python, but ``true`` is not a number of seconds.
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = _plain(value)
    else:
        seconds = None
    if seconds is None or not isfinite(seconds):
        raise DurationError(f"{_EXPECTED}, got {shown(value)}")
    if not 0 <= seconds <= LONGEST:
        raise DurationError(f"expected a duration of zero to ten years, got {shown(value)}")
    return Seconds(seconds)


def format_duration(span: Seconds) -> str:
    """Format a duration for ``parse_duration``, to the millisecond.

    >>> format_duration(Seconds(5400.0)), format_duration(Seconds(0.25)), format_duration(Seconds(0.0))
    ('1h30m', '250ms', '0s')
    """
    left = round(span * 1000)
    parts = []
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _plain(value: float) -> float:
    """Convert to a float; -1 (out of range) for an integer that may be too large for one."""
    # ``not … >`` is also true for NaN, which the caller rejects.
    return float(value) if not abs(value) > LONGEST else -1.0


def _read(text: str) -> float | None:
    if len(text) > _LONGEST_TEXT:
        return None
    if _PLAIN.fullmatch(text):
        return float(text)
    total, at = 0.0, 0  # ``at`` is where the next part must begin
    while match := _PART.match(text, at):
        total, at = total + float(match[1]) * _UNITS[match[2]], match.end()
    # Reject text after the last part, and text without any part.
    return total if at and at == len(text) else None
