"""The settings in force as JSON, with quantities as Kubernetes writes them, nothing left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction

import msgspec

from protocol.kubernetes.objects import Json
from protocol.units import Bytes, MilliCpu
from scheduler_plugin.settings.document import SchedulerSettings


def settings_view(settings: SchedulerSettings) -> Json:
    """Every setting by its name. Files are named, and none is read: there is no secret among settings."""
    return {field.name: _told(getattr(settings, field.name)) for field in fields(settings)}


def _told(value: object) -> object:
    if isinstance(value, MilliCpu | Bytes):
        return value.quantity()
    if (names := _names(value)) is not None:
        return {name: _told(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): _told(member) for key, member in value.items()}
    if isinstance(value, frozenset | set | list | tuple):
        members = [_told(member) for member in value]
        # Sets have no order of their own: sorted, two replicas show the same text.
        return members if isinstance(value, list | tuple) else sorted(members, key=str)
    return _plain(value)


def _names(value: object) -> tuple[str, ...] | None:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    # ``is_dataclass`` is true of classes as well.
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(field.name for field in fields(value))
    return None


def _plain(value: object) -> object:
    # JSON has no type for fractions.
    if isinstance(value, Fraction):
        return float(value)
    return value if isinstance(value, str | int | float) or value is None else str(value)
