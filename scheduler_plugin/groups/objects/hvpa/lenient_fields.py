"""Fields of an object as people write them: a key in another case is the same key, and every refusal names its field.

A field that is missing or null reads as None. Anything of the wrong type raises ``FieldError``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final, TypeVar

from protocol.durations import DurationError, parse_duration
from protocol.field_errors import shown
from protocol.kubernetes.objects import JsonObject
from protocol.units import Bytes, MilliCpu, QuantityError, Seconds, parse_quantity
from scheduler_plugin.groups.core.workload import Resource, ResourceList

E = TypeVar("E", bound=StrEnum)

MOST_REPLICAS: Final = 10_000
"""More replicas than any workload is scaled to."""


class FieldError(ValueError):
    """A field that cannot be used. The message begins with its path and says what was expected."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of the JSON object at ``path``."""

    found: JsonObject
    path: str

    def at(self, name: str) -> str:
        """The path of one field."""
        return f"{self.path}.{name}" if self.path else name

    def error(self, name: str, expected: str) -> FieldError:
        """That the field ``name`` was expected to be something else; to be raised."""
        actual = self.get(name)
        return FieldError(f"{self.at(name)}: expected {expected}, got {'nothing' if actual is None else shown(actual)}")

    def get(self, name: str) -> object:
        """The value as it is. Raises ``FieldError`` if two spellings of the key say different things."""
        spellings = {
            key: value for key, value in self.found.items() if key.lower() == name.lower() and value is not None
        }
        values = list(spellings.values())
        # The same value under two spellings does no harm.
        if any(value != values[0] for value in values):
            raise FieldError(f"{self.at(name)}: expected one spelling, got {' and '.join(sorted(spellings))}")
        return values[0] if values else None

    def has(self, *names: str) -> bool:
        """Return True if any of these fields is given."""
        return any(self.get(name) is not None for name in names)

    def fields(self, name: str) -> Fields:
        """The JSON object of that name; without any field if there is none."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(name, "an object")
        return Fields(value or {}, self.at(name))

    def each(self, name: str) -> list[Fields]:
        """The JSON objects of that list; empty if there is none."""
        value = self.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
            raise self.error(name, "a list of objects")
        return [Fields(one, f"{self.at(name)}[{number}]") for number, one in enumerate(value or [])]

    def text(self, name: str) -> str:
        """The text; empty if there is none."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, "a text")
        return value or ""

    def flag(self, name: str, otherwise: bool) -> bool:
        """True or false."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, "true or false")
        return otherwise if value is None else value

    def count(self, name: str, least: int = 0) -> int | None:
        """A number of replicas, from ``least`` on."""
        value = self.get(name)
        if value is None:
            return None
        # `bool` is an `int` in Python.
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_REPLICAS:
            raise self.error(name, f"a whole number from {least} to {MOST_REPLICAS}")
        return value

    def number(self, name: str, most: int) -> Fraction | None:
        """A number from 0 to ``most``, also as text."""
        value = self.get(name)
        if value is None:
            return None
        try:
            number = parse_quantity(value)  # type: ignore[arg-type]  # refuses what is no number
        except QuantityError:
            # Out of range, so the check below refuses it with the same message.
            number = Fraction(-1)
        if not 0 <= number <= most:
            raise self.error(name, f"a number from 0 to {most}")
        return number

    def duration(self, name: str) -> Seconds | None:
        """A span of time."""
        value = self.get(name)
        try:
            return None if value is None else parse_duration(value)
        except DurationError as error:
            raise FieldError(f"{self.at(name)}: {error}") from None

    def quantity(self, name: str, resource: Resource) -> int | None:
        """An amount of ``resource``, in thousandths of a vCPU or bytes."""
        value = self.get(name)
        parse = MilliCpu.parse if resource == "cpu" else Bytes.parse
        try:
            return None if value is None else parse(value).value  # type: ignore[arg-type]  # refuses what is none
        except QuantityError as error:
            raise FieldError(f"{self.at(name)}: {error}") from None

    def amounts(self, name: str) -> ResourceList:
        """CPU and memory of the object of that name; other resources are left out."""
        fields = self.fields(name)
        return ResourceList.of(lambda resource: fields.quantity(resource, resource))

    def choice(self, name: str, kinds: type[E]) -> E | None:
        """One of the values of ``kinds``, in any case."""
        chosen = self.text(name)
        if not chosen:
            return None
        by_lower = {kind.value.lower(): kind for kind in kinds}
        if chosen.lower() not in by_lower:
            raise self.error(name, f"one of {', '.join(kinds)}")
        return by_lower[chosen.lower()]


T = TypeVar("T")


class Parts:
    """Reads an object part by part and collects what is wrong with each."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, part: Callable[[], T], otherwise: T) -> T:
        """Value of ``part``, or ``otherwise`` if it cannot be decoded."""
        try:
            return part()
        except ValueError as error:
            # Several parts may read the same field and fail in the same way.
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return otherwise
