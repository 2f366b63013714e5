"""Quantities as types: CPU, memory, time and compute units, with checked arithmetic.

Rules that hold here:

- Amounts are never negative: subtraction below zero raises ``QuantityError``, ``minus_or_zero`` stops at zero.
- CPU and memory share one code path: both are an ``Amount``, and ``Resources`` implements every operation for both.
- Amounts of different kinds do not mix: ``MilliCpu(1) + Bytes(1)`` is a type error and raises ``TypeError``.
- They are msgspec structs, which are created and compared three times as fast as frozen dataclasses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import reduce
from math import ceil, floor, isfinite
from typing import Final, NewType, Self, TypeVar

import msgspec

from protocol.field_errors import shown

Seconds = NewType("Seconds", float)
"""A duration in seconds."""

Instant = NewType("Instant", float)
"""A point in time in seconds on a monotonic clock. Only differences between instants are meaningful."""


class QuantityError(ValueError):
    """Not a valid quantity; the message quotes the value and says what is accepted."""


class HugeQuantityError(QuantityError):
    """A quantity of absurd size or length, which Kubernetes accepts."""


_SUFFIXES: Final[dict[str, Fraction]] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{suffix: Fraction(1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}

_QUANTITY: Final = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]*))?|\.(?P<only>[0-9]+))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+)|(?P<suffix>[numkMGTPE]|[KMGTPE]i))?"
)
_LONGEST: Final = 256  # characters of a text: more than any real amount needs, but cheap to parse
_LARGEST_POWER: Final = 30  # of ten: beyond all suffixes
_NANO: Final = 6  # decimals of a thousandth of a vCPU: Kubernetes supports nothing finer
_FEW_CORES: Final = 4096.0  # below this, floats are exact to a nano-vCPU; exact arithmetic takes 20 times as long


def parse_quantity(text: str | int | float) -> Fraction:
    """The exact value of a Kubernetes quantity such as ``"250m"``, ``"1.5Gi"``, ``"1e3"`` or a plain number.

    Raises ``QuantityError``, in bounded time, for anything else, including booleans, infinities, NaN and absurd sizes.

    >>> parse_quantity("250m"), parse_quantity("1.5Ki"), parse_quantity("-2e3")
    (Fraction(1, 4), Fraction(1536, 1), Fraction(-2000, 1))
    >>> parse_quantity("1e1000000000000000000")
    Traceback (most recent call last):
    protocol.units.HugeQuantityError: expected a quantity of reasonable size, got '1e1000000000000000000'
    """
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise QuantityError(f'expected a quantity such as 2, "250m" or "1Gi", got {shown(text)}')
    if isinstance(text, int):
        if abs(text) >= 10**_LARGEST_POWER:
            raise HugeQuantityError("expected a quantity of reasonable size, got a number with too many digits")
        return Fraction(text)
    raw = str(text).strip()
    if len(raw) > _LONGEST:
        raise HugeQuantityError(f'expected a quantity such as 2, "250m" or "1Gi", got {shown(raw)}')
    match = _QUANTITY.fullmatch(raw)
    if match is None:
        raise QuantityError(f'expected a quantity such as 2, "250m" or "1Gi", got {shown(raw)}')
    digits, power = _number(match)
    size = len(str(digits)) - 1 + power
    if digits and abs(size) > _LARGEST_POWER:
        raise HugeQuantityError(f"expected a quantity of reasonable size, got {shown(raw)}")
    # A zero may have any exponent.
    number = digits * Fraction(10) ** power if digits else Fraction(0)
    return (-number if match["sign"] == "-" else number) * _SUFFIXES[match["suffix"] or ""]


def _number(match: re.Match[str]) -> tuple[int, int]:
    """The digits as an integer, and the power of ten to multiply it by."""
    # Trailing zeros would only make the integer larger.
    part = (match["part"] or match["only"] or "").rstrip("0")
    return int((match["whole"] or "") + part or "0"), int(match["exponent"] or "0") - len(part)


class Amount(msgspec.Struct, frozen=True, order=True, gc=False):
    """A non-negative integer count of a resource's smallest unit. Use ``MilliCpu`` or ``Bytes``."""

    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise QuantityError(f"{type(self).__name__} cannot be negative: {self.value}")

    def _same(self, other: Self) -> int:
        if type(other) is not type(self):
            raise TypeError(f"cannot combine {type(self).__name__} with {type(other).__name__}")
        return other.value

    def __add__(self, other: Self) -> Self:
        return type(self)(self.value + self._same(other))

    def __sub__(self, other: Self) -> Self:
        return type(self)(self.value - self._same(other))

    def __mul__(self, times: int) -> Self:
        return type(self)(self.value * times)

    def __bool__(self) -> bool:
        return self.value != 0

    def minus_or_zero(self, other: Self) -> Self:
        """The difference, or zero if ``other`` is larger."""
        return type(self)(max(0, self.value - self._same(other)))

    def scaled(self, fraction: float | Fraction) -> Self:
        """This amount times ``fraction`` (>= 0), rounded down. A float counts as the decimal that it prints as."""
        # Printed, 0.1 is exactly a tenth; the float itself is slightly more.
        exact = fraction if isinstance(fraction, Fraction) else Fraction(str(fraction))
        return type(self)(floor(self.value * exact))

    def units_down(self, unit: Self) -> int:
        """The number of times that ``unit`` (> 0) fits into this amount."""
        return self.value // self._same(unit)

    def units_up(self, unit: Self) -> int:
        """The smallest number of ``unit`` (> 0) that covers this amount."""
        # -(-a // b) rounds up without a float.
        return -(-self.value // self._same(unit))

    def down_to(self, unit: Self) -> Self:
        """The largest multiple of ``unit`` (> 0) that is not above this amount."""
        over = self.value % self._same(unit)
        return type(self)(self.value - over) if over else self

    def up_to(self, unit: Self) -> Self:
        """The smallest multiple of ``unit`` (> 0) that is not below this amount."""
        missing = -self.value % self._same(unit)
        return type(self)(self.value + missing) if missing else self

    def is_multiple_of(self, unit: Self) -> bool:
        """Return True if this amount is a multiple of ``unit`` (> 0)."""
        return self.value % self._same(unit) == 0

    def ratio(self, other: Self) -> float:
        """This amount as a fraction of ``other`` (> 0)."""
        return self.value / self._same(other)


class MilliCpu(Amount, frozen=True, order=True, gc=False):
    """CPU in thousandths of a vCPU."""

    @classmethod
    def parse(cls, quantity: str | int | float) -> MilliCpu:
        """Parse ``2``, ``0.5`` or ``"250m"``, rounded up to a thousandth. Raises ``QuantityError``."""
        return cls(_amount(quantity, _MILLIS))

    @classmethod
    def cores(cls, cores: float) -> MilliCpu:
        """This many vCPUs (>= 0), rounded up to the thousandth, ignoring float noise.

        Less than a nano-vCPU is noise: 0.1 + 0.2 is 300m. Raises ``QuantityError`` for negative or infinite numbers and
        NaN.
        """
        if not isfinite(cores):
            raise QuantityError(f"expected a number of vCPUs, got {cores!r}")
        if 0 <= cores < _FEW_CORES:
            return cls(ceil(round(cores * 1000, _NANO)))
        return cls(_ceiling(round(Fraction(cores) * 1000, _NANO), cores))

    @property
    def as_cores(self) -> float:
        """This amount in vCPUs."""
        return self.value / 1000

    @property
    def whole_cpus(self) -> int:
        """The number of vCPUs to plug in for this amount, rounded up (``vm_cpu_mem_mapping``)."""
        return -(-self.value // 1000)

    def quantity(self) -> str:
        """The canonical Kubernetes text: ``"2"`` or ``"250m"``."""
        return str(self.value // 1000) if self.value % 1000 == 0 else f"{self.value}m"

    def __str__(self) -> str:
        return self.quantity()


class Bytes(Amount, frozen=True, order=True, gc=False):
    """Memory in bytes."""

    @classmethod
    def parse(cls, quantity: str | int | float) -> Bytes:
        """Parse ``1073741824``, ``"1Gi"`` or ``"1.5Gi"``, rounded up to a byte. Raises ``QuantityError``."""
        return cls(_amount(quantity, _BYTES))

    @property
    def as_gib(self) -> float:
        """This amount in GiB."""
        return self.value / 1024**3

    def quantity(self) -> str:
        """The canonical Kubernetes text, with the largest binary suffix that leaves an integer: ``"1536Mi"``."""
        power, value = 0, self.value
        while value and value % 1024 == 0 and power < 6:
            power, value = power + 1, value // 1024
        return f"{value}{('', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei')[power]}"

    def __str__(self) -> str:
        return self.quantity()


_MILLIS: Final = {"": 1000, "m": 1}
_BYTES: Final = {"": 1, **{f"{prefix}i": 1024**power for power, prefix in enumerate("KMGTPE", start=1)}}


def _amount(quantity: str | int | float, units: dict[str, int]) -> int:
    """``quantity`` in the smallest unit, rounded up; ``units`` are the usual suffixes. Raises ``QuantityError``."""
    # Fast path for the common forms without fraction or exponent: exact arithmetic is slow.
    if type(quantity) is str and len(quantity) <= 20:
        digits = quantity.rstrip("mKMGTPEi")
        factor = units.get(quantity[len(digits) :])
        if factor is not None and digits.isdigit() and digits.isascii():
            return int(digits) * factor
    elif type(quantity) is int and 0 <= quantity < 10**_LARGEST_POWER:
        return quantity * units[""]
    return _ceiling(parse_quantity(quantity) * units[""], quantity)


def _ceiling(exact: Fraction, source: object) -> int:
    """``exact`` rounded up. Raises ``QuantityError`` if it is negative."""
    if exact < 0:
        raise QuantityError(f"expected a quantity of zero or more, got {shown(source)}")
    return -(-exact.numerator // exact.denominator)


T = TypeVar("T")


class Resources(msgspec.Struct, frozen=True, gc=False):
    """An amount of CPU and an amount of memory. Every operation treats the two independently (S4.5).

    Every agent request causes a dozen comparisons, so they use plain numbers and create no objects.
    """

    cpu: MilliCpu
    mem: Bytes

    @classmethod
    def parse(cls, cpu: str | int | float, mem: str | int | float) -> Self:
        """Parse both as Kubernetes quantities. Raises ``QuantityError``."""
        return cls(MilliCpu.parse(cpu), Bytes.parse(mem))

    def __add__(self, other: Resources) -> Resources:
        # Shortcut for a common case. Create a new object, because ``self`` may be a ``ComputeUnit``.
        if other is ZERO:
            return Resources(self.cpu, self.mem)
        return Resources(MilliCpu(self.cpu.value + other.cpu.value), Bytes(self.mem.value + other.mem.value))

    def __sub__(self, other: Resources) -> Resources:
        if other is ZERO:
            return Resources(self.cpu, self.mem)
        return Resources(MilliCpu(self.cpu.value - other.cpu.value), Bytes(self.mem.value - other.mem.value))

    def __mul__(self, times: int) -> Resources:
        return Resources(self.cpu * times, self.mem * times)

    def scaled(self, fraction: float | Fraction) -> Resources:
        """Each amount times ``fraction``, rounded like ``Amount.scaled``."""
        return Resources(self.cpu.scaled(fraction), self.mem.scaled(fraction))

    def minus_or_zero(self, other: Resources) -> Resources:
        """Each difference, or zero if ``other``'s amount is larger."""
        if self.within(other):
            return ZERO
        return Resources(self.cpu.minus_or_zero(other.cpu), self.mem.minus_or_zero(other.mem))

    def at_least(self, other: Resources) -> Resources:
        """The larger amount of each resource."""
        if other.within(self):
            return self
        return other if self.within(other) else Resources(max(self.cpu, other.cpu), max(self.mem, other.mem))

    def at_most(self, other: Resources) -> Resources:
        """The smaller amount of each resource."""
        if self.within(other):
            return self
        return other if other.within(self) else Resources(min(self.cpu, other.cpu), min(self.mem, other.mem))

    def within(self, other: Resources) -> bool:
        """Return True if neither amount is above ``other``'s."""
        return self.cpu.value <= other.cpu.value and self.mem.value <= other.mem.value

    def units_up(self, unit: ComputeUnit) -> int:
        """The smallest number of compute units that covers both amounts."""
        return max(self.cpu.units_up(unit.cpu), self.mem.units_up(unit.mem))

    @property
    def any(self) -> bool:
        """True if either amount is above zero."""
        return self.cpu.value != 0 or self.mem.value != 0

    @classmethod
    def sum(cls, parts: Iterable[Resources]) -> Resources:
        """The sum of ``parts``; zero if there are none."""
        total = ZERO
        for part in parts:
            total = total + part
        return total

    @classmethod
    def most(cls, parts: Iterable[Resources]) -> Resources:
        """The largest amount of each resource; zero if there are none."""
        return reduce(cls.at_least, parts, ZERO)

    def each(self, other: Resources, check: Callable[[Amount, Amount], T]) -> tuple[T, T]:
        """Apply ``check`` to CPU and then to memory."""
        return check(self.cpu, other.cpu), check(self.mem, other.mem)

    def __str__(self) -> str:
        return f"{self.cpu} cpu, {self.mem}"


ZERO: Final = Resources(MilliCpu(0), Bytes(0))
"""Zero CPU and zero memory."""


class ComputeUnit(Resources, frozen=True, gc=False):
    """The unit by which a node's VMs are sized (S4.6). Raises ``QuantityError`` if either amount is zero."""

    def __post_init__(self) -> None:
        if not self.cpu or not self.mem:
            raise QuantityError(f"a compute unit needs CPU and memory above zero, got {self}")
