"""Tables of a history's file, and statements built from their columns.

Statements contain only names from this module. All other names and texts are parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from scheduler_plugin.history.core.samples import IN_USE, NODE_COLUMNS, VM_COLUMNS
from scheduler_plugin.history.core.spans import Span, sum_while

VERSION: Final = 1
APPLICATION: Final = 0x41534849
"""Identifies the file as a history (``PRAGMA application_id``)."""

_HALF: Final = 2**20

_HEAD: Final = ("subject", "facts", "tier", "since", "until", "seen")
_BEFORE_PARTS: Final = len(("facts", "since", "until", "seen"))


@dataclass(frozen=True)
class SpanTable:
    """The table of spans of one kind of object. ``tier`` is 0 for recorded spans; see ``core.retention``."""

    name: str
    columns: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    """For each pair, ``totals`` has the integral of the first column over the time in which the second was known too.
    """

    @cached_property
    def _parts(self) -> tuple[str, ...]:
        return tuple(f"{part}_{column}" for part in ("known", "sum", "peak") for column in self.columns)

    @cached_property
    def create(self) -> tuple[str, ...]:
        """Statements that create the table and its indexes."""
        fields = ", ".join(f"{field} INTEGER NOT NULL" for field in (*_HEAD, *self._parts))
        return (
            f"CREATE TABLE IF NOT EXISTS {self.name} (id INTEGER PRIMARY KEY, {fields})",
            # For one object over time.
            f"CREATE INDEX IF NOT EXISTS {self.name}_of ON {self.name} (subject, since)",
            # For retention, and for sums over all objects.
            f"CREATE INDEX IF NOT EXISTS {self.name}_age ON {self.name} (tier, since)",
        )

    @cached_property
    def insert(self) -> str:
        """Insert one span; ``row`` returns the parameters."""
        fields = (*_HEAD, *self._parts)
        return f"INSERT INTO {self.name} ({', '.join(fields)}) VALUES ({', '.join('?' * len(fields))})"  # noqa: S608

    def row(self, subject: int, facts: int, span: Span) -> tuple[int, ...]:
        """Parameters of ``insert``."""
        # Tier 0 is as recorded.
        return (subject, facts, 0, span.since, span.until, span.observed, *span.known_times, *span.sums, *span.peaks)

    @cached_property
    def coarsen(self) -> str:
        """Join spans of a tier by start time. Parameters: new tier, width, old tier, start, end (exclusive)."""
        width = len(self.columns)
        joins = [
            f"{'MAX' if place >= 2 * width else 'SUM'}({part})"  # peaks are last
            for place, part in enumerate(self._parts)
        ]
        return (
            f"INSERT INTO {self.name} ({', '.join((*_HEAD, *self._parts))}) "  # noqa: S608
            f"SELECT subject, facts, ?, MIN(since), MAX(until), SUM(seen), {', '.join(joins)} FROM {self.name} "
            "WHERE tier = ?3 AND since >= ?4 AND since < ?5 GROUP BY subject, facts, since / ?2"
        ).replace("facts, ?,", "facts, ?1,")

    @cached_property
    def remove(self) -> str:
        """Remove spans of a tier by start time. Parameters: tier, start, end (exclusive)."""
        return f"DELETE FROM {self.name} WHERE tier = ? AND since >= ? AND since < ?"  # noqa: S608

    @cached_property
    def select(self) -> str:
        """Select spans; append a condition. Decode the rows with ``read``."""
        fields = ", ".join(("since", "until", "seen", *self._parts))
        return f"SELECT facts, {fields} FROM {self.name} "  # noqa: S608

    @cached_property
    def totals(self) -> str:
        """Totals of each set of facts in a period. Parameters: since, until. Decode the rows with ``read_total``.

        Integrals are summed in two halves, because five weeks of a few TiB would overflow SQLite's integers.
        """
        width = len(self.columns)
        knowns, sums, peaks = self._parts[:width], self._parts[width : 2 * width], self._parts[2 * width :]
        joins = [
            *(f"SUM({part})" for part in knowns),
            *(f"SUM({part} / {_HALF})" for part in sums),
            *(f"SUM({part} % {_HALF})" for part in sums),
            *(f"MAX({part})" for part in peaks),
            *(
                f"TOTAL(1.0 * sum_{column} * MIN(known_{column}, known_{other}) / known_{column})"
                for column, other in self.pairs
            ),
        ]
        return (
            f"SELECT facts, MIN(since), MAX(until), SUM(seen), {', '.join(joins)} FROM {self.name} "  # noqa: S608
            "WHERE tier IN (0, 1, 2) AND since >= ?1 AND since < ?2 AND until <= ?2 GROUP BY facts"
        )

    def read_total(self, row: Sequence[int]) -> tuple[int, Span, tuple[int, ...]]:
        """Decode a row of ``totals``: id of the facts, span, and integrals of ``pairs``."""
        # Columns: known times, upper and lower halves of the sums, peaks, pairs.
        begin, width = _BEFORE_PARTS, len(self.columns)
        end = begin + 4 * width
        upper, lower = row[begin + width : begin + 2 * width], row[begin + 2 * width : begin + 3 * width]
        # Python integers do not overflow.
        sums = (high * _HALF + low for high, low in zip(upper, lower, strict=True))
        return *self.read((*row[: begin + width], *sums, *row[begin + 3 * width : end])), tuple(map(round, row[end:]))

    def while_known(self, span: Span) -> tuple[int, ...]:
        """Estimated integrals of ``pairs`` for one span."""
        return tuple(sum_while(span, *map(self.columns.index, pair)) for pair in self.pairs)

    def read(self, row: Sequence[int]) -> tuple[int, Span]:
        """Decode a row of ``select``: id of the facts, and the span."""
        facts, since, until, seen_time, *parts = row
        width = len(self.columns)
        known_times, sums, peaks = parts[:width], parts[width : 2 * width], parts[2 * width :]
        return facts, Span(since, until, seen_time, tuple(known_times), tuple(sums), tuple(peaks))


VM_SPANS: Final = SpanTable("vm_spans", VM_COLUMNS, IN_USE)
NODE_SPANS: Final = SpanTable("node_spans", NODE_COLUMNS)
SPAN_TABLES: Final = (VM_SPANS, NODE_SPANS)

CREATE: Final[Iterable[str]] = (
    "CREATE TABLE IF NOT EXISTS subjects (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL, "
    "name TEXT NOT NULL, UNIQUE (kind, namespace, name))",
    "CREATE TABLE IF NOT EXISTS facts (id INTEGER PRIMARY KEY, subject INTEGER NOT NULL, json BLOB NOT NULL, "
    "UNIQUE (subject, json))",
    *VM_SPANS.create,
    *NODE_SPANS.create,
    "CREATE TABLE IF NOT EXISTS decisions (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, subject INTEGER NOT NULL, "
    "json BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS decisions_of ON decisions (subject, at)",
    "CREATE INDEX IF NOT EXISTS decisions_at ON decisions (at)",
    "CREATE TABLE IF NOT EXISTS moves (namespace TEXT NOT NULL, name TEXT NOT NULL, subject INTEGER NOT NULL, "
    "since INTEGER NOT NULL, until INTEGER NOT NULL, json BLOB NOT NULL, PRIMARY KEY (namespace, name))",
    "CREATE INDEX IF NOT EXISTS moves_of ON moves (subject, since)",
)

COUNTED: Final = ("vm_spans", "node_spans", "decisions", "moves")
"""Tables whose rows are limited."""

_UNUSED: Final = " AND ".join(
    f"NOT EXISTS (SELECT 1 FROM {table} WHERE subject = subjects.id)"  # noqa: S608
    for table in COUNTED
)
REMOVE_SUBJECTS: Final = f"DELETE FROM subjects WHERE {_UNUSED}"  # noqa: S608
"""Remove subjects without any rows."""

OVER_DECISION_LIMIT: Final = "SELECT subject FROM decisions GROUP BY subject HAVING SUM(LENGTH(json)) > ?"
"""Subjects whose decisions have more bytes than the parameter."""

REMOVE_DECISIONS: Final = (
    "DELETE FROM decisions WHERE id IN (SELECT id FROM "
    "(SELECT id, SUM(LENGTH(json)) OVER (ORDER BY at DESC, id DESC) AS total FROM decisions WHERE subject = ?) "
    "WHERE total > ?)"
)
"""Remove the oldest decisions of a subject. Parameters: subject, bytes to keep."""
