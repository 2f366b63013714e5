"""The port ``History`` for a recorded file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from protocol.messages import ObjectName
from scheduler_plugin.history.core.samples import DecisionRecord, Millis, MoveRecord, NodeRecord, Size, VmRecord
from scheduler_plugin.history.core.spans import Span, clipped, joined, stepped, weighted_share
from scheduler_plugin.history.ports import Extent, HistoryError, NodeUsage, Period, Usage
from scheduler_plugin.history.sqlite.files import open_to_read, quarantined_files
from scheduler_plugin.history.sqlite.schema import NODE_SPANS, VM_SPANS, SpanTable

T = TypeVar("T")
F = TypeVar("F")

_DECISION: Final = msgspec.json.Decoder(DecisionRecord)
_MOVE: Final = msgspec.json.Decoder(MoveRecord)
_VM_FACTS: Final = msgspec.json.Decoder(VmRecord)
_NODE_FACTS: Final = msgspec.json.Decoder(NodeRecord)
_LONGEST_SPAN: Final = 3 * 3600 * 1000
"""Maximum length of a span (ms), to limit index searches: the widest tier is an hour, and spans may end beyond it."""


class SqliteHistory:
    """See ``History``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def extent(self) -> Extent:
        """See ``History``."""
        return await self._ask(self._extent)

    async def vm_series(self, vm: ObjectName, period: Period, step: Millis) -> Sequence[Span]:
        """See ``History``."""
        return await self._ask(lambda connection: _series(connection, vm, period, step))

    async def decisions(self, vm: ObjectName | None, period: Period, most: int = 500) -> Sequence[DecisionRecord]:
        """See ``History``."""
        rows = await self._ask(lambda connection: _events(connection, "decisions", "at", "at", vm, period, most))
        return _readable(_DECISION, rows)

    async def moves(self, vm: ObjectName | None, period: Period, most: int = 500) -> Sequence[MoveRecord]:
        """See ``History``."""
        rows = await self._ask(lambda connection: _events(connection, "moves", "since", "until", vm, period, most))
        return _readable(_MOVE, rows)

    async def usage(self, period: Period) -> Sequence[Usage]:
        """See ``History``."""
        totals = await self._ask(lambda connection: _totals(connection, VM_SPANS, _vm_facts, period))
        return [Usage(facts, span, (cpu, mem)) for facts, span, (cpu, mem) in totals]

    async def node_usage(self, period: Period) -> Sequence[NodeUsage]:
        """See ``History``."""
        totals = await self._ask(lambda connection: _totals(connection, NODE_SPANS, _node_facts, period))
        return [NodeUsage(facts, span) for facts, span, _ in totals]

    async def high_needs(self, period: Period, share: float) -> Mapping[ObjectName, Size]:
        """See ``History``."""
        return await self._ask(lambda connection: _high_needs(connection, period, share))

    def _extent(self, connection: sqlite3.Connection) -> Extent:
        spans = "(SELECT since, until FROM vm_spans UNION ALL SELECT since, until FROM node_spans)"
        since, until = connection.execute(f"SELECT MIN(since), MAX(until) FROM {spans}").fetchone()  # noqa: S608
        notes = [
            f"A damaged history was set aside as {file.name}: its contents are missing here."
            for file in quarantined_files(self._path)
        ]
        return Extent(since, until, tuple(notes))

    async def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(self._answer, question)

    def _answer(self, question: Callable[[sqlite3.Connection], T]) -> T:
        try:
            # Open it for each query, because the file may have been set aside.
            with closing(open_to_read(self._path)) as connection:
                # One transaction, so that all statements see the same snapshot.
                connection.execute("BEGIN")
                return question(connection)
        except (sqlite3.Error, ValueError, TypeError, LookupError) as error:  # rows of a damaged file may be anything
            raise HistoryError(f"the history {self._path} cannot be read: {error}") from error


def _series(connection: sqlite3.Connection, vm: ObjectName, period: Period, step: Millis) -> list[Span]:
    condition = (
        "WHERE subject = (SELECT id FROM subjects WHERE kind = 'vm' AND namespace = ? AND name = ?) "
        "AND since > ? AND since < ? AND until > ? ORDER BY since"
    )
    # The first condition is redundant, but only it uses the index on ``since``.
    bounds = (period.since - _LONGEST_SPAN, period.until, period.since)
    rows = connection.execute(VM_SPANS.select + condition, (vm.namespace, vm.name, *bounds))
    return stepped(_parts((VM_SPANS.read(row)[1] for row in rows), period), period.since, step)


def _parts(spans: Iterable[Span], period: Period) -> Iterable[Span]:
    parts = (clipped(span, period.since, period.until) for span in spans)
    return (part for part in parts if part is not None)


def _vm_facts(namespace: str, name: str, record: bytes) -> VmRecord:
    try:
        return _VM_FACTS.decode(record)
    except ValueError:
        return VmRecord(ObjectName(namespace, name))


def _node_facts(_: str, name: str, record: bytes) -> NodeRecord:
    try:
        return _NODE_FACTS.decode(record)
    except ValueError:
        return NodeRecord(name)


def _readable(decoder: msgspec.json.Decoder[T], rows: Iterable[bytes]) -> list[T]:
    """Decode the records; damaged ones are skipped."""
    records = []
    for row in rows:
        with suppress(ValueError, TypeError):
            records.append(decoder.decode(row))
    return records


def _totals(
    connection: sqlite3.Connection, table: SpanTable, decode: Callable[[str, str, bytes], F], period: Period
) -> list[tuple[F, Span, tuple[int, ...]]]:
    """Totals of the period. SQLite sums spans within it; spans across its ends are cut here."""
    spans_by_facts: dict[int, list[Span]] = defaultdict(list)
    known_times: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for row in connection.execute(table.totals, (period.since, period.until)):
        number, span, known_time = table.read_total(row)
        spans_by_facts[number].append(span)
        known_times[number].append(known_time)
    for end in (period.since, period.until):
        crossing = connection.execute(
            f"{table.select} WHERE tier IN (0, 1, 2) AND since > ? AND since < ? AND until > ?",
            (end - _LONGEST_SPAN, end, end),
        )
        for number, span in map(table.read, crossing):
            part = clipped(span, period.since, period.until)
            # A span across both ends was added at the first end.
            is_twice = end == period.until and span.since < period.since
            if part is not None and not is_twice:
                spans_by_facts[number].append(part)
                known_times[number].append(table.while_known(part))
    select_facts = "SELECT facts.id, namespace, name, json FROM facts JOIN subjects ON subjects.id = facts.subject"
    facts = {number: record for number, *record in connection.execute(select_facts)}
    return [
        (decode(*facts[number]), joined(spans), tuple(map(sum, zip(*known_times[number], strict=True))))
        for number, spans in sorted(spans_by_facts.items())
    ]


def _events(  # noqa: PLR0913, PLR0917 - the parts of one statement
    connection: sqlite3.Connection, table: str, begin: str, end: str, vm: ObjectName | None, period: Period, most: int
) -> list[bytes]:
    of_vm = "subject = (SELECT id FROM subjects WHERE kind = 'vm' AND namespace = ? AND name = ?) AND "
    rows = connection.execute(
        f"SELECT json FROM {table} WHERE {'' if vm is None else of_vm}{begin} < ? AND {end} >= ? "  # noqa: S608
        f"ORDER BY {begin} DESC, rowid DESC LIMIT ?",
        (*(() if vm is None else (vm.namespace, vm.name)), period.until, period.since, most),
    )
    return [row[0] for row in rows]


def _high_needs(connection: sqlite3.Connection, period: Period, share: float) -> dict[ObjectName, Size]:
    needs: dict[ObjectName, list[int]] = {}
    for place, column in enumerate(("need_cpu", "need_mem")):
        levels: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        rows = connection.execute(
            f"SELECT namespace, name, peak_{column}, "  # noqa: S608
            f"SUM(known_{column} * (MIN(until, ?2) - MAX(since, ?1)) / (until - since)) FROM vm_spans "
            f"JOIN subjects ON subjects.id = subject WHERE since > ?3 AND since < ?2 AND until > ?1 "
            f"AND known_{column} > 0 GROUP BY subject, peak_{column}",
            (period.since, period.until, period.since - _LONGEST_SPAN),
        )
        for namespace, name, peak, known_time in rows:
            levels[namespace, name].append((peak, known_time))
        for (namespace, name), amounts in levels.items():
            needs.setdefault(ObjectName(namespace, name), [0, 0])[place] = weighted_share(amounts, share)
    return {vm: Size(*amounts) for vm, amounts in needs.items()}
