"""Types of settings: sections, quantities and fractions, and their error messages.

Amounts are Kubernetes quantities (``2``, ``"250m"``, ``"1Gi"``); every error says what is expected.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainValidator
from pydantic.alias_generators import to_camel

from protocol.field_errors import shown
from protocol.units import Amount, Bytes, MilliCpu

A = TypeVar("A", bound=Amount)
_PERCENT: Final = re.compile(r"([1-9][0-9]?|100)%")
_MOST: Final = 1000


class Section(BaseModel):
    """Part of the settings: unknown keys are errors, names are in camelCase."""

    # ``forbid``: a misspelt setting must not be ignored.
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, arbitrary_types_allowed=True)


def _quantity(kind: type[Amount]) -> BeforeValidator:
    def read(value: object) -> Amount:
        # Defaults have the right type already.
        if isinstance(value, kind):
            return value
        parse = MilliCpu.parse if kind is MilliCpu else Bytes.parse
        return parse(value)  # type: ignore[arg-type]  # parse refuses what is not a quantity with a clear message

    return BeforeValidator(read)


def _above_zero(amount: A) -> A:
    if not amount:
        raise ValueError("expected more than zero")
    return amount


def _fraction(value: object) -> Fraction:
    # A Python bool is an int.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError(f"expected a fraction above 0 and at most 1, got {shown(value)}")
    # From its text: ``Fraction(0.9)`` is not exactly 9/10.
    return Fraction(str(value))


def _count_or_share(value: object) -> int | Fraction:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST:
        return value
    if isinstance(value, str) and (match := _PERCENT.fullmatch(value)):
        return Fraction(int(match[1]), 100)
    raise ValueError(f'expected 1 to {_MOST}, or a percentage of all nodes like "20%", got {shown(value)}')


def _candidates(value: object) -> int | None:
    if value == "all":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST:
        return value
    raise ValueError(f'expected 1 to {_MOST}, or "all", got {shown(value)}')


Candidates = Annotated[int | None, PlainValidator(_candidates)]
Cpu = Annotated[MilliCpu, _quantity(MilliCpu)]
Mem = Annotated[Bytes, _quantity(Bytes)]
Watermark = Annotated[Fraction, BeforeValidator(_fraction)]
CountOrShare = Annotated[int | Fraction, PlainValidator(_count_or_share)]
CpuUnit = Annotated[MilliCpu, _quantity(MilliCpu), AfterValidator(_above_zero)]
MemUnit = Annotated[Bytes, _quantity(Bytes), AfterValidator(_above_zero)]
