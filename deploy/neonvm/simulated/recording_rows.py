"""Rows of recordings of demand: CSV with the columns ``seconds,cpu_cores[,mem_bytes]``, as many tools write it (pure).

- Cells are separated by commas, semicolons or tabs. In the last two cases, numbers may have decimal commas, if one
  of them cannot be a separator of thousands.
- Times are seconds; since 1970 also milliseconds, microseconds or nanoseconds, or ISO 8601 timestamps, which are in UTC
  if they name no zone. Amounts may be Kubernetes quantities.
- Blank lines, lines that begin with ``#`` and other columns are ignored.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from math import inf
from typing import Final

from protocol.field_errors import shown
from protocol.units import parse_quantity

COLUMNS: Final = ("seconds", "cpu_cores", "mem_bytes")

MOST: Final = 1e18
"""Upper limit of seconds, vCPUs and bytes in a recording."""

_NAMES: Final = {
    **{name: name for name in COLUMNS},
    "time": "seconds",
    "timestamp": "seconds",
    "cpu": "cpu_cores",
    "mem": "mem_bytes",
}
# No recording is from the year 5138, so larger numbers of seconds since 1970 are in smaller units.
_UNITS: Final = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
_IGNORED: Final = ("#", "sep=")  # comments, and Excel's hint at the separator

_NUMBER: Final = re.compile(r"[+-]?(\d*)([.,])(\d*)(.*)", re.DOTALL)

Row = tuple[float, float, float]
"""Seconds since the first row, vCPUs, and bytes (0 if memory is not recorded)."""


class RecordingError(ValueError):
    """A file is not a valid recording; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class RecordingRows:
    """The rows of a recording, and notes on how its columns are read. Iterating raises ``RecordingError``."""

    rows: Iterator[Row]
    has_memory: bool
    notes: tuple[str, ...]


def parse_rows(lines: Iterable[str], name: str) -> RecordingRows:
    """Parse the lines of the recording ``name``. Raises ``RecordingError``.

    >>> list(parse_rows(["timestamp;cpu", "2026-01-31 10:00:00;0,5", "2026-01-31 10:01:00;250m"], "r.csv").rows)
    [(0.0, 0.5, 0.0), (60.0, 0.25, 0.0)]
    """
    lines, head, before = map(_without_comment, lines), "", -1
    while not head.strip() and (line := next(lines, "")):
        head, before = line, before + 1
    separator = next((mark for mark in ";\t" if mark in head), ",")
    reader = csv.reader(chain([head], lines), delimiter=separator, skipinitialspace=True)

    def error(problem: str) -> RecordingError:
        return RecordingError(f"{name}:{max(before, 0) + max(reader.line_num, 1)}: {problem}")

    cells = _cells(reader, error)
    header = [cell.strip() for cell in next(cells, [])]
    columns = [_NAMES.get(cell.lower(), "") for cell in header]
    indexes = [columns.index(column) for column in COLUMNS if column in columns]
    if len(indexes) != sum(map(bool, columns)) or not {*COLUMNS[:2]} <= {*columns}:
        raise error(f'expected the columns "seconds,cpu_cores[,mem_bytes]", got {shown(separator.join(header))}')
    rows = _rows(cells, len(header), indexes, has_decimal_commas=separator != ",", error=error)
    return RecordingRows(rows, len(indexes) > 2, _notes(header, columns))


def _notes(header: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    unused = [shown(cell) for cell, column in zip(header, columns, strict=True) if cell and not column]
    # Elsewhere, this name may mean a share or a percentage.
    short = [shown(cell) for cell in header if cell.lower() == "cpu"]
    notes = [f"read the column {short[0]} as vCPUs"] if short else []
    return (*notes, f"ignored the columns {', '.join(unused)}") if unused else tuple(notes)


def _without_comment(line: str) -> str:
    # An empty line instead, so that lines are counted.
    return "\n" if line.startswith(_IGNORED) else line


def _cells(reader: Iterator[list[str]], error: Callable[[str], RecordingError]) -> Iterator[list[str]]:
    """The cells of rows that are not blank. Raises ``RecordingError``."""
    try:
        for cells in reader:
            if any(cell and not cell.isspace() for cell in cells):
                yield cells
    except csv.Error as problem:
        raise error(f"not CSV: {problem}") from None


class _DecimalCommas:
    """Reads numbers with decimal commas. A comma or point before three digits may be a separator of thousands."""

    def __init__(self, error: Callable[[str], RecordingError]) -> None:
        self._error = error
        self._has_comma = False
        self._ambiguous: dict[str, RecordingError] = {}
        """The first ambiguous number by its separator."""

    def read(self, cell: str) -> str:
        """The cell with a decimal point."""
        if match := _NUMBER.match(cell.strip()):
            whole, mark, digits, rest = match.groups()
            # Numbers with an exponent have no separators of thousands.
            if len(digits) == 3 and 1 <= len(whole) <= 3 and whole[0] != "0" and rest[:1] not in {"e", "E"}:
                problem = (
                    f"{shown(cell)} may be {whole}{digits}{rest} or {whole}.{digits}{rest}: write all "
                    "numbers without separators of thousands and with a decimal point"
                )
                self._ambiguous.setdefault(mark, self._error(problem))
            else:
                self._has_comma |= mark == ","
        return cell.replace(",", ".")

    def check(self) -> None:
        """Raise ``RecordingError`` if an ambiguous number remains after the last row."""
        # Commas that are certainly decimal explain ambiguous ones, but not points next to them.
        if problem := self._ambiguous.get("." if self._has_comma else ","):
            raise problem


def _rows(
    table: Iterator[list[str]],
    width: int,
    indexes: Sequence[int],
    *,
    has_decimal_commas: bool,
    error: Callable[[str], RecordingError],
) -> Iterator[Row]:
    commas = _DecimalCommas(error)
    first, last, previous, unit = None, -inf, "", 1.0
    for row in table:
        # Some tools end each row with a separator.
        if len(row) < width or any(row[width:]):
            raise error(f"expected {width} columns, got {shown(','.join(row))}")
        cells = [commas.read(row[index]) if has_decimal_commas else row[index] for index in indexes]
        time = _time(cells[0], error)
        if first is None:
            unit = next((unit for least, unit in _UNITS if time >= least), 1.0)
            first = time
        seconds = (time - first) / unit
        if seconds <= last:
            # A misread time goes back.
            commas.check()
            times = f"from {shown(previous)} to {shown(cells[0])}"
            raise error(f"time does not advance {times}: sort the rows by time, without repeats")
        amounts = [_amount(cell, row, error) for cell in cells[1:]]
        yield seconds, amounts[0], amounts[1] if len(amounts) > 1 else 0.0
        last, previous = seconds, cells[0]
    commas.check()


def _time(cell: str, error: Callable[[str], RecordingError]) -> float:
    try:
        time = float(cell)
    except ValueError:
        time = _timestamp(cell.strip())
    # The comparison also rejects NaN. Times since 1970 in nanoseconds are above ``MOST``.
    if not abs(time) <= 10 * MOST:
        raise error(f"expected seconds, or a time such as 2026-01-31T10:00:00Z, got {shown(cell)}")
    return time


def _timestamp(text: str) -> float:
    """Seconds since 1970; infinity if the text is no timestamp."""
    try:
        at = datetime.fromisoformat(text.removesuffix(" UTC"))
    except ValueError:
        return inf
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _amount(cell: str, row: list[str], error: Callable[[str], RecordingError]) -> float:
    try:
        amount = float(cell)
    except ValueError:
        try:
            amount = float(parse_quantity(cell))
        except ValueError:
            raise error(f"expected numbers, got {shown(','.join(row))}") from None
    # The comparison also rejects NaN, which ``float`` accepts.
    if not 0 <= amount <= MOST:
        raise error(f"expected amounts from 0 to {MOST:g}, got {shown(','.join(row))}")
    return amount
