"""Fields of an Hvpa, and its rules per direction.

- Keys are case-insensitive. Missing fields and null are None. Wrong types raise ``FieldError``.
- Precedence of rules, lowest first: ``scaleUpDelay`` and ``minCpuChange`` of the Hvpa, its ``scaleUpStabilization``,
  its ``scaleUp``, and the ``scaleUp`` of its ``hpa`` or ``vpa``; the same for down.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import time
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final, TypeVar

from protocol.durations import parse_duration
from protocol.field_errors import shown
from protocol.kubernetes.objects import JsonObject
from protocol.units import Bytes, MilliCpu, QuantityError, Seconds, parse_quantity
from scheduler_plugin.groups.core.hvpa.spec import (
    UNSET,
    AxisRules,
    ChangeParams,
    DirectionRules,
    MaintenanceWindow,
    ResourceChangeParams,
    UpdateMode,
)
from scheduler_plugin.groups.core.workload import Resource, ResourceList

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")

MOST_REPLICAS: Final = 10_000
"""Upper limit of replica counts."""


class FieldError(ValueError):
    """An invalid field; the message starts with the field's path."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Reads fields of the JSON object at ``path``."""

    obj: JsonObject
    path: str

    def at(self, name: str) -> str:
        """Path of one field."""
        return f"{self.path}.{name}" if self.path else name

    def error(self, name: str, expected: str) -> FieldError:
        """Make an error for the field ``name``, which should have been ``expected``."""
        actual = self.get(name)
        return FieldError(f"{self.at(name)}: expected {expected}, got {'nothing' if actual is None else shown(actual)}")

    def get(self, name: str) -> object:
        """The raw value. Raises ``FieldError`` if two spellings of the key differ in value."""
        spellings = {key: value for key, value in self.obj.items() if key.lower() == name.lower() and value is not None}
        values = list(spellings.values())
        # Equal values are fine.
        if any(value != values[0] for value in values):
            raise FieldError(f"{self.at(name)}: expected one spelling, got {' and '.join(sorted(spellings))}")
        return values[0] if values else None

    def has(self, *names: str) -> bool:
        """Return True if any of these fields is set."""
        return any(self.get(name) is not None for name in names)

    def fields(self, name: str) -> Fields:
        """The JSON object of that name; empty if missing."""
        return Fields(self._typed(name, dict, "an object") or {}, self.at(name))

    def each(self, name: str) -> list[Fields]:
        """The JSON objects of that list; empty if missing."""
        value = self.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
            raise self.error(name, "a list of objects")
        return [Fields(one, f"{self.at(name)}[{number}]") for number, one in enumerate(value or [])]

    def text(self, name: str) -> str:
        """The string; empty if missing."""
        return self._typed(name, str, "a string") or ""

    def flag(self, name: str, otherwise: bool) -> bool:
        """The boolean; ``otherwise`` if missing."""
        value = self._typed(name, bool, "true or false")
        return otherwise if value is None else value

    def _typed(self, name: str, kind: type[T], expected: str) -> T | None:
        value = self.get(name)
        if value is None or isinstance(value, kind):
            return value
        raise self.error(name, expected)

    def count(self, name: str, minimum: int = 0) -> int | None:
        """A replica count of at least ``minimum``."""
        value = self.get(name)
        if value is None:
            return None
        # A bool is an int.
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= MOST_REPLICAS:
            raise self.error(name, f"a whole number from {minimum} to {MOST_REPLICAS}")
        return value

    def number(self, name: str, maximum: int) -> Fraction | None:
        """A number from 0 to ``maximum``; a string is converted."""
        value = self.get(name)
        if value is None:
            return None
        try:
            number = parse_quantity(value)  # type: ignore[arg-type]  # refuses what is no number
        except QuantityError:
            # Out of range, to raise the error below.
            number = Fraction(-1)
        if not 0 <= number <= maximum:
            raise self.error(name, f"a number from 0 to {maximum}")
        return number

    def duration(self, name: str) -> Seconds | None:
        """A duration, such as ``5m``."""
        return self._parsed(name, parse_duration)

    def quantity(self, name: str, resource: Resource) -> int | None:
        """An amount of ``resource``, in thousandths of a vCPU or bytes."""
        amount = self._parsed(name, MilliCpu.parse if resource == "cpu" else Bytes.parse)
        return None if amount is None else amount.value

    def _parsed(self, name: str, parse: Callable[[Any], T]) -> T | None:
        value = self.get(name)
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise FieldError(f"{self.at(name)}: {error}") from None

    def amounts(self, name: str) -> ResourceList:
        """CPU and memory in the object of that name."""
        fields = self.fields(name)
        return ResourceList.of(lambda resource: fields.quantity(resource, resource))

    def choice(self, name: str, kinds: type[E]) -> E | None:
        """One of the values of ``kinds``, case-insensitive."""
        chosen = self.text(name)
        if not chosen:
            return None
        by_lower = {kind.value.lower(): kind for kind in kinds}
        if chosen.lower() not in by_lower:
            raise self.error(name, f"one of {', '.join(kinds)}")
        return by_lower[chosen.lower()]


class FieldErrors:
    """Reads the parts of an object and collects their errors."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, part: Callable[[], T], otherwise: T) -> T:
        """The value of ``part``, or ``otherwise`` on an error."""
        try:
            return part()
        except ValueError as error:
            # Several parts may fail because of the same field.
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return otherwise


_MOST_PERCENT: Final = 10_000
_RESOURCES: Final[tuple[Resource, Resource]] = ("cpu", "memory")


def axis_rules(spec: Fields, axis: str) -> AxisRules:
    """Rules of the ``hpa`` or ``vpa`` of an Hvpa."""
    up, down = (_direction(spec, axis, direction) for direction in ("Up", "Down"))
    return AxisRules(up, down)


def _direction(spec: Fields, axis: str, direction: str) -> DirectionRules:
    # Each line overrides the ones before.
    flat = _with_changes(DirectionRules(), spec, ("minCpuChange", "minMemChange"))
    delay = spec.duration(f"scale{direction}Delay")
    flat = flat if delay is None else replace(flat, delay=delay)
    stabilization = spec.fields(f"scale{direction}Stabilization")
    flat = _with_changes(flat, stabilization, ("minCpuChange", "minMemChange"))
    duration = stabilization.duration("duration")
    flat = flat if duration is None else replace(flat, delay=duration)
    own = _overridden(flat, spec.fields(f"scale{direction}"))
    return _overridden(own, spec.fields(axis).fields(f"scale{direction}"))


def _overridden(rules: DirectionRules, scale: Fields) -> DirectionRules:
    mode = scale.fields("updatePolicy").choice("updateMode", UpdateMode)
    delay = scale.duration("stabilizationDuration")
    return _with_changes(
        replace(rules, mode=mode or rules.mode, delay=rules.delay if delay is None else delay),
        scale.fields("minChange"),
        ("cpu", "memory"),
    )


def _with_changes(rules: DirectionRules, fields: Fields, names: tuple[str, str]) -> DirectionRules:
    return replace(rules, min_change=_params(fields, names, rules.min_change))


def both_params(fields: Fields, name: str, otherwise: ResourceChangeParams) -> ResourceChangeParams:
    """``cpu`` and ``memory`` in the object of that name, with defaults from ``otherwise``."""
    return _params(fields.fields(name), _RESOURCES, otherwise)


def _params(fields: Fields, names: tuple[str, str], otherwise: ResourceChangeParams) -> ResourceChangeParams:
    cpu, memory = (_change(fields, name, resource) for name, resource in zip(names, _RESOURCES, strict=True))
    return ResourceChangeParams(otherwise.cpu if cpu is UNSET else cpu, otherwise.memory if memory is UNSET else memory)


def _change(fields: Fields, name: str, resource: Resource) -> ChangeParams:
    params = fields.fields(name)
    value, percentage = params.quantity("value", resource), params.number("percentage", _MOST_PERCENT)
    return UNSET if value is None and percentage is None else ChangeParams(value, percentage)


def maintenance_window(spec: Fields, *axes: AxisRules) -> MaintenanceWindow | None:
    """The maintenance window; required if an update mode waits for it."""
    name = "maintenanceTimeWindow"
    if not spec.has(name):
        modes = {rules.mode for axis in axes for rules in (axis.up, axis.down)}
        # Without a window this mode would never scale.
        if UpdateMode.MAINTENANCE_WINDOW in modes:
            raise spec.error(name, "begin and end, which updateMode MaintenanceWindow needs")
        return None
    window = spec.fields(name)
    begin, end = (_time(window, part) for part in ("begin", "end"))
    return MaintenanceWindow(begin, end)


def _time(window: Fields, part: str) -> time:
    try:
        return parse_maintenance_time(window.get(part))
    except ValueError as error:
        raise FieldError(f"{window.at(part)}: {error}") from None


_TIME: Final = re.compile(r"([0-9]{2})([0-9]{2})([0-9]{2})([+-])([0-9]{2})([0-9]{2})")
_DAY: Final = 24 * 3600


def parse_maintenance_time(text: object) -> time:
    """Parse a time of day, ``HHMMSS`` with a numeric zone, as UTC. Raises ``ValueError``.

    >>> parse_maintenance_time("220000+0100")
    datetime.time(21, 0)
    """
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[1] > "23" or max(match[2], match[3], match[6]) > "59" or match[5] > "23":
        raise ValueError(f'expected a time of day with a zone such as "220000+0100", got {shown(text)}')
    hour, minute, second, zone_hours, zone_minutes = (int(match[group]) for group in (1, 2, 3, 5, 6))
    zone = (zone_hours * 3600 + zone_minutes * 60) * (1 if match[4] == "+" else -1)
    # The offset may cross midnight.
    seconds = (hour * 3600 + minute * 60 + second - zone) % _DAY
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60)
