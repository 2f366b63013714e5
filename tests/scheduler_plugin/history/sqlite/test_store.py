"""The store returns what was written; a full disk, another process and hostile names are tolerated."""

from __future__ import annotations

import sqlite3
from contextlib import closing
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
    MoveRecord,
    NodeRecord,
    Size,
    VmRecord,
)
from scheduler_plugin.history.core.spans import MOST, joined, sample_span
from scheduler_plugin.history.ports import Period
from scheduler_plugin.history.sqlite.files import StoreError
from scheduler_plugin.history.sqlite.queries import SqliteHistory
from scheduler_plugin.history.sqlite.store import SqliteStore
from tests.scheduler_plugin.history.sqlite.written_history import DB, EVER, FACTS, NOW, ROW, minutes


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


async def test_future_samples_are_removed(path: Path, store: SqliteStore) -> None:
    store.write(Batch(vms=minutes(10), decisions=[DecisionRecord(NOW + HOUR, DB, "agent", ("x",))]))
    store.remove_after(NOW + 5 * MINUTE)
    history = SqliteHistory(path)
    assert (await history.extent()).until == NOW + 5 * MINUTE
    assert await history.decisions(DB, EVER) == []


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


def test_names_of_which_nothing_is_kept_are_forgotten(path: Path, store: SqliteStore) -> None:
    store.write(
        Batch(vms=[each for at in range(50) for each in minutes(1, facts=VmRecord(ObjectName("a", f"vm-{at}")))])
    )
    store.maintain(NOW + 400 * DAY)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM subjects").fetchone() == (0,)
    store.write(Batch(vms=minutes(1)))
