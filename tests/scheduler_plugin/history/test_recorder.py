"""The recorder continues after any failure, and reports it once."""

from __future__ import annotations

import asyncio
import logging
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from protocol.kubernetes.objects import Json, JsonObject, child, name_of
from protocol.messages import ObjectName
from protocol.ranking.config import RankingConfig
from protocol.units import Seconds
from scheduler_plugin.history.core.decoding import ClusterSample
from scheduler_plugin.history.core.history_log import Batch
from scheduler_plugin.history.core.samples import DAY, HOUR, SECOND, VM_COLUMNS, VmRecord
from scheduler_plugin.history.core.spans import sample_span
from scheduler_plugin.history.costs.bills import bill, key_of
from scheduler_plugin.history.ports import Period
from scheduler_plugin.history.priced_usage import priced_usage
from scheduler_plugin.history.recorder import MAINTENANCE_INTERVAL, Recorder, SampleError
from scheduler_plugin.history.sqlite.files import StoreError
from scheduler_plugin.history.sqlite.queries import SqliteHistory
from scheduler_plugin.history.sqlite.store import SqliteStore
from tests.fake_clock import FakeClock
from tests.pod_databases import pod_database
from tests.scheduler_plugin.history.fleet_pictures import BEGAN, DB, account, look, node, pod, vm

EVER = Period(0, BEGAN + DAY)


class PlayedSource:
    """Returns the test's samples one after the other, and then the last one again and again."""

    def __init__(self, *looks: ClusterSample | Exception) -> None:
        self.looks = list(looks)
        self.answer: Json | None = account()

    async def sample(self) -> ClusterSample:
        found = self.looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def explanation(self, vm: JsonObject) -> Json | None:
        return self.answer


def seen(seconds: float) -> ClusterSample:
    return look(seconds, vm(), nodes=[node(pod())])


async def test_looks_become_a_history(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "history.sqlite"
    clock = FakeClock()
    recorder = Recorder(path, PlayedSource(*(seen(at) for at in range(0, 200, 10))), clock)
    for _ in range(20):
        await recorder.record()
    recorder._close()
    (usage,) = await SqliteHistory(path).usage(EVER)
    assert (usage.facts.vm, usage.span.observed, usage.span.mean("size_cpu")) == (DB, 190 * SECOND, 2000.0)
    assert [each.sentences[0] for each in await SqliteHistory(path).decisions(DB, EVER)] == ["idle"]


async def test_a_recorder_that_is_stopped_writes_the_rest(tmp_path: Path) -> None:
    path, clock = tmp_path / "history.sqlite", FakeClock()
    recorder = Recorder(path, PlayedSource(seen(0), seen(10), SampleError("gone"), SampleError("gone")), clock)
    await recorder.record()
    await recorder.record()
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert [each.span.observed for each in await SqliteHistory(path).usage(EVER)] == [10 * SECOND]
    SqliteStore(path, clock.wall).close()


async def test_what_fails_is_said_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, clock = tmp_path / "history.sqlite", FakeClock()
    source = PlayedSource(SampleError("no answer"), SampleError("no answer"), seen(0), seen(10))
    source.answer = None
    other = SqliteStore(path, clock.wall)
    recorder = Recorder(path, source, clock)
    with caplog.at_level(logging.INFO):
        await recorder.record()
        assert "waiting for another recorder" in recorder.trouble
        other.close()
        for _ in range(4):
            await recorder.record()
    said = [getattr(each, "reason", each.message) for each in caplog.records if each.name == "autoscale.history"]
    assert said == [f"waiting for another recorder, which is writing to {path}", "no answer", "recording again"]
    assert recorder.trouble == ""
    recorder._close()


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_file_that_is_removed_is_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_replaced: bool
) -> None:
    folder = tmp_path / "folder"
    recorder = Recorder(folder / "history.sqlite", PlayedSource(*map(seen, range(0, 200, 10))), FakeClock())
    for _ in range(10):
        await recorder.record()
    shutil.rmtree(folder)
    if is_replaced:
        SqliteStore(folder / "history.sqlite", lambda: 0.0).close()
    for _ in range(10):
        await recorder.record()
    recorder._close()
    (usage,) = await SqliteHistory(folder / "history.sqlite").usage(EVER)
    assert usage.span.until == BEGAN + 190 * SECOND
    assert [each.message for each in caplog.records].count("the history's file was removed: creating a new one") == 1


async def test_idle_history_creates_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    recorder = Recorder(folder / "history.sqlite", PlayedSource(seen(0), SampleError("gone")), FakeClock())
    await recorder.record()
    shutil.rmtree(folder)
    await recorder.record()
    assert not folder.exists()
    recorder._close()


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_sample_with_late_clock_is_skipped(tmp_path: Path, is_restarted: bool) -> None:
    path, clock, behind = tmp_path / "history.sqlite", FakeClock(), -27 * HOUR / SECOND
    looks = [*map(seen, range(0, 370, 10)), seen(behind), *map(seen, range(380, 410, 10))]
    source, troubles = PlayedSource(*looks), set()
    recorder = Recorder(path, source, clock)
    while source.looks:
        if is_restarted and len(source.looks) == 4:
            recorder._close()
            recorder = Recorder(path, source, clock)
        await recorder.record()
        troubles.add(recorder.trouble)
    recorder._close()
    assert troubles == {"", f"the clock is {27 * 3600 + 360} s before the end of the history"}
    (usage,) = await SqliteHistory(path).usage(EVER)
    lost = 20 if is_restarted else 0  # within a gap what was seen before holds on
    assert (usage.span.since, usage.span.until) == (BEGAN, BEGAN + 400 * SECOND)
    assert usage.span.observed == (400 - lost) * SECOND


async def test_lasting_clock_change_drops_future(tmp_path: Path) -> None:
    path, clock = tmp_path / "history.sqlite", FakeClock()
    source = PlayedSource(*map(seen, (0, 10, 5000, 5010, 5080, 100, 110, 700, 710, 780)))
    recorder = Recorder(path, source, clock)
    for left in range(10, 0, -1):
        if left == 3:
            assert recorder.trouble
            clock.jump(MAINTENANCE_INTERVAL)
        await recorder.record()
    recorder._close()
    (usage,) = await SqliteHistory(path).usage(EVER)
    assert (usage.span.since, usage.span.until, usage.span.observed) == (BEGAN, BEGAN + 710 * SECOND, 20 * SECOND)


async def test_clock_briefly_ahead_removes_nothing(tmp_path: Path) -> None:
    path, clock = tmp_path / "history.sqlite", FakeClock()
    ahead = 400 * DAY / SECOND
    recorder = Recorder(path, PlayedSource(*map(seen, (0, 10, 80, ahead, ahead + 10, 90, 100))), clock)
    for _ in range(3):
        await recorder.record()
    clock.jump(MAINTENANCE_INTERVAL)
    for _ in range(4):
        await recorder.record()
    recorder._close()
    (usage,) = await SqliteHistory(path).usage(EVER)
    assert usage.span.since == BEGAN


async def test_retention_works_on_full_disk(tmp_path: Path) -> None:
    path, clock = tmp_path / "history.sqlite", FakeClock()
    sizes = ["12"[at % 2] for at in range(7)]
    looks = [look(30 * at, *(vm(f"vm-{n}", size, version=str(at)) for n in range(50))) for at, size in enumerate(sizes)]
    recorder = Recorder(path, PlayedSource(*looks), clock)
    await recorder.record()
    store = recorder._store
    assert store is not None
    store._connection.execute("PRAGMA max_page_count = 100")
    old = [(VmRecord(DB, "n1"), sample_span(at, at + 1, (1000,) * len(VM_COLUMNS))) for at in range(10)]
    with suppress(StoreError):
        while True:
            store.write(Batch(vms=old))
    troubles = []
    for _ in range(6):
        await recorder.record()
        troubles.append(recorder.trouble.rpartition(": ")[2])
        clock.jump(Seconds(MAINTENANCE_INTERVAL / 2))
    recorder._close()
    assert troubles == [*["database or disk is full"] * 3, "", "", ""]
    assert (await SqliteHistory(path).extent()).since == BEGAN + 90 * SECOND


async def test_pod_becomes_history(tmp_path: Path) -> None:
    """Beside a VM that has the name of the pod."""
    path, name = tmp_path / "history.sqlite", ObjectName("default", "pod/pg-1")
    seen_both = [
        look(at, vm("pg-1"), pod_database(), nodes=[node(pod("pg-1"), pod("pod/pg-1", "1", "1Gi"))])
        for at in range(0, 200, 10)
    ]
    recorder = Recorder(path, PlayedSource(*seen_both), FakeClock())
    for _ in range(20):
        await recorder.record()
    recorder._close()
    history = SqliteHistory(path)
    usages = {str(each.facts.vm): each.span.mean("size_cpu") for each in await history.usage(EVER)}
    assert usages == {"default/pg-1": 2000.0, "default/pod/pg-1": 1000.0}
    assert [each.vm for each in await history.decisions(name, EVER)] == [name]
    (series,) = await history.vm_series(name, EVER, DAY)
    assert series.mean("reserved_cpu") == 1000.0
    table, both = await priced_usage(history, EVER, RankingConfig())
    assert sorted(bill(both, {}, table, key_of("vm"), EVER).lines) == ["default/pg-1", "default/pod/pg-1"]


class SilentSource(PlayedSource):
    """Agents of the namespace evil take ten seconds, those of others respond at once."""

    def __init__(self, clock: FakeClock, *looks: ClusterSample) -> None:
        super().__init__(*looks)
        self.clock = clock
        self.waiting = 0

    async def explanation(self, vm: JsonObject) -> Json | None:
        if name_of(vm).namespace == "evil":
            self.waiting += 1
            try:
                await self.clock.sleep(Seconds(10.0))
            finally:
                self.waiting -= 1
        return await super().explanation(vm)


async def test_silent_agents_leave_no_gap(tmp_path: Path) -> None:
    """Those of one tenant delayed each sample by 40 s, so that nothing was recorded of any database."""
    clock, path = FakeClock(), tmp_path / "history.sqlite"
    evil: list[Json] = []
    for number in range(63):
        silent = vm(f"evil-{number}")
        evil.append({**silent, "metadata": {**child(silent, "metadata"), "namespace": "evil"}})
    looks = (look(at, vm(), *evil, nodes=[node(pod())]) for at in (0, 10))
    source = SilentSource(clock, *looks)
    recorder = Recorder(path, source, clock)
    for _ in range(2):
        recording, began = asyncio.create_task(recorder.record()), clock.now()
        while not recording.done():
            await asyncio.sleep(0.001)
            if source.waiting:
                await clock.advance(1)
        assert clock.now() - began == 5
    recorder._close()
    assert [each.sentences[0] for each in await SqliteHistory(path).decisions(DB, EVER)] == ["idle"]
