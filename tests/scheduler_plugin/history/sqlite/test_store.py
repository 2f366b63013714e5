"""The store returns what was written; a full disk, damage, another recorder and hostile names are tolerated."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from protocol.messages import ObjectName
from scheduler_plugin.history.core.history_log import Batch
from scheduler_plugin.history.core.retention import MAX_DECISION_BYTES, RetentionBounds
from scheduler_plugin.history.core.samples import (
    DAY,
    HOUR,
    MINUTE,
    DecisionRecord,
    Millis,
    MoveRecord,
    NodeRecord,
    Size,
    VmRecord,
)
from scheduler_plugin.history.core.spans import MOST, Span, joined, sample_span
from scheduler_plugin.history.ports import HistoryError, Period
from scheduler_plugin.history.sqlite.files import MAX_QUARANTINED, StoreError
from scheduler_plugin.history.sqlite.queries import SqliteHistory
from scheduler_plugin.history.sqlite.schema import APPLICATION
from scheduler_plugin.history.sqlite.store import SqliteStore

NOW: Millis = 1_767_225_600_000
DB = ObjectName("default", "db")
FACTS = VmRecord(DB, "n1", "shop", Size(250, 1024), Size(8000, 4096), (("team", "a"),))
ROW = (2000, 4096, 1000, 2048, 2000, 4096, 2000, 4096, None, None)
NOBODY = 65534
EVER = Period(0, NOW + DAY)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    found = SqliteStore(path, lambda: NOW / 1000)
    yield found
    found.close()


def minutes(count: int, since: Millis = NOW, facts: VmRecord = FACTS) -> list[tuple[VmRecord, Span]]:
    """A span for each minute, each with its own need."""
    return [
        (facts, sample_span(since + at * MINUTE, since + (at + 1) * MINUTE, (*ROW[:2], 1000 + at, *ROW[3:])))
        for at in range(count)
    ]


def damage(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)


async def test_spans_come_back_as_they_were_written(path: Path, store: SqliteStore) -> None:
    written = minutes(3)
    store.write(Batch(vms=written, nodes=[(NodeRecord("n1", "m5"), sample_span(NOW, NOW + MINUTE, tuple(range(8))))]))
    history = SqliteHistory(path)
    assert list(await history.vm_series(DB, EVER, MINUTE)) == [span for _, span in written]
    assert await history.vm_series(ObjectName("default", "none"), EVER, MINUTE) == []
    assert [(each.facts, each.span) for each in await history.usage(EVER)] == [(FACTS, joined([s for _, s in written]))]
    assert [each.facts for each in await history.node_usage(EVER)] == [NodeRecord("n1", "m5")]
    assert (await history.extent()).until == NOW + 3 * MINUTE
    assert await history.high_needs(EVER, 0.5) == {DB: Size(1001, 2048)}


async def test_a_period_that_cuts_spans_counts_their_parts(path: Path, store: SqliteStore) -> None:
    store.write(Batch(vms=minutes(10)))
    history = SqliteHistory(path)
    cuts = (NOW - HOUR, NOW + 90_500, NOW + 91_000, NOW + 5 * MINUTE, NOW + HOUR)
    parts = [each.span for since, until in pairwise(cuts) for each in await history.usage(Period(since, until))]
    (whole,) = await history.usage(EVER)
    assert (joined(parts).sums, joined(parts).known_times) == (whole.span.sums, whole.span.known_times)
    (within,) = await history.usage(Period(NOW + 91_000, NOW + 92_000))
    assert within.span.sums[0] == 2000 * 1000
    assert (
        sum(span.observed for span in await history.vm_series(DB, Period(NOW + 30_000, NOW + 90_000), HOUR)) == 60_000
    )


async def test_need_counts_by_overlap(path: Path, store: SqliteStore) -> None:
    rows = [(at, HOUR, (*ROW[:2], need, need, *ROW[4:])) for at, need in ((0, 4000), (HOUR, 1000), (2 * HOUR, 3000))]
    store.write(Batch(vms=[(FACTS, sample_span(NOW + at, NOW + at + lasted, row)) for at, lasted, row in rows]))
    history = SqliteHistory(path)
    asked = {
        "of one span's middle": Period(NOW + 10 * MINUTE, NOW + 20 * MINUTE),
        "mostly of the first": Period(NOW + 10 * MINUTE, NOW + HOUR + MINUTE),
        "hardly of the last": Period(NOW + HOUR, NOW + 2 * HOUR + MINUTE // 10),
    }
    needs = {name: (await history.high_needs(period, 0.99))[DB].cpu for name, period in asked.items()}
    assert needs == {"of one span's middle": 4000, "mostly of the first": 4000, "hardly of the last": 1000}


async def test_coarser_spans_have_the_same_integrals(path: Path, store: SqliteStore) -> None:
    store.write(Batch(vms=minutes(180)))
    history = SqliteHistory(path)
    (before,) = await history.usage(EVER)
    counts = []
    for later in (0, 4 * HOUR, 4 * DAY):
        store.maintain(NOW + 3 * HOUR + later)
        (after,) = await history.usage(EVER)
        assert after == before
        counts.append(store.size()[1])
    assert counts == [120 + 12, 36, 3]
    store.maintain(NOW + 60 * DAY)
    assert await history.usage(EVER) == []
    assert store.size()[1] == 0


async def test_oversized_store_coarsens_sooner(path: Path) -> None:
    store = SqliteStore(path, lambda: NOW / 1000, RetentionBounds(most_rows=40))
    store.write(Batch(vms=minutes(110)))
    (before,) = await SqliteHistory(path).usage(EVER)
    store.maintain(NOW + 110 * MINUTE)
    assert store.size()[1] <= 40
    (after,) = await SqliteHistory(path).usage(EVER)
    assert after == before
    store.close()


async def test_decisions_and_moves_come_newest_first(path: Path, store: SqliteStore) -> None:
    said = [DecisionRecord(NOW + at, DB, "agent", (f"<script>{at}</script>",), Size(1, 2)) for at in range(3)]
    other = DecisionRecord(NOW, ObjectName("default", "other"), "scheduler", ("x",))
    move = MoveRecord(ObjectName("default", "m"), DB, "n1", "n2", "Running", NOW, NOW + 5)
    store.write(Batch(decisions=[*said, other], moves=[move]))
    ended = MoveRecord(ObjectName("default", "m"), DB, "n1", "n2", "Succeeded", NOW, NOW + 9, "full", 80)
    store.write(Batch(moves=[ended]))
    history = SqliteHistory(path)
    assert await history.decisions(DB, EVER) == said[::-1]
    assert await history.decisions(DB, Period(NOW + 1, NOW + 2)) == [said[1]]
    assert len(await history.decisions(None, EVER)) == 4
    assert await history.decisions(None, EVER, most=1) == [said[2]]
    assert await history.moves(DB, EVER) == await history.moves(None, EVER) == [ended]
    again = MoveRecord(ObjectName("default", "m"), DB, "n2", "n1", "Pending", NOW + 20, NOW + 25)
    store.write(Batch(moves=[again]))
    assert await history.moves(DB, EVER) == [again, ended]


@pytest.mark.parametrize(
    "name", ["'; DROP TABLE vm_spans; --", '" OR 1=1', "<script>alert(1)</script>", "\0", "ü" * 300]
)
async def test_names_are_data(path: Path, store: SqliteStore, name: str) -> None:
    odd = ObjectName(name, name)
    facts = VmRecord(odd, name, name, labels=((name, name),))
    store.write(Batch(vms=minutes(1, facts=facts), decisions=[DecisionRecord(NOW, odd, "agent", (name,))]))
    history = SqliteHistory(path)
    assert [each.facts for each in await history.usage(EVER)] == [facts]
    assert len(await history.vm_series(odd, EVER, MINUTE)) == 1
    assert [each.sentences for each in await history.decisions(odd, EVER)] == [(name,)]


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


async def test_lying_agent_affects_only_its_vm(path: Path, store: SqliteStore) -> None:
    """The newest of its decisions are kept, and all of the others'."""
    other = ObjectName("default", "other")
    words = ("x" * 30_000,)
    for hour in range(5):
        said = [DecisionRecord(NOW + hour * HOUR + at, DB, "agent", words) for at in range(50)]
        store.write(Batch(decisions=[*said, DecisionRecord(NOW + hour * HOUR, other, "agent", ("x",))]))
    store.maintain(NOW + 10 * HOUR)
    history = SqliteHistory(path)
    kept = [each.at - NOW for each in await history.decisions(DB, EVER)]
    everything = [hour * HOUR + at for hour in reversed(range(5)) for at in reversed(range(50))]
    assert kept == everything[: MAX_DECISION_BYTES // len(msgspec.json.encode(DecisionRecord(NOW, DB, "agent", words)))]
    assert len(await history.decisions(other, EVER)) == 5


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


async def test_full_disk_loses_only_the_batch(path: Path) -> None:
    store = SqliteStore(path, lambda: NOW / 1000)
    store.write(Batch(vms=minutes(1)))
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full"):
        store.write(Batch(vms=minutes(400, NOW + MINUTE, VmRecord(ObjectName("default", "other")))))
    store._connection.execute("PRAGMA max_page_count = 100000")
    store.write(Batch(vms=minutes(1, NOW + MINUTE, VmRecord(ObjectName("default", "other")))))
    assert [each.facts.vm.name for each in await SqliteHistory(path).usage(EVER)] == ["db", "other"]
    store.close()


def test_locked_file_loses_the_batch(path: Path, store: SqliteStore) -> None:
    store._connection.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        store.write(Batch(vms=minutes(1)))
    other.close()
    store.write(Batch(vms=minutes(1)))


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


async def test_future_samples_are_removed(path: Path, store: SqliteStore) -> None:
    store.write(Batch(vms=minutes(10), decisions=[DecisionRecord(NOW + HOUR, DB, "agent", ("x",))]))
    store.remove_after(NOW + 5 * MINUTE)
    history = SqliteHistory(path)
    assert (await history.extent()).until == NOW + 5 * MINUTE
    assert await history.decisions(DB, EVER) == []


async def test_missing_or_broken_history_is_reported(path: Path) -> None:
    with pytest.raises(HistoryError, match="there is no history at"):
        await SqliteHistory(path).usage(EVER)
    damage(path)
    with pytest.raises(HistoryError, match="cannot be read: file is not a database"):
        await SqliteHistory(path).usage(EVER)


async def test_hostile_sizes_do_not_stop_recorder(path: Path, store: SqliteStore) -> None:
    store.write(Batch(vms=[(FACTS, sample_span(NOW, NOW + 2 * MINUTE, (2**53,) * len(ROW)))]))
    ((_, span),) = [(each.facts, each.span) for each in await SqliteHistory(path).usage(EVER)]
    assert span.peaks == (MOST,) * len(ROW)


async def test_sums_of_large_node_do_not_overflow(path: Path, store: SqliteStore) -> None:
    amounts = (0, 12 * 2**30, *[0] * 6)  # 12 TiB
    node = NodeRecord("n1", "u-12tb1")
    store.write(
        Batch(nodes=[(node, sample_span(NOW + at * HOUR, NOW + (at + 1) * HOUR, amounts)) for at in range(35 * 24)])
    )
    (found,) = await SqliteHistory(path).node_usage(Period(NOW, NOW + 35 * DAY))
    assert found.span.sums[1] == 12 * 2**30 * 35 * DAY


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


def test_names_of_which_nothing_is_kept_are_forgotten(path: Path, store: SqliteStore) -> None:
    store.write(
        Batch(vms=[each for at in range(50) for each in minutes(1, facts=VmRecord(ObjectName("a", f"vm-{at}")))])
    )
    store.maintain(NOW + 400 * DAY)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM subjects").fetchone() == (0,)
    store.write(Batch(vms=minutes(1)))
