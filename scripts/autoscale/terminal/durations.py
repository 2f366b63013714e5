"""Durations in options."""

from __future__ import annotations

import typer

from protocol.durations import DurationError, format_duration, parse_duration
from protocol.units import Seconds


def duration_between(least: Seconds, most: Seconds, text: str, option: str) -> Seconds:
    """Parses the duration ``text`` of ``option``. Raises ``typer.BadParameter`` if it is invalid or out of bounds."""
    try:
        span = parse_duration(text)
    except DurationError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    if not least <= span <= most:
        bounds = f"{format_duration(least)} to {format_duration(most)}"
        raise typer.BadParameter(f"expected {bounds}, got {text!r}", param_hint=option)
    return span
