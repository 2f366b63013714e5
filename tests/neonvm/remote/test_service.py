"""VMs on a real cluster, in stories: pods, sizes, restarts and migrations, with controllers that die at any moment."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from protocol.kubernetes.objects import Json, child, items, text
from protocol.kubernetes.resources import MIGRATIONS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.units import Seconds
from tests.examples import THOROUGH
from tests.neonvm.remote.pods_world import DB, World, world
from tests.neonvm.remote.world_parts import STEP

ON_THE_NETWORK: Json = {"extraNetwork": {"enable": True}}


async def running(made: World, **spec: object) -> str:
    made.start()
    await made.create_vm(**spec)
    await made.until(made.runs_well)
    return text(made.status, "podName")


async def test_vm_gets_pod_and_reports_size(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        pod = await running(made, **ON_THE_NETWORK)
        status = made.status
        assert (status["podName"], status["podIP"], status["node"]) == (pod, "10.1.0.1", "n1")
        assert (status["cpus"], status["memorySize"]) == ("2", "2Gi")
        assert made.claims == [status["extraNetIP"]]
        said = {
            text(each, "type"): (text(each, "status"), text(each, "reason"))
            for each in items({"s": status}, "s", "conditions")
        }
        assert said == {"Available": ("True", "GuestRuns"), "Accelerated": ("False", "Emulated")}


async def test_a_vm_follows_its_spec(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await running(made)
        use: Json = {"cpus": {"use": "1500m"}, "memorySlots": {"use": 4}}
        await made.client.merge_patch(VIRTUAL_MACHINES, DB, {"spec": {"guest": use}})
        await made.until(lambda: (made.status["cpus"], made.status["memorySize"]) == ("1500m", "4Gi"))
        assert made.claims == []


async def test_ended_guest_restarts_with_its_address(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        first = await running(made, **ON_THE_NETWORK)
        address = made.status["extraNetIP"]
        made.pods[first].qemu.end_with("its kernel panicked")
        await made.until(lambda: made.runs_well() and made.status["podName"] != first)
        assert (made.status["restartCount"], made.status["extraNetIP"], made.doubled) == (1, address, [])


async def test_a_deleted_vm_leaves_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await running(made, **ON_THE_NETWORK)
        await made.client.delete(VIRTUAL_MACHINES, DB)
        await made.until(lambda: not made.status and not made.claims and not made.api.objects("pods"))


async def test_standby_takes_over_cleanly(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        pod = await running(made)
        before = child({"s": made.status}, "s")
        made.start()
        await made.kill(0)
        use: Json = {"cpus": {"use": 3}}
        await made.client.merge_patch(VIRTUAL_MACHINES, DB, {"spec": {"guest": use}})
        await made.until(lambda: made.status["cpus"] == "3")
        assert (
            made.running,
            before["podName"],
            made.status.get("restartCount", 0),
        ) == ([pod], pod, 0)


@pytest.mark.parametrize("moves", [False, True], ids=["created", "moved"])
async def test_leader_with_silent_watch_restarts_nothing(tmp_path: Path, moves: bool) -> None:
    """A dead connection goes unnoticed for up to 50 s. A new list comes before any decision."""
    async with world(tmp_path) as made:
        made.start()
        if moves:
            await made.create_vm()
            await made.until(made.runs_well)
        standby = made.start()
        standby.mute = "/pods"
        await made.until(lambda: len([each for each in standby.asked if "watch" in each.url.params]) == 4)
        if moves:
            await made.move()
            await made.send()
            await made.until(lambda: made.migration.get("phase") == "Succeeded")
        else:
            await made.create_vm()
        await made.until(made.runs_well)
        pod, began = made.status["podName"], len(made.began)
        await made.kill(0)
        await made.clock.advance(Seconds(10.0))
        for _ in range(200):
            await made.clock.advance(STEP)
        assert (made.runs_well(), made.status["podName"], len(made.began)) == (True, pod, began)


async def test_vm_moves_with_its_address(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        source = await running(made, **ON_THE_NETWORK)
        address = made.status["extraNetIP"]
        await made.move()
        await made.send()
        await made.until(lambda: made.migration.get("phase") == "Succeeded" and made.runs_well())
        assert (made.status["podName"] != source, made.status["extraNetIP"], made.doubled) == (True, address, [])
        await made.until(lambda: list(made.pods) == [made.status["podName"]])


async def test_vm_can_move_again(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await running(made)
        for name in ("move-1", "move-2"):
            await made.move(name)
            await made.send()
            await made.until(lambda: made.migration.get("phase") == "Succeeded" and made.runs_well())
            await made.until(lambda: list(made.pods) == [made.status["podName"]])
        assert (made.status["podIP"], made.doubled) == ("10.1.0.3", [])


async def test_cancelled_move_keeps_guest_on_source(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        source = await running(made)
        await made.move()
        await made.until(lambda: made.sending)
        await made.client.delete(MIGRATIONS, ObjectName("default", "move"))
        await made.until(lambda: not made.migration and list(made.pods) == [source] and made.runs_well())
        assert made.doubled == []


@pytest.mark.parametrize("has_sent", [False, True], ids=["while it is sent", "when all was sent"])
async def test_a_move_goes_on_under_another_leader(tmp_path: Path, has_sent: bool) -> None:
    async with world(tmp_path) as made:
        source = await running(made)
        await made.move()
        await made.until(lambda: made.sending)
        sending = made.sending
        assert sending is not None
        await made.kill()
        if has_sent:
            sending.has_sent()
        made.start()
        if not has_sent:
            await made.until(lambda: sending.asked.count("query-migrate") > 3)
            sending.has_sent()
        await made.until(lambda: made.migration.get("phase") == "Succeeded" and made.runs_well())
        assert (made.status["podName"] != source, made.doubled, sending.asked.count("migrate")) == (True, [], 1)


async def moved_with_a_death(folder: Path, dies_after: int | None) -> int:
    """The whole life of a migrating VM, under a first leader that dies after this many writes. Returns its writes."""
    async with world(folder) as made:
        way = made.start(dies_after)
        await made.create_vm(**ON_THE_NETWORK)
        if dies_after is not None:
            made.start()
        await made.until(made.runs_well)
        await made.move()
        await made.until(lambda: made.sending or made.migration.get("phase") == "Succeeded")
        if made.sending is not None:
            made.sending.has_sent()
        await made.until(lambda: made.migration.get("phase") == "Succeeded" and made.runs_well())
        await made.until(lambda: list(made.pods) == [made.status["podName"]])
        assert (made.doubled, made.claims) == ([], [made.status["extraNetIP"]])
        return way.writes


async def test_a_leader_may_die_after_any_write(tmp_path: Path) -> None:
    writes = await moved_with_a_death(tmp_path / "whole", None)
    assert writes > 10
    for dies_after in range(1, writes + 1, 1 if THOROUGH else 24):
        await moved_with_a_death(tmp_path / str(dies_after), dies_after)


async def test_failing_start_backs_off(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.refuse_to_start = "no such machine"
        made.start()
        await made.create_vm()
        await made.until(lambda: made.status.get("restartCount", 0) == 1)
        made.refuse_to_start = ""
        await made.until(made.runs_well)
        assert made.status["restartCount"] in {1, 2}
        waits = [second - first for first, second in pairwise(made.began)]
        assert max(waits) > 0.9
