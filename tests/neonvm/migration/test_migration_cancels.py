"""A migration, or its VM, is deleted: while it waits, while the guest is sent, and too late."""

from deploy.kube.objects import MIGRATIONS, VIRTUAL_MACHINES, items
from tests.neonvm.stage import DB, MOVE, Stage


async def test_a_migration_can_be_cancelled_while_it_waits(stage: Stage) -> None:
    old = await stage.run_vm()
    stage.full = {"n2"}
    await stage.ask_to_move()
    assert (await stage.status())["phase"] == "PreMigrating"
    await stage.cancel()
    assert await stage.migration() is None
    assert ("MigrationCancelled", "move: the migration was deleted") in await stage.said()
    await stage.assert_well(old)


async def test_a_migration_can_be_cancelled_while_the_guest_is_sent(stage: Stage) -> None:
    old = await stage.run_vm()
    await stage.begin_to_move()
    await stage.cancel()
    assert await stage.migration() is None
    assert ("MigrationCancelled", "move: the migration was deleted") in await stage.said()
    await stage.assert_well(old)


async def test_a_cancel_that_comes_too_late_changes_nothing(stage: Stage) -> None:
    await stage.run_vm()
    source, target = await stage.begin_to_move()
    source.switches_when_cancelled = True
    await stage.cancel()
    assert await stage.migration() is None
    assert ("Migrated", "move: moved from n1 to n2") in await stage.said()
    await stage.assert_well(target.spec.pod.name)


async def test_a_target_that_cannot_be_asked_is_believed_to_run_where_the_source_does_not(stage: Stage) -> None:
    await stage.run_vm()
    source, target = await stage.begin_to_move()
    source.switches_when_cancelled = target.is_mute = True
    await stage.cancel()
    target.is_mute = False
    await stage.assert_well(target.spec.pod.name)


async def test_an_ended_migration_can_simply_be_deleted(stage: Stage) -> None:
    await stage.run_vm()
    source, target = await stage.begin_to_move()
    source.arrive()
    await stage.settle()
    await stage.cancel()
    assert await stage.migration() is None
    await stage.assert_well(target.spec.pod.name)


async def test_a_migration_whose_hold_is_torn_away_takes_its_move_with_it(stage: Stage) -> None:
    old = await stage.run_vm()
    await stage.begin_to_move()
    stage.api.go_away()
    stage.api.come_back()
    await stage.client.delete(MIGRATIONS, MOVE)
    await stage.client.merge_patch(MIGRATIONS, MOVE, {"metadata": {"finalizers": []}})
    await stage.settle()
    await stage.pass_time(5)
    assert await stage.migration() is None
    await stage.assert_well(old)


async def test_deleting_the_vm_takes_everything_with_it(stage: Stage) -> None:
    await stage.run_vm()
    await stage.begin_to_move()
    await stage.client.delete(VIRTUAL_MACHINES, DB)
    await _gone(stage)
    assert (stage.puppets.running, stage.puppets.doubled, await stage.pods()) == ([], [], {})
    assert (stage.network.plugged, set(stage.network.released)) == ({}, {DB})
    assert await stage.migration() is None


async def _gone(stage: Stage) -> None:
    """Returns when the VM is gone; its folder is removed by a thread, which takes its own time."""
    for _ in range(1000):
        if not items(await stage.client.list(VIRTUAL_MACHINES), "items"):
            break
        await stage.settle()
    await stage.settle()
