"""Reads fields in the spec of a VirtualMachineGroup; a refusal names the path of the field (pure)."""

from __future__ import annotations

from protocol.durations import DurationError, parse_duration
from protocol.field_errors import shown
from protocol.kubernetes.objects import JsonObject, child
from protocol.units import Seconds


class InvalidGroupError(ValueError):
    """A VirtualMachineGroup breaks a rule; the message begins with the path of the field."""


def whole_field(found: JsonObject, path: tuple[str, ...], usual: int, least: int, most: int) -> int:
    """The whole number at ``path`` of the spec, ``usual`` if there is none. Raises ``InvalidGroupError``."""
    value = child(found, "spec", *path[:-1]).get(path[-1])
    if value is None:
        return usual
    # `bool` is an `int` in Python.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidGroupError(
            f"spec.{'.'.join(path)}: expected a whole number from {least} to {most}, got {shown(value)}"
        )
    return value


def duration_field(found: JsonObject, path: tuple[str, ...], usual: Seconds) -> Seconds:
    """The span of time at ``path`` of the spec, ``usual`` if there is none. Raises ``InvalidGroupError``."""
    value = child(found, "spec", *path[:-1]).get(path[-1])
    if value is None:
        return usual
    try:
        return parse_duration(value)
    except DurationError as error:
        raise InvalidGroupError(f"spec.{'.'.join(path)}: {error}") from None
