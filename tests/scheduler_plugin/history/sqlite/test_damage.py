"""Damage that SQLite sees sets a file aside; damage within rows costs these rows; neither ends anything."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugin.history.core.history_log import Batch
from scheduler_plugin.history.core.samples import HOUR, DecisionRecord, MoveRecord, NodeRecord, VmRecord
from scheduler_plugin.history.core.spans import sample_span
from scheduler_plugin.history.ports import HistoryError
from scheduler_plugin.history.sqlite.files import StoreError
from scheduler_plugin.history.sqlite.queries import SqliteHistory
from scheduler_plugin.history.sqlite.store import SqliteStore
from tests.scheduler_plugin.history.sqlite.written_history import DB, EVER, NOW, minutes

MOVE = MoveRecord(DB, DB, "n1", "n2", "Succeeded", NOW, NOW + 1)


def decision(at: int) -> DecisionRecord:
    return DecisionRecord(NOW + at, DB, "agent", (f"the {at}th",))


def a_history(path: Path) -> Path:
    store = SqliteStore(path, lambda: NOW / 1000)
    nodes = [(NodeRecord("n1", "m5"), sample_span(NOW, NOW + HOUR, (16_000, 1, 2, 3, 4, 5, None, None)))]
    store.write(Batch(minutes(60), nodes, [decision(at) for at in range(3)], [MOVE]))
    store.close()
    return path


def damage(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(statement)


async def test_events_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    path = a_history(tmp_path / "history.sqlite")
    damage(path, "UPDATE decisions SET json = x'7bff' WHERE id = 2")
    damage(path, "UPDATE moves SET json = 7")
    history = SqliteHistory(path)
    assert await history.decisions(DB, EVER) == [decision(2), decision(0)]
    assert await history.moves(None, EVER) == []


async def test_unreadable_facts_keep_vm_time(tmp_path: Path) -> None:
    path = a_history(tmp_path / "history.sqlite")
    (before,) = await SqliteHistory(path).usage(EVER)
    damage(path, "UPDATE facts SET json = x'ff'")
    (after,) = await SqliteHistory(path).usage(EVER)
    assert (after.facts, after.span) == (VmRecord(DB), before.span)
    assert [each.facts for each in await SqliteHistory(path).node_usage(EVER)] == [NodeRecord("n1")]


@pytest.mark.parametrize("statement", ["DELETE FROM facts", "DROP TABLE vm_spans"])
async def test_what_cannot_be_answered_is_said(tmp_path: Path, statement: str) -> None:
    path = a_history(tmp_path / "history.sqlite")
    damage(path, statement)
    with pytest.raises(HistoryError, match="cannot be read"):
        await SqliteHistory(path).usage(EVER)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE vm_spans RENAME COLUMN sum_need_cpu TO sum_need_cp",
        "UPDATE sqlite_schema SET sql = CAST(x'435245415445205441424c4520ff28' AS TEXT) WHERE name = 'moves'",
        "PRAGMA application_id = 7",
    ],
)
async def test_altered_tables_are_set_aside(tmp_path: Path, statement: str) -> None:
    path = a_history(tmp_path / "history.sqlite")
    damage(path, statement)
    store = SqliteStore(path, lambda: NOW / 1000)
    assert "was set aside" in store.notes[0]
    store.write(Batch(minutes(3)))
    store.close()
    (usage,) = await SqliteHistory(path).usage(EVER)
    assert usage.span.observed == 180_000


async def test_foreign_tables_are_no_damage(tmp_path: Path) -> None:
    path = a_history(tmp_path / "history.sqlite")
    damage(path, "ANALYZE")
    damage(path, "DROP INDEX vm_spans_of")
    store = SqliteStore(path, lambda: NOW / 1000)
    assert store.notes == []
    store.close()


QUESTIONS: tuple[Callable[[SqliteHistory], object], ...] = (
    lambda history: history.extent(),
    lambda history: history.usage(EVER),
    lambda history: history.node_usage(EVER),
    lambda history: history.high_needs(EVER, 0.995),
    lambda history: history.decisions(None, EVER),
    lambda history: history.moves(DB, EVER),
    lambda history: history.vm_series(DB, EVER, HOUR),
)


@settings(max_examples=40)
@given(st.floats(0, 1), st.binary(min_size=1, max_size=200), st.booleans())
async def test_no_damage_raises_anything_else(where: float, other: bytes, is_cut: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = a_history(Path(folder) / "history.sqlite")
        whole = bytearray(path.read_bytes())
        at = int(where * len(whole))
        whole[at : at + len(other)] = b"" if is_cut else other
        path.write_bytes(whole)
        for ask in QUESTIONS:
            with suppress(HistoryError):
                await ask(SqliteHistory(path))  # type: ignore[misc]  # each answers something else
        with suppress(StoreError):
            store = SqliteStore(path, lambda: NOW / 1000)
            with suppress(StoreError):
                store.write(Batch(minutes(3, NOW + HOUR)))
            with suppress(StoreError):
                store.maintain(NOW + 30 * HOUR)
            store.close()
