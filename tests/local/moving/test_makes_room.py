"""Room is made within a minute in a whole cluster: for a VM that is denied, and for a pod whose resize waits (B.14)."""

from __future__ import annotations

from pathlib import Path

from protocol.kubernetes.objects import Json, text
from protocol.kubernetes.resources import EVENTS, PODS
from protocol.names import LABEL_MAKE_ROOM
from tests.local.moving.world import FOREIGN, LARGE, SMALL, World, world_in

MINUTE = 60.0
REQUESTS: Json = {"cpu": "2", "memory": "2Gi"}
"""Of the VM's pods: what their VM has, so that a kubelet sees what a move gives back."""


async def where(world: World) -> str:
    return text(await world.status(), "node")


async def moves_within(world: World, span: float) -> None:
    """The VM is ordered to move, is sent, and arrives on n2, all within this many seconds."""
    began = world.clock.now()
    while await where(world) == "n1" and world.clock.now() - began < span:
        await world.passes(1, step=1)
        if world.guests.is_anyone_moving:
            world.guests.moving.arrive()
    assert await where(world) == "n2"


async def defer(world: World, *, asks: str) -> None:
    """A pod on n1 has 3 vCPUs and wants 7; its kubelet has put that off."""
    world.is_forced = True
    await world.occupy("n1", "7")
    await world.passes(1)
    labels: Json = {"metadata": {"labels": {LABEL_MAKE_ROOM: asks}}}
    await world.client.merge_patch(PODS, FOREIGN, labels)
    status: Json = {
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}],
        "containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "3", "memory": "1Gi"}}],
    }
    await world.client.merge_patch(PODS, FOREIGN, {"status": status}, "status")


async def test_denied_vm_is_served_within_minute(tmp_path: Path) -> None:
    async with world_in(tmp_path) as world:
        await world.occupy("n1", "5")
        world.agents.demand.cores = 2.0
        await moves_within(world, MINUTE - 20)
        await world.passes(12)
        assert world.size == LARGE
        assert await world.outcomes() == [("Succeeded", "Migrated")]


async def test_a_denial_of_a_moment_moves_no_vm(tmp_path: Path) -> None:
    async with world_in(tmp_path) as world:
        await world.occupy("n1", "5")
        world.agents.demand.cores = 2.0
        await world.passes(2)
        world.agents.demand.cores = 1.0
        await world.vacate()
        await world.passes(20)
        assert (await world.migrations(), await where(world)) == ([], "n1")


async def test_deferred_resize_gets_room_within_minute(tmp_path: Path) -> None:
    async with world_in(tmp_path, pod_requests=REQUESTS) as world:
        await defer(world, asks="true")
        await moves_within(world, MINUTE)
        await world.passes(2)
        events = [each for each in (await world.client.list(EVENTS)).objects if text(each, "reason") == "RoomBeingMade"]
        assert [text(each, "involvedObject", "name") for each in events] == [FOREIGN.name]
        ledger = world.ledger
        assert ledger is not None
        assert (ledger.rooms["n1"].free.cpu.as_cores, world.size) == (1.0, SMALL)


async def test_silent_pod_moves_no_vm(tmp_path: Path) -> None:
    async with world_in(tmp_path, pod_requests=REQUESTS) as world:
        await defer(world, asks="false")
        await world.passes(30)
        assert (await world.migrations(), await where(world)) == ([], "n1")
