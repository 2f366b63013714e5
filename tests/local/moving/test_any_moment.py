"""Failures at any turn of the event loop, from the order on and from the switch-over on.

Whatever came of the migration: one guest runs, the VM scales, the books are true, and events say how it ended.
``AUTOSCALE_MOMENTS`` sets how many turns lie between two moments at which it is tried. In the quick suite each accident
happens once, every second one after the switch-over; in the thorough one all of them happen after both. Requests of
pods follow the VM (B.10) in every second story of the quick suite; the thorough one tells each with and without.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import Json, labels_of, name_of, text
from protocol.kubernetes.resources import MIGRATIONS, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import LABEL_VM_NAME
from tests.examples import THOROUGH
from tests.local.moving.test_failures import agents_are_restarted, scheduler_is_restarted, target_node_is_deleted
from tests.local.moving.world import DB, World, world_in

OTHER = ObjectName("default", "other")
Accident = Callable[[World], Awaitable[None]]
MOMENTS = range(0, 36, int(os.environ.get("AUTOSCALE_MOMENTS", "36")))
"""Turns of the event loop after which it happens: from the order to the transfer it takes 25."""


async def nothing(_: World) -> None:
    return


async def runtime_is_restarted(world: World) -> None:
    await world.kill_runtime()
    await world.start_runtime()


async def api_server_goes_away(world: World) -> None:
    world.api.go_away()


async def target_node_is_cordoned(world: World) -> None:
    await world.cordon("n2")


async def target_node_fills_up(world: World) -> None:
    """Another pod takes the room while no scheduler keeps it."""
    world.is_forced = True
    await world.scheduler.kill()
    await world.occupy("n2", "7", OTHER)
    world.scheduler.start()


async def it_is_cancelled(world: World) -> None:
    for each in await world.migrations():
        with suppress(ApiRefusedError):
            await world.client.delete(MIGRATIONS, name_of(each))


async def it_is_torn_away(world: World) -> None:
    """A person removes its finalizer as well."""
    await it_is_cancelled(world)
    for each in await world.migrations():
        with suppress(ApiRefusedError):
            await world.client.merge_patch(MIGRATIONS, name_of(each), {"metadata": {"finalizers": []}})


async def the_target_pod_is_torn_away(world: World) -> None:
    for each in await world.pods():
        if name_of(each) != world.source and LABEL_VM_NAME in labels_of(each):
            await world.client.delete(PODS, name_of(each), grace=0)


async def the_source_pod_is_torn_away(world: World) -> None:
    with suppress(ApiRefusedError):
        await world.client.delete(PODS, world.source, grace=0)


async def a_guest_dies(world: World) -> None:
    list(world.guests.by_pod.values())[-1].die()


async def the_source_dies(world: World) -> None:
    world.guests.by_pod[world.source.name].die()


ACCIDENTS: list[Accident] = [
    nothing,
    scheduler_is_restarted,
    agents_are_restarted,
    runtime_is_restarted,
    api_server_goes_away,
    target_node_is_deleted,
    target_node_is_cordoned,
    target_node_fills_up,
    it_is_cancelled,
    it_is_torn_away,
    the_target_pod_is_torn_away,
    the_source_pod_is_torn_away,
    a_guest_dies,
    the_source_dies,
]
AFTER_THE_ORDER, AFTER_THE_SWITCH_OVER = (ACCIDENTS, ACCIDENTS) if THOROUGH else (ACCIDENTS[::2], ACCIDENTS[1::2])


def told(accidents: list[Accident]) -> list[Any]:
    """Each accident with requests that follow, or without; in the thorough suite both."""
    every = [(each, follows) for at, each in enumerate(accidents) for follows in (bool(at % 2), not at % 2)]
    return [pytest.param(*each, id=named(*each)) for each in (every if THOROUGH else every[::2])]


def named(accident: Accident, follows: bool) -> str:
    return f"{accident.__name__}-follows" if follows else accident.__name__


def ordered(world: World) -> asyncio.Event:
    """Is set in the turn in which the migration's object is made."""
    seen = asyncio.Event()

    def look(change: object) -> None:
        body: Json = change.now.body  # type: ignore[attr-defined]  # the store's own type
        if text(body, "kind") == "VirtualMachineMigration":
            seen.set()

    world.api.server.api.store.observe(look)
    return seen


async def happens(world: World, accident: Accident, since: asyncio.Event, turns: int) -> None:
    await since.wait()
    await skip(turns)
    await accident(world)


async def skip(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def assert_told(world: World) -> None:
    """Events on the VM say how each migration ended, by the controller and by the scheduler that ordered it."""
    said = await world.said()
    for phase, reason in await world.outcomes():
        told = {"Migrated", "MigrationSucceeded"} if phase == "Succeeded" else {f"Migration{reason}", "MigrationFailed"}
        assert told <= said, (phase, reason)


async def come_to_an_end(world: World) -> None:
    if world.api.is_away:
        await world.passes(30, step=2)
        world.api.come_back()
        await world.passes(6)
    with suppress(ApiRefusedError):
        await world.cordon("n2", unschedulable=False)
    await world.finish()
    await world.vacate(OTHER)
    await world.settle()
    world.is_forced = False
    await world.assert_lives()
    await assert_told(world)


@pytest.mark.parametrize(("accident", "follows"), told(AFTER_THE_ORDER))
@pytest.mark.parametrize("turns", MOMENTS)
async def test_after_the_order(tmp_path: Path, accident: Accident, follows: bool, turns: int) -> None:
    async with world_in(tmp_path, follows=follows) as world:
        strike = asyncio.ensure_future(happens(world, accident, ordered(world), turns))
        await world.occupy("n1", "5500m")
        await world.passes(14)
        await strike
        await come_to_an_end(world)


@pytest.mark.parametrize(("accident", "follows"), told(AFTER_THE_SWITCH_OVER))
@pytest.mark.parametrize("turns", MOMENTS)
async def test_after_the_switch_over(tmp_path: Path, accident: Accident, follows: bool, turns: int) -> None:
    async with world_in(tmp_path, follows=follows) as world:
        await world.sending()
        now = asyncio.Event()
        now.set()
        world.guests.moving.arrive()
        strike = asyncio.ensure_future(happens(world, accident, now, turns))
        await world.passes(2)
        await strike
        await come_to_an_end(world)


@pytest.mark.parametrize("has_arrived", [False, True])
@pytest.mark.parametrize("turns", MOMENTS)
async def test_a_vm_that_is_deleted_leaves_nothing(tmp_path: Path, turns: int, has_arrived: bool) -> None:
    async with world_in(tmp_path) as world:
        if has_arrived:
            await world.sending()
            world.guests.moving.arrive()
            await skip(turns)
            await world.client.delete(VIRTUAL_MACHINES, DB)
        else:
            strike = asyncio.ensure_future(happens(world, deleted, ordered(world), turns))
            await world.occupy("n1", "5500m")
            await world.passes(14)
            await strike
        await world.vacate()
        await world.passes(3)
        while (await world.client.list(VIRTUAL_MACHINES)).objects:
            await world.settle()  # its folder is removed by a thread, which takes its own time
        await world.passes(3)
        assert (world.guests.running, world.network.plugged, set(world.network.released)) == ([], {}, {DB})
        assert await world.pods() == []
        assert await world.outcomes() in ([], [("Failed", "VMGone")]), "nothing came of an order for a VM that was gone"
        assert world.ledger is not None
        assert (dict(world.ledger.claims), dict(world.ledger.vms)) == ({}, {})


async def deleted(world: World) -> None:
    await world.client.delete(VIRTUAL_MACHINES, DB)
