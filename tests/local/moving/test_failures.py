"""Every failure of a migration leaves one guest, a correct ledger, a VM that scales, and an event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import cycle, product
from pathlib import Path

import pytest

from deploy.neonvm.ports import TransferFault
from protocol.kubernetes.objects import text
from protocol.kubernetes.resources import NODES, PODS
from protocol.messages import ObjectName
from tests.examples import THOROUGH
from tests.local.moving.world import World, world_in

Doing = Callable[[World], Awaitable[None]]
MOVED = ("Migrating", "Migrated", "MigrationSucceeded")
STAYED = "the guest stays"
AFRESH = "the VM starts afresh"


@pytest.fixture(params=(False, True) if THOROUGH else (False,), ids=["", "follows"][: 1 + THOROUGH])
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """The thorough suite also runs each story with pod requests that follow the VM (B.10)."""
    async with world_in(tmp_path, follows=request.param) as opened:
        yield opened


async def where(world: World) -> str:
    """The VM's present node, compared with the planned one."""
    pod = text(await world.status(), "podName")
    known = {world.source.name: STAYED, world.target.spec.pod.name: "the guest has moved"}
    return known.get(pod, AFRESH)


async def test_undisturbed_it_moves(world: World) -> None:
    await world.arrived()
    await world.finish()
    assert (await world.outcomes(), await where(world)) == ([("Succeeded", "Migrated")], "the guest has moved")
    await world.assert_well(*MOVED)


async def target_dies(world: World) -> None:
    world.target.die()


async def source_dies(world: World) -> None:
    world.guests.by_pod[world.source.name].die()


async def target_does_not_match(world: World) -> None:
    world.guests.moving.fail(TransferFault.TARGET_LOST)


async def target_refuses(world: World) -> None:
    world.guests.moving.fail(TransferFault.REFUSED)


async def both_are_lost(world: World) -> None:
    world.guests.moving.fail(TransferFault.TARGET_LOST, source_too=True)


async def time_is_up(world: World) -> None:
    await world.passes(300, step=5)


async def target_pod_is_deleted(world: World) -> None:
    await world.client.delete(PODS, world.target.spec.pod)


async def source_pod_is_deleted(world: World) -> None:
    await world.client.delete(PODS, world.source)


async def target_node_is_deleted(world: World) -> None:
    await world.client.delete(NODES, ObjectName("", "n2"))


async def runtime_is_restarted(world: World) -> None:
    await world.kill_runtime()
    assert world.guests.running == []
    await world.start_runtime()


FAILURES: list[tuple[Doing, Doing, str, str]] = [
    (World.preparing, target_dies, "TargetLost", STAYED),
    (World.preparing, source_dies, "SourceLost", AFRESH),
    (World.preparing, time_is_up, "TimedOut", STAYED),
    (World.preparing, target_pod_is_deleted, "TargetLost", STAYED),
    (World.preparing, source_pod_is_deleted, "SourceLost", AFRESH),
    (World.preparing, target_node_is_deleted, "TargetLost", STAYED),
    (World.preparing, runtime_is_restarted, "SourceLost", AFRESH),
    (World.sending, target_dies, "TargetLost", STAYED),
    (World.sending, source_dies, "SourceLost", AFRESH),
    (World.sending, both_are_lost, "TargetLost", AFRESH),
    (World.sending, target_does_not_match, "TargetLost", STAYED),
    (World.sending, target_refuses, "Refused", STAYED),
    (World.sending, time_is_up, "TimedOut", STAYED),
    (World.sending, target_pod_is_deleted, "TargetLost", STAYED),
    (World.sending, source_pod_is_deleted, "SourceLost", AFRESH),
    (World.sending, target_node_is_deleted, "TargetLost", STAYED),
    (World.sending, runtime_is_restarted, "RuntimeRestarted", AFRESH),
]
TWICE = {target_dies, source_dies, time_is_up, target_pod_is_deleted, source_pod_is_deleted, target_node_is_deleted}
"""These end a migration alike whether it is prepared or under way: the quick suite has them happen while it sends."""
TRIED = [each for each in FAILURES if THOROUGH or each[0] is World.sending or each[1] not in TWICE]


def _name(each: object) -> str:
    return getattr(each, "__name__", str(each))


@pytest.mark.parametrize(("point", "failure", "reason", "place"), TRIED, ids=_name)
async def test_failed_migration_leaves_everything_consistent(
    world: World, point: Doing, failure: Doing, reason: str, place: str
) -> None:
    await point(world)
    began = await world.said()
    await failure(world)
    await world.passes(3)
    await world.finish()
    assert (await world.outcomes(), await where(world)) == ([("Failed", reason)], place)
    await world.assert_well(*began, f"Migration{reason}", "MigrationFailed")


@pytest.mark.parametrize("point", [World.preparing, World.sending], ids=_name)
async def test_cancelled_migration_changes_nothing(world: World, point: Doing) -> None:
    await point(world)
    began = await world.said()
    await world.cancel()
    await world.finish()
    assert (await world.outcomes(), await where(world)) == ([], STAYED)
    await world.assert_well(*began, "MigrationCancelled", "MigrationFailed")


async def test_target_death_after_switch_restarts_vm_fresh(world: World) -> None:
    await world.arrived()
    await world.settle()
    world.target.die()
    await world.finish()
    assert (await world.outcomes(), await where(world)) == ([("Succeeded", "Migrated")], AFRESH)
    await world.assert_well(*MOVED)


async def test_target_death_after_switch_during_outage(world: World) -> None:
    await world.sending()
    world.api.go_away()
    world.guests.moving.arrive()
    await world.settle()
    world.target.die()
    await world.passes(30)
    world.api.come_back()
    await world.finish()
    assert (await world.outcomes(), await where(world)) == ([("Failed", "TargetLost")], AFRESH)
    await world.assert_well("Migrating", "MigrationTargetLost", "MigrationFailed")


@pytest.mark.parametrize("point", [World.preparing, World.sending], ids=_name)
async def test_repeated_order_moves_once(world: World, point: Doing) -> None:
    await point(world)
    await world.order_again()
    await world.settle()
    assert ("Failed", "AlreadyMigrating") in await world.outcomes()
    await world.finish()
    assert await where(world) == "the guest has moved"
    await world.assert_well(*MOVED, "MigrationAlreadyMigrating", "MigrationFailed")
    assert len(world.guests.by_pod) == 2


# No death but a guest's ends a migration --------------------------------------------------------------------------


async def scheduler_is_restarted(world: World) -> None:
    await world.scheduler.kill()
    world.scheduler.start()


async def scheduler_is_away(world: World) -> None:
    await world.scheduler.kill()
    await world.passes(30)
    world.scheduler.start()


async def agents_are_restarted(world: World) -> None:
    for pod in list(world.agents.by_pod):
        await world.agents.kill(pod)


async def agent_of_the_source_is_restarted(world: World) -> None:
    await world.agents.kill(world.source)


async def api_server_is_away(world: World) -> None:
    world.api.go_away()
    await world.passes(30)
    world.api.come_back()


DISTURBANCES: list[Doing] = [
    scheduler_is_restarted,
    scheduler_is_away,
    agents_are_restarted,
    agent_of_the_source_is_restarted,
    api_server_is_away,
]


def every_one_with_one_of(moments: Sequence[Doing]) -> list[tuple[Doing, Doing]]:
    """Every disturbance with one of ``moments`` in turn; in the thorough suite with each of them."""
    if THOROUGH:
        return list(product(DISTURBANCES, moments))
    return list(zip(DISTURBANCES, cycle(moments), strict=False))


@pytest.mark.parametrize(
    ("disturb", "point"), every_one_with_one_of((World.preparing, World.sending, World.arrived)), ids=_name
)
async def test_guest_moves_despite_restarts(world: World, disturb: Doing, point: Doing) -> None:
    await point(world)
    await disturb(world)
    await world.passes(6)
    await world.finish()
    assert (await world.outcomes(), await where(world)) == ([("Succeeded", "Migrated")], "the guest has moved")
    await world.assert_well(*MOVED)


@pytest.mark.parametrize(("disturb", "failure"), every_one_with_one_of((target_dies, source_dies)), ids=_name)
async def test_a_failure_that_nobody_saw_happen_is_found(world: World, disturb: Doing, failure: Doing) -> None:
    await world.sending()
    if disturb is api_server_is_away:
        world.api.go_away()
        await world.passes(1)
        await failure(world)
        await world.passes(29)
        world.api.come_back()
    else:
        await failure(world)
        await disturb(world)
    await world.finish()
    reason, place = ("TargetLost", STAYED) if failure is target_dies else ("SourceLost", AFRESH)
    assert (await world.outcomes(), await where(world)) == ([("Failed", reason)], place)
    await world.assert_well("Migrating", f"Migration{reason}", "MigrationFailed")


async def test_room_taken_without_scheduler_counts_once(world: World) -> None:
    """The target's pod has its node already: its claim is a fact, and the migration continues."""
    world.is_forced = True
    await world.preparing()
    await world.scheduler.kill()
    await world.occupy("n2", "7", ObjectName("default", "other"))
    world.scheduler.start()
    await world.finish()
    assert await world.outcomes() == [("Succeeded", "Migrated")]
    await world.vacate(ObjectName("default", "other"))
    await world.passes(1)
    world.is_forced = False
    await world.assert_well(*MOVED)
