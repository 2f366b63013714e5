"""Writes a history's file: batches of spans, decisions and migrations. Maintenance limits the size of the file.

Methods may be slow, so call them off the event loop, from one thread at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from protocol.messages import ObjectName
from scheduler_plugin.history.core.history_log import Batch
from scheduler_plugin.history.core.retention import (
    MAX_DECISION_BYTES,
    TIERS,
    Fold,
    RetentionBounds,
    folds,
    next_halvings,
)
from scheduler_plugin.history.core.samples import Millis, MoveRecord, NodeRecord, VmRecord
from scheduler_plugin.history.core.spans import Span
from scheduler_plugin.history.sqlite.files import (
    FAULTS,
    FileNumber,
    StoreError,
    file_number,
    is_damage,
    open_to_write,
    quarantine,
    recorder_lock,
)
from scheduler_plugin.history.sqlite.schema import (
    COUNTED,
    NODE_SPANS,
    OVER_DECISION_LIMIT,
    REMOVE_DECISIONS,
    REMOVE_SUBJECTS,
    SPAN_TABLES,
    VM_SPANS,
    SpanTable,
)

T = TypeVar("T")

_AT_ONCE: Final = 12
"""Number of widths to coarsen per transaction, so that transactions and the journal stay small."""


class SqliteStore:
    """The only writer of a file, to be closed. Raises ``StoreError`` if the file cannot be written.

    ``notes`` are sentences on problems of the file.
    """

    def __init__(self, path: Path, wall: Callable[[], float], bounds: RetentionBounds | None = None) -> None:
        self.notes: list[str] = []
        self._path, self._wall, self._bounds = path, wall, bounds or RetentionBounds()
        self._halvings = 0
        self._is_closed = False
        self._number: FileNumber | None = None
        self._subjects: dict[tuple[str, str, str], int] = {}
        self._facts: dict[VmRecord | NodeRecord, tuple[int, int]] = {}
        self._resources = ExitStack()
        with ExitStack() as stack:
            # Take the lock first; it is released if opening fails.
            stack.enter_context(recorder_lock(path))
            self._connection = self._opened()
            self._resources = stack.pop_all()

    def close(self) -> None:
        """Close the file and release the lock."""
        self._connection.close()
        self._resources.close()

    def is_gone(self) -> bool:
        """Return True if the file was removed from its path, so that further writes would be lost."""
        # On POSIX a removed file remains writable.
        return not self._is_closed and file_number(self._path) != self._number

    def write(self, batch: Batch) -> None:
        """Write the whole batch or nothing. Raises ``StoreError``; then the batch is lost."""
        self._with_recovery(lambda: self._write(batch))

    def latest(self) -> Millis | None:
        """The last time of any VM or node in the file; None if it is empty. Raises ``StoreError``."""
        return self._with_recovery(self._latest)

    def remove_after(self, at: Millis) -> None:
        """Remove everything after ``at``, because the clock was wrong then. Raises ``StoreError``."""
        self._with_recovery(lambda: self._remove_after(at))

    def maintain(self, now: Millis) -> None:
        """Make old spans coarser and remove the oldest, more of both if the file is too large.

        Raises ``StoreError``.
        """
        self._with_recovery(lambda: self._maintain(now))

    def _opened(self) -> sqlite3.Connection:
        try:
            connection = open_to_write(self._path)
            self._number = file_number(self._path)
        except FAULTS as error:
            if not is_damage(error):
                raise StoreError(f"the history {self._path} cannot be written: {error}") from error
            return self._start_new_file(error)
        except OSError as error:
            raise StoreError(f"the history {self._path} cannot be written: {error.strerror}") from error
        return connection

    def _start_new_file(self, error: Exception) -> sqlite3.Connection:
        try:
            aside = quarantine(self._path, self._wall())
            # Ids of subjects and facts belong to the old file.
            self._subjects.clear()
            self._facts.clear()
            connection = open_to_write(self._path)
            self._number = file_number(self._path)
        except (OSError, *FAULTS) as again:
            raise StoreError(f"the history {self._path} is damaged and cannot be set aside: {again}") from again
        self.notes.append(
            f"The history was damaged ({error}). It was set aside as {aside.name}, and a new one started."
        )
        return connection

    def _with_recovery(self, work: Callable[[], T]) -> T:
        if self._is_closed:
            # The old file was damaged, and no new one could be opened: try again for each batch.
            self._reopen(self._opened)
        try:
            return work()
        except FAULTS as error:
            # Damage must not end the program: set the file aside and start a new one.
            if is_damage(error):
                # ``error`` is unbound once the except clause ends.
                damage = error
                self._connection.close()
                self._reopen(lambda: self._start_new_file(damage))
            raise StoreError(f"the history {self._path} cannot be written: {error}") from error

    def _reopen(self, opened: Callable[[], sqlite3.Connection]) -> None:
        """Open the file again. Raises ``StoreError`` if opening fails, or with the note if a file was set aside."""
        self._is_closed, notes_before = True, len(self.notes)
        self._connection = opened()
        self._is_closed = False
        # Raised although writing works again, because this batch is lost.
        if len(self.notes) > notes_before:
            raise StoreError(self.notes[-1])

    def _write(self, batch: Batch) -> None:
        cached = len(self._subjects), len(self._facts)
        try:
            with self._transaction() as connection:
                self._insert(connection, VM_SPANS, batch.vms)
                self._insert(connection, NODE_SPANS, batch.nodes)
                connection.executemany(
                    "INSERT INTO decisions (at, subject, json) VALUES (?, ?, ?)",
                    [
                        (decision.at, self._vm(decision.vm), msgspec.json.encode(decision))
                        for decision in batch.decisions
                    ],
                )
                connection.executemany(
                    # Replaced at each change.
                    "INSERT OR REPLACE INTO moves (namespace, name, subject, since, until, json) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        (*_key(move), self._vm(move.vm), move.since, move.until, msgspec.json.encode(move))
                        for move in batch.moves
                    ],
                )
        except sqlite3.Error:
            if cached != (len(self._subjects), len(self._facts)):  # new ids were rolled back
                self._subjects.clear()
                self._facts.clear()
            raise

    def _insert(
        self, connection: sqlite3.Connection, table: SpanTable, spans: Iterable[tuple[VmRecord | NodeRecord, Span]]
    ) -> None:
        connection.executemany(table.insert, [table.row(*self._numbers(facts), span) for facts, span in spans])

    def _transaction(self) -> sqlite3.Connection:
        # Take the write lock at the start, so that no transaction fails half way.
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def _vm(self, vm: ObjectName) -> int:
        return self._subject("vm", vm.namespace, vm.name)

    def _subject(self, kind: str, namespace: str, name: str) -> int:
        key = (kind, namespace, name)
        if key not in self._subjects:
            self._connection.execute("INSERT OR IGNORE INTO subjects (kind, namespace, name) VALUES (?, ?, ?)", key)
            row = self._connection.execute(
                "SELECT id FROM subjects WHERE kind = ? AND namespace = ? AND name = ?", key
            ).fetchone()
            self._subjects[key] = row[0]
        return self._subjects[key]

    def _numbers(self, facts: VmRecord | NodeRecord) -> tuple[int, int]:
        """Ids of the object and the facts."""
        if facts not in self._facts:
            subject = self._vm(facts.vm) if isinstance(facts, VmRecord) else self._subject("node", "", facts.node)
            key = (subject, msgspec.json.encode(facts))
            self._connection.execute("INSERT OR IGNORE INTO facts (subject, json) VALUES (?, ?)", key)
            row = self._connection.execute("SELECT id FROM facts WHERE subject = ? AND json = ?", key).fetchone()
            self._facts[facts] = subject, row[0]
        return self._facts[facts]

    def _latest(self) -> Millis | None:
        ends = [
            self._connection.execute(f"SELECT MAX(until) FROM {table.name}").fetchone()[0]  # noqa: S608
            for table in SPAN_TABLES
        ]
        return max((end for end in ends if end is not None), default=None)

    def _remove_after(self, at: Millis) -> None:
        with self._transaction() as connection:
            for table in SPAN_TABLES:
                # Whole spans, because the end of one that began earlier is wrong too.
                connection.execute(f"DELETE FROM {table.name} WHERE until > ?", (at,))  # noqa: S608
            connection.execute("DELETE FROM decisions WHERE at > ?", (at,))
            connection.execute("DELETE FROM moves WHERE until > ?", (at,))

    def _maintain(self, now: Millis) -> None:
        # On a full disk this may be the only way to make room.
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._apply_retention(now)
        while True:
            before = self._halvings
            self._halvings = next_halvings(before, *self.size(), self._bounds)
            # The store is small enough, or as coarse as possible.
            if self._halvings <= before:
                return
            self._apply_retention(now)

    def _apply_retention(self, now: Millis) -> None:
        *coarser, last = folds(now, self._halvings)
        for table in SPAN_TABLES:
            # Before the folds, because a full disk has no room for coarser spans. From all tiers, because after a long
            # time without maintenance there are old spans in fine ones too.
            for tier in range(len(TIERS)):
                self._remove(table, tier, last.before)
            for fold in coarser:
                self._fold(table, fold)
        oldest = last.before
        with self._transaction() as connection:
            connection.execute("DELETE FROM decisions WHERE at < ?", (oldest,))
            connection.execute("DELETE FROM moves WHERE until < ?", (oldest,))
            # Of a VM with too many decisions, remove only its own.
            for subject in connection.execute(OVER_DECISION_LIMIT, (MAX_DECISION_BYTES,)).fetchall():
                connection.execute(REMOVE_DECISIONS, (*subject, MAX_DECISION_BYTES))
            connection.execute(
                "DELETE FROM facts WHERE id NOT IN (SELECT facts FROM vm_spans UNION SELECT facts FROM node_spans)"
            )
            connection.execute(REMOVE_SUBJECTS)
            self._facts.clear()
            self._subjects.clear()
        # Each fetch frees one page.
        self._connection.execute("PRAGMA incremental_vacuum").fetchall()

    def _fold(self, table: SpanTable, fold: Fold) -> None:
        width = TIERS[fold.tier + 1].width
        for begin, end in self._parts(table, fold.tier, fold.before, width):
            with self._transaction() as connection:
                # In one transaction, or a reader could count spans twice.
                connection.execute(table.coarsen, (fold.tier + 1, width, fold.tier, begin, end))
                connection.execute(table.remove, (fold.tier, begin, end))

    def _remove(self, table: SpanTable, tier: int, before: Millis) -> None:
        for part in self._parts(table, tier, before, TIERS[-1].width):
            with self._transaction() as connection:
                connection.execute(table.remove, (tier, *part))

    def _parts(self, table: SpanTable, tier: int, before: Millis, width: Millis) -> Iterator[tuple[Millis, Millis]]:
        """Split the time before ``before`` that has spans of a tier into parts for one transaction each."""
        (oldest,) = self._connection.execute(
            f"SELECT MIN(since) FROM {table.name} WHERE tier = ? AND since < ?",  # noqa: S608
            (tier, before),
        ).fetchone()
        if oldest is not None:
            for begin in range(oldest // width * width, before, _AT_ONCE * width):
                yield begin, min(begin + _AT_ONCE * width, before)

    def size(self) -> tuple[int, int]:
        """Bytes in use and rows. Raises ``sqlite3.Error``."""
        pages, unused, page_size = (
            self._connection.execute(f"PRAGMA {pragma}").fetchone()[0]
            for pragma in ("page_count", "freelist_count", "page_size")
        )
        counts = (self._connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in COUNTED)  # noqa: S608
        # Free pages stay in the file until the vacuum.
        return (pages - unused) * page_size, sum(counts)


def _key(move: MoveRecord) -> tuple[str, str]:
    """Key of a migration. It includes the start, because names may be reused."""
    return move.name.namespace, f"{move.name.name}@{move.since}"
