"""Columns of tables, and the choice of those that fit into a width (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Self

from protocol.units import Bytes, MilliCpu, QuantityError

UNKNOWN: Final = "-"
GAP: Final = 2
LEAST_SENTENCE: Final = 24
"""Minimum width of a column of sentences, unless all of them fit."""

Order = tuple[bool, tuple[tuple[float, str], ...]]
"""Sort key of a cell within its column; unknown cells sort first."""


class ColumnType(StrEnum):
    """Type of a column, which determines how its cells are aligned and sorted."""

    NAME = "name"
    CPU = "cpu"
    MEMORY = "memory"
    SENTENCE = "sentence"


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``key`` is its field in JSON; the columns with the highest ``importance`` number are hidden first."""

    key: str
    heading: str
    importance: int
    kind: ColumnType = ColumnType.NAME

    @property
    def is_number(self) -> bool:
        """True if its cells are right-aligned."""
        return self.kind in {ColumnType.CPU, ColumnType.MEMORY}


@dataclass(frozen=True, slots=True)
class TableRow:
    """A database or node: its cells in the order of the columns, and the fields for filters."""

    name: str
    cells: tuple[str, ...]
    namespace: str = ""
    node: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class PlacedColumn:
    """A visible column: the ``index`` of its cells, and its width in characters."""

    index: int
    column: Column
    width: int


VM_COLUMNS: Final = (
    Column("vm", "database", 0),
    Column("state", "state", 1),
    Column("node", "node", 4),
    Column("cpu", "vCPU", 0, ColumnType.CPU),
    Column("cpuBusy", "busy", 2, ColumnType.CPU),
    Column("memory", "memory", 0, ColumnType.MEMORY),
    Column("memoryUsed", "used", 3, ColumnType.MEMORY),
    Column("goalCpu", "goal vCPU", 7, ColumnType.CPU),
    Column("goalMemory", "goal memory", 7, ColumnType.MEMORY),
    Column("permitCpu", "permit vCPU", 5, ColumnType.CPU),
    Column("permitMemory", "permit memory", 6, ColumnType.MEMORY),
    Column("lastDecision", "last decision", 9, ColumnType.SENTENCE),
)
NODE_COLUMNS: Final = (
    Column("node", "node", 0),
    Column("state", "state", 1),
    Column("vms", "databases", 4, ColumnType.CPU),
    Column("cpuBar", "vCPU reserved", 8),
    Column("cpuReserved", "reserved vCPU", 0, ColumnType.CPU),
    Column("cpuWatermark", "watermark vCPU", 6, ColumnType.CPU),
    Column("cpuTotal", "total vCPU", 2, ColumnType.CPU),
    Column("memoryBar", "memory reserved", 8),
    Column("memoryReserved", "reserved memory", 0, ColumnType.MEMORY),
    Column("memoryWatermark", "watermark memory", 6, ColumnType.MEMORY),
    Column("memoryTotal", "total memory", 3, ColumnType.MEMORY),
    Column("pressureCpu", "pressure vCPU", 5, ColumnType.CPU),
    Column("pressureMemory", "pressure memory", 5, ColumnType.MEMORY),
    Column("waiting", "denied", 9, ColumnType.SENTENCE),
    Column("stuck", "why VMs stay", 9, ColumnType.SENTENCE),
)


def fitted(columns: Sequence[Column], rows: Sequence[TableRow], width: int, arrow_at: str = "") -> list[PlacedColumn]:
    """Chooses the columns that fit into ``width`` characters; the heading of ``arrow_at`` has room for an arrow."""
    widths = [_width(index, column, rows, arrow_at) for index, column in enumerate(columns)]
    # Names and numbers are never truncated. Columns that do not fit are hidden, the least important first.
    placed = [
        PlacedColumn(index, column, widths[index])
        for index, column in enumerate(columns)
        if column.kind != ColumnType.SENTENCE
    ]
    while taken(placed) > width:
        last = max(placed, key=lambda placed_column: (placed_column.column.importance, placed_column.index))
        # Columns of importance 0 always stay: a narrower terminal scrolls sideways.
        if last.column.importance == 0:
            return placed
        placed.remove(last)
    # Sentences get the remaining width; only they may be truncated.
    for index, column in enumerate(columns):
        left = width - taken(placed) - GAP
        if column.kind == ColumnType.SENTENCE and left >= min(LEAST_SENTENCE, widths[index]):
            placed.append(PlacedColumn(index, column, min(left, widths[index])))
    return placed


def full_width(columns: Sequence[Column], rows: Sequence[TableRow]) -> list[PlacedColumn]:
    """All columns at their full width."""
    return [PlacedColumn(index, column, _width(index, column, rows, "")) for index, column in enumerate(columns)]


def taken(placed: Sequence[PlacedColumn]) -> int:
    """Width of a line of these columns, in characters."""
    return sum(placed_column.width for placed_column in placed) + GAP * max(0, len(placed) - 1)


def _width(index: int, column: Column, rows: Sequence[TableRow], arrow_at: str) -> int:
    # With an arrow and a space.
    heading = len(column.heading) + 2 * (column.key == arrow_at)
    return max((heading, *(len(row.cells[index]) for row in rows)))


def header(placed: Sequence[PlacedColumn], sorted_by: str = "", *, descending: bool = False) -> str:
    """The line of headings, with an arrow at the sorted column."""
    arrow = " ▼" if descending else " ▲"
    headings = [
        placed_column.column.heading + (arrow if placed_column.column.key == sorted_by else "")
        for placed_column in placed
    ]
    return _joined(placed, headings)


def line(row: TableRow, placed: Sequence[PlacedColumn]) -> str:
    """A row as text."""
    return _joined(placed, [shortened(row.cells[placed_column.index], placed_column.width) for placed_column in placed])


def _joined(placed: Sequence[PlacedColumn], cells: Sequence[str]) -> str:
    padded = (
        cell.rjust(placed_column.width) if placed_column.column.is_number else cell.ljust(placed_column.width)
        for placed_column, cell in zip(placed, cells, strict=True)
    )
    # Trailing blanks would wrap lines that fit.
    return (" " * GAP).join(padded).rstrip()


def shortened(sentence: str, width: int) -> str:
    """Truncates a sentence to ``width`` characters, between words if possible."""
    if len(sentence) <= width:
        return sentence
    # The ellipsis takes one character.
    start = sentence[: width - 1]
    return (start[: start.rfind(" ")] if " " in start else start) + "…"


# Cached, because sorting parses the same thousands of cells each second.
@lru_cache(maxsize=65536)
def order(kind: ColumnType, cell: str) -> Order:
    """Sort key of a cell: amounts by size, names with numeric parts as numbers, unknown cells first."""
    if cell == UNKNOWN:
        return False, ()
    return True, _ORDERS[kind](cell)


def _by_name(cell: str) -> tuple[tuple[float, str], ...]:
    # Numbers in names are compared as numbers: node-9 before node-10.
    return tuple((float(part), "") if part.isdecimal() else (-1.0, part) for part in re.split(r"(\d+)", cell) if part)


def _by_cpu(cell: str) -> tuple[tuple[float, str], ...]:
    return _amount(cell, lambda quantity: MilliCpu.parse(quantity).as_cores)


def _by_memory(cell: str) -> tuple[tuple[float, str], ...]:
    return _amount(cell, lambda quantity: Bytes.parse(quantity).as_gib)


def _amount(cell: str, read: Callable[[str], float]) -> tuple[tuple[float, str], ...]:
    try:
        return ((read(cell), ""),)
    except QuantityError:
        # Other text sorts before all amounts, which are never negative.
        return ((-1.0, cell),)


_ORDERS: Final[Mapping[ColumnType, Callable[[str], tuple[tuple[float, str], ...]]]] = MappingProxyType(
    {ColumnType.NAME: _by_name, ColumnType.SENTENCE: _by_name, ColumnType.CPU: _by_cpu, ColumnType.MEMORY: _by_memory}
)


_FIELDS: Final[Mapping[str, Callable[[TableRow], str]]] = MappingProxyType(
    {
        "ns": lambda row: row.namespace,
        "namespace": lambda row: row.namespace,
        "node": lambda row: row.node,
        "state": lambda row: row.state,
    }
)
_FIELD: Final = re.compile(rf"({'|'.join(_FIELDS)})([:=])(.*)")


@dataclass(frozen=True, slots=True)
class View:
    """Order and filter of a table.

    ``words`` is the filter as typed: words match in any cell, ``ns:sho`` within a field, ``node=node-1`` a whole word
    of a field.
    """

    columns: tuple[Column, ...]
    sorted_by: str
    descending: bool = False
    words: str = ""

    def rows(self, rows: Iterable[TableRow]) -> list[TableRow]:
        """Filters and sorts rows; equal ones by name."""
        tests = [_test(word) for word in self.words.lower().split()]
        passed = [row for row in rows if all(test(row) for test in tests)]
        # Sorting is stable: equal rows stay sorted by name, also in descending order.
        passed.sort(key=lambda row: order(self.columns[0].kind, row.name))
        at = next(index for index, column in enumerate(self.columns) if column.key == self.sorted_by)
        kind = self.columns[at].kind
        passed.sort(key=lambda row: order(kind, row.cells[at]), reverse=self.descending)
        return passed

    def next_column(self, visible: Sequence[Column], step: int) -> Self:
        """Sorts by the next or previous visible column; numbers in descending order."""
        keys = [candidate.key for candidate in visible]
        # If the sorted column is no longer visible, start with the first one.
        at = keys.index(self.sorted_by) + step if self.sorted_by in keys else 0
        column = visible[at % len(visible)]
        return replace(self, sorted_by=column.key, descending=column.is_number)

    def reversed(self) -> Self:
        """In reverse order."""
        return replace(self, descending=not self.descending)

    def filtered(self, words: str) -> Self:
        """With this filter."""
        return replace(self, words=words)


def _test(word: str) -> Callable[[TableRow], bool]:
    match = _FIELD.fullmatch(word)
    if match is None:
        return lambda row: any(word in cell.lower() for cell in row.cells)
    read, value = _FIELDS[match[1]], match[3]
    if match[2] == "=":
        return lambda row: value in read(row).lower().split()  # a migrating VM has two nodes
    return lambda row: value in read(row).lower()
