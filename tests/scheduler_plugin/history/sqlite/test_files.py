"""The file of a history: damaged, of another program or recorder, or where nothing may be written."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from scheduler_plugin.history.core.history_log import Batch
from scheduler_plugin.history.core.samples import DAY, MINUTE
from scheduler_plugin.history.ports import HistoryError
from scheduler_plugin.history.sqlite.files import MAX_QUARANTINED, StoreError
from scheduler_plugin.history.sqlite.queries import SqliteHistory
from scheduler_plugin.history.sqlite.schema import APPLICATION
from scheduler_plugin.history.sqlite.store import SqliteStore
from tests.scheduler_plugin.history.sqlite.written_history import DB, EVER, NOW, minutes

NOBODY = 65534


def damage(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)


def test_a_second_recorder_is_refused(path: Path, store: SqliteStore) -> None:
    with pytest.raises(StoreError, match="waiting for another recorder, which is writing to"):
        SqliteStore(path, lambda: 0.0)
    store.close()
    SqliteStore(path, lambda: 0.0).close()


async def test_damaged_file_is_set_aside(path: Path) -> None:
    damage(path)
    damage(path.with_name("history.sqlite.damaged-1"))
    store = SqliteStore(path, lambda: NOW / 1000)
    (note,) = store.notes
    assert "was damaged" in note
    assert "history.sqlite.damaged-1767225600" in note
    store.write(Batch(vms=minutes(1)))
    names = ["history.sqlite.damaged-1", "history.sqlite.damaged-1767225600"]
    assert sorted(each.name for each in path.parent.glob("*.damaged-*")) == names
    notes = (await SqliteHistory(path).extent()).notes
    assert [name in note for name, note in zip(names, notes, strict=True)] == [True, True]
    store.close()


def test_asides_of_one_moment_are_all_kept(path: Path) -> None:
    """A journal goes with its file, because it holds what was written last."""
    texts = ["first", "second", "third"]
    for text in texts:
        path.write_text(text)
        path.with_name(f"{path.name}-wal").write_text(f"{text} journal")
        SqliteStore(path, lambda: NOW / 1000).close()
        path.unlink()
    kept = [each.read_text() for each in sorted(path.parent.glob("*.damaged-*"))]
    assert kept == [text for each in texts for text in (each, f"{each} journal")]


async def test_newer_history_is_left_alone(path: Path) -> None:
    store = SqliteStore(path, lambda: NOW / 1000)
    store.write(Batch(vms=minutes(60)))
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 7")
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    for _ in range(2):
        with pytest.raises(StoreError, match="it has version 7, this program supports version 1; upgrade this program"):
            SqliteStore(path, lambda: NOW / 1000)
        with pytest.raises(HistoryError, match="it has version 7"):
            await SqliteHistory(path).extent()
    after = {name: path.with_name(name).read_bytes() for name in before}
    assert after == before
    assert [each.name for each in path.parent.glob("*.damaged-*")] == []


def test_file_upgraded_while_open_is_left_alone(path: Path) -> None:
    """A newer program took the file over while this one had closed it after damage."""
    store = SqliteStore(path, lambda: NOW / 1000)
    store._connection.close()
    damage(path)
    for number in range(MAX_QUARANTINED):
        path.with_name(f"history.sqlite.damaged-{number}").touch()
    store._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    with pytest.raises(StoreError, match="check the disk, then move them away"):
        store.write(Batch(vms=minutes(1)))
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(StoreError, match="a newer release wrote the history"):
        store.write(Batch(vms=minutes(1)))
    store.close()


def test_damage_while_open_sets_file_aside(path: Path) -> None:
    store = SqliteStore(path, lambda: NOW / 1000)
    store.write(Batch(vms=minutes(60)))
    store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store._connection.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    store._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    with pytest.raises(StoreError, match="was damaged"):
        store.maintain(NOW + 20 * DAY)
    store.write(Batch(vms=minutes(1)))
    assert store.size()[1] == 1
    store.close()


async def test_damaged_file_is_set_aside_later(path: Path, tmp_path: Path) -> None:
    store = SqliteStore(path, lambda: NOW / 1000)
    store._connection.close()
    damage(path)
    store._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    in_the_way = [tmp_path / f"history.sqlite.damaged-{number}" for number in range(MAX_QUARANTINED)]
    for each in in_the_way:
        each.touch()
    for _ in range(2):
        with pytest.raises(
            StoreError, match=r"is damaged and cannot be set aside: .*there are 3 damaged files already"
        ):
            store.write(Batch(vms=minutes(1)))
    in_the_way[0].unlink()
    with pytest.raises(
        StoreError, match=r"was set aside as history\.sqlite\.damaged-1767225600, and a new one started"
    ):
        store.write(Batch(vms=minutes(1)))
    store.write(Batch(vms=minutes(1)))
    assert [each.facts.vm for each in await SqliteHistory(path).usage(EVER)] == [DB]
    store.close()


def test_foreign_database_is_not_written(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (a)")
    other.close()
    path.chmod(0o640)
    before = path.read_bytes()
    store = SqliteStore(path, lambda: NOW / 1000)
    assert "expected a history of version 1" in store.notes[0]
    (aside,) = path.parent.glob(f"{path.name}.damaged-*")
    assert (aside.read_bytes(), aside.stat().st_mode & 0o777) == (before, 0o640)
    store.close()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match="cannot be written"):
        SqliteStore(tmp_path / "file" / "history.sqlite", lambda: 0.0)
    (tmp_path / "history.sqlite").mkdir()
    with pytest.raises(StoreError, match="cannot be written"):
        SqliteStore(tmp_path / "history.sqlite", lambda: 0.0)


async def test_read_only_folder_uses_a_copy() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.sqlite"
        store = SqliteStore(path, lambda: NOW / 1000)
        store.write(Batch(vms=minutes(10)))
        store.close()
        path.chmod(0o444)
        path.parent.chmod(0o555)
        with as_a_plain_user():
            (found,) = await SqliteHistory(path).usage(EVER)
        assert found.span.observed == 10 * MINUTE
        path.parent.chmod(0o700)


@contextmanager
def as_a_plain_user() -> Iterator[None]:
    """Root may write anywhere."""
    is_root = not os.geteuid()
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


async def test_missing_or_broken_history_is_reported(path: Path) -> None:
    with pytest.raises(HistoryError, match="there is no history at"):
        await SqliteHistory(path).usage(EVER)
    damage(path)
    with pytest.raises(HistoryError, match="cannot be read: file is not a database"):
        await SqliteHistory(path).usage(EVER)


def test_only_its_user_reads_a_history(path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = SqliteStore(path, lambda: NOW / 1000)
        store.write(Batch(vms=minutes(1)))
        assert {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()} == dict.fromkeys(
            (path.name, *(f"{path.name}{end}" for end in (".lock", "-shm", "-wal"))), 0o600
        )
        store.close()
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", ["history.sqlite", "history.sqlite.lock"])
def test_a_symbolic_link_is_not_followed(path: Path, tmp_path: Path, name: str) -> None:
    other = tmp_path / "other"
    other.write_text("of another program")
    path.with_name(name).symlink_to(other)
    with pytest.raises(StoreError, match="cannot be written"):
        SqliteStore(path, lambda: 0.0)
    assert other.read_text() == "of another program"


def test_damage_is_found_on_open(path: Path) -> None:
    store = SqliteStore(path, lambda: NOW / 1000)
    store.write(Batch(vms=minutes(600)))
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:40_000] + b"\xff" * 4096 * 3 + whole[40_000 + 4096 * 3 :])
    again = SqliteStore(path, lambda: NOW / 1000)
    assert [note.startswith("The history was damaged") for note in again.notes] == [True]
    again.close()
