"""The rows of ``make bench-fleet``: the figures of a fleet over several seeds, beside what they should reach (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, NamedTuple

from scripts.autoscale.simulate.figures import Figures

OWN_SPEED: Final = 1.0
FAST: Final = 20.0
"""A day of a recording in 72 minutes: what its load does in half an hour happens within 90 s."""

HOURS: Final = {OWN_SPEED: 12.0, FAST: 3.0}


@dataclass(frozen=True, slots=True)
class FleetCase:
    """One fleet of a row: which loads it plays how fast, and what share of its nodes they fill at their peak."""

    loads: str
    speed: float
    fill: float

    def __str__(self) -> str:
        return f"{self.loads}, {self.pace}, fill {self.fill:g}"

    @property
    def pace(self) -> str:
        """The speed in words."""
        return "own speed" if self.speed == OWN_SPEED else f"x{self.speed:g}"


class Aims(NamedTuple):
    """Figures that a fleet should reach; None: no aim. ``denied`` is for all its ``HOURS``, ``in_place`` the least."""

    moves: float | None = None
    denied: float | None = None
    short: float | None = None
    longest: float | None = None
    in_place: float | None = None


AIMS: Final = {
    (OWN_SPEED, 0.7): Aims(in_place=99.98),
    (OWN_SPEED, 0.8): Aims(in_place=99.8),
    (OWN_SPEED, 0.9): Aims(moves=15, denied=2.5, short=0.01, longest=300),
    (FAST, 0.7): Aims(moves=30, denied=0.4, short=0.01, longest=60),
    (FAST, 0.9): Aims(moves=60, denied=20, short=0.45, longest=180),
}


@dataclass(frozen=True, slots=True)
class BenchColumn:
    """A column: how it sums up the seeds, the format of its numbers, and its aim."""

    heading: str
    of: Callable[[Sequence[Figures]], float]
    form: str
    aim: Callable[[Aims], float | None] = lambda _: None
    at_least: bool = False

    def is_met(self, value: float, aim: float) -> bool:
        """Return True if ``value`` reaches ``aim``."""
        return value >= aim if self.at_least else value <= aim

    def cell(self, value: float, aim: float | None) -> str:
        """The value, and its aim if there is one: ``24 > 15`` misses it, ``8 <= 15`` meets it."""
        if aim is None:
            return format(value, self.form)
        signs = ("<", ">=") if self.at_least else (">", "<=")
        return f"{value:{self.form}} {signs[self.is_met(value, aim)]} {aim:g}"


def _mean(of: Callable[[Figures], float]) -> Callable[[Sequence[Figures]], float]:
    return lambda runs: fmean(map(of, runs))


COLUMNS: Final = (
    BenchColumn("moves an hour", _mean(lambda run: run.migrations_per_hour), ".1f", lambda aims: aims.moves),
    BenchColumn("denied vCPU-h", _mean(lambda run: run.denied_vcpu_hours), ".2f", lambda aims: aims.denied),
    BenchColumn("without CPU, %", _mean(lambda run: run.short_percent), ".4f", lambda aims: aims.short),
    BenchColumn(
        "longest denial, s",
        lambda runs: max(run.longest_denial_seconds for run in runs),
        ".0f",
        lambda aims: aims.longest,
    ),
    BenchColumn(
        "in place, %", _mean(lambda run: run.in_place_percent), ".2f", lambda aims: aims.in_place, at_least=True
    ),
    BenchColumn("unfair, %", _mean(lambda run: run.unfairness_percent), ".1f"),
    BenchColumn("regrown, %", _mean(lambda run: run.regrown_percent), ".1f"),
)
"""Means over the seeds; of the denials the longest of all."""

_WIDTHS: Final = (10, 9, 4, 15, 14, 16, 17, 15, 9, 10)


def header() -> str:
    """The line of headings."""
    return _line(["loads", "speed", "fill", *(column.heading for column in COLUMNS)])


@dataclass(frozen=True, slots=True)
class BenchRow:
    """A case and the figures of its seeds, each of which played the share ``part`` of the case's hours."""

    case: FleetCase
    runs: Sequence[Figures]
    part: float = 1.0

    def __str__(self) -> str:
        cells = (column.cell(value, aim) for column, value, aim in self._values())
        return _line([self.case.loads, self.case.pace, f"{self.case.fill:g}", *cells])

    def met(self) -> list[str]:
        """The aims that are met, in words."""
        return [text for is_met, text in self._judged() if is_met]

    def missed(self) -> list[str]:
        """The aims that are missed, in words."""
        return [text for is_met, text in self._judged() if not is_met]

    def _judged(self) -> Iterator[tuple[bool, str]]:
        for column, value, aim in self._values():
            if aim is not None:
                yield column.is_met(value, aim), f"{self.case}: {column.heading} {column.cell(value, aim)}"

    def _values(self) -> Iterator[tuple[BenchColumn, float, float | None]]:
        aims = AIMS.get((self.case.speed, self.case.fill), Aims())
        # The only sum over time: the others are rates, shares or the longest.
        aims = aims._replace(denied=None if aims.denied is None else aims.denied * self.part)
        for column in COLUMNS:
            yield column, column.of(self.runs), column.aim(aims)


def _line(cells: Sequence[str]) -> str:
    texts, numbers = cells[:2], cells[2:]
    padded = [text.ljust(width) for text, width in zip(texts, _WIDTHS, strict=False)]
    padded += [number.rjust(width) for number, width in zip(numbers, _WIDTHS[2:], strict=True)]
    return "  ".join(padded)
