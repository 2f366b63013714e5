"""A global configuration of Tortoises as a document, the reverse of reading one."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

from protocol.durations import format_duration
from protocol.units import Bytes, MilliCpu, Seconds
from scheduler_plugin.groups.core.tortoise.configuration import NO_METRIC, Configuration
from scheduler_plugin.groups.objects.tortoise.global_configuration import FIELDS


def write_configuration(configuration: Configuration) -> dict[str, object]:
    """The configuration as a document for ``read_configuration``."""
    return {name: _written(getattr(configuration, field)) for name, field in FIELDS.items()}


def _written(value: object) -> object:
    match value:
        case MilliCpu() | Bytes():
            return value.quantity()
        case timedelta():
            return format_duration(Seconds(value.total_seconds()))
        case Fraction():
            return float(value)
        case ZoneInfo():
            return value.key
        case re.Pattern():
            return "" if value is NO_METRIC else value.pattern
    return value
