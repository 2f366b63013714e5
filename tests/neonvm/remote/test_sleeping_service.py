"""A VM of a real cluster sleeps and wakes under controllers that die at any moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from protocol.guest.sleep import sleep_order_patch, sleep_report
from protocol.kubernetes.objects import Json, text
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.names import ANNOTATION_PERMIT, LABEL_ENABLED
from protocol.permits import encode_permit
from protocol.units import Resources
from tests.examples import THOROUGH
from tests.neonvm.remote.pods_world import DB, World, world
from tests.neonvm.runner.fake_sleeper import FRAME


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[World]:
    """A VM that runs well."""
    async with world(folder) as made:
        await made.boot()
        yield made


async def permit(made: World, cpu: str, mem: str) -> None:
    """The scheduler stores a permit."""
    body: Json = {"metadata": {"annotations": {ANNOTATION_PERMIT: encode_permit(Resources.parse(cpu, mem))}}}
    await made.client.merge_patch(VIRTUAL_MACHINES, DB, body)


async def fall_asleep(made: World, order: str = "a") -> str:
    """Orders a VM to sleep; returns its pod."""
    pod = text(made.status, "podName")
    await made.client.merge_patch(VIRTUAL_MACHINES, DB, {"metadata": {"labels": {LABEL_ENABLED: "true"}}})
    await made.client.merge_patch(VIRTUAL_MACHINES, DB, sleep_order_patch(order))
    await made.until(lambda: made.status.get("phase") == "Asleep")
    await permit(made, "0", "0")
    return pod


async def wake(made: World, pod: str) -> None:
    """Let a packet arrive for a sleeping VM, and give the VM its permit."""
    made.pods[pod].sleeper.frame.set()
    await made.until(lambda: made.status.get("phase") == "Waking")
    assert made.running == [], "not before there is room for it"
    await permit(made, "2", "2Gi")
    await made.until(made.runs_well)


async def test_next_leader_wakes_sleeper(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        pod = await fall_asleep(made)
        await made.kill()
        made.start()
        await wake(made, pod)
        report = sleep_report({"status": made.status})
        assert (report.state, report.message, report.sessions, report.saved) == ("Awake", FRAME, 3, 200_000_000)
        assert (made.pods[pod].sleeper.orders, made.doubled) == (["sleep", "listen", "wake"], [])


async def slept_with_a_death(folder: Path, dies_after: int | None) -> int:
    """Two sleeps of a VM, under a first leader that dies after this many writes. Returns its writes."""
    async with world(folder) as made:
        way = made.start(dies_after)
        await made.create_vm()
        if dies_after is not None:
            made.start()
        await made.until(made.runs_well)
        pod = text(made.status, "podName")
        for order in ("a", "b"):
            assert await fall_asleep(made, order) == pod
            await wake(made, pod)
            await made.until(lambda: sleep_report({"status": made.status}).state == "Awake")
        assert (made.pods[pod].sleeper.orders, made.doubled) == (["sleep", "listen", "wake"] * 2, [])
        return way.writes


async def test_leader_may_die_after_any_write_about_sleep(tmp_path: Path) -> None:
    writes = await slept_with_a_death(tmp_path / "whole", None)
    assert writes > 8
    for dies_after in range(1, writes + 1, 1 if THOROUGH else 5):
        await slept_with_a_death(tmp_path / str(dies_after), dies_after)


async def test_leader_may_die_during_each_order(tmp_path: Path) -> None:
    """The pod carries on with the order, and the next leader sees its end."""
    async with running(tmp_path) as made:
        sleeper = made.pods[text(made.status, "podName")].sleeper
        sleeper.falls.clear()
        await made.client.merge_patch(VIRTUAL_MACHINES, DB, {"metadata": {"labels": {LABEL_ENABLED: "true"}}})
        await made.client.merge_patch(VIRTUAL_MACHINES, DB, sleep_order_patch("a"))
        await made.until(sleeper.falling.is_set)
        await made.kill()
        made.start()
        sleeper.falls.set()
        pod = await fall_asleep(made)
        sleeper.wakes.clear()
        sleeper.frame.set()
        await permit(made, "2", "2Gi")
        await made.until(lambda: sleeper.orders[-1] == "wake")
        await made.kill()
        made.start()
        sleeper.wakes.set()
        await made.until(made.runs_well)
        assert (made.status["podName"], sleeper.orders) == (pod, ["sleep", "listen", "wake"])


async def test_sleeper_wakes_and_moves(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        pod = await fall_asleep(made)
        await made.move()
        await made.until(lambda: made.status.get("phase") == "Waking")
        await permit(made, "2", "2Gi")
        await made.send()
        await made.until(lambda: made.migration.get("phase") == "Succeeded" and made.runs_well())
        assert (made.status["podName"] != pod, made.doubled) == (True, [])


async def test_deleted_sleeper_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        pod = await fall_asleep(made)
        life = made.pods[pod].life
        await made.client.delete(VIRTUAL_MACHINES, DB)
        await made.until(lambda: not made.status and not made.api.objects("pods"))
        assert (await life).code == 0
