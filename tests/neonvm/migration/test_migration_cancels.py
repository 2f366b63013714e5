"""A migration, or its VM, is deleted: while it waits, while the guest is being sent, or too late."""

from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import MIGRATIONS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from tests.neonvm.runtime_fixture import DB, MOVE, RuntimeFixture

KEPT = ObjectName("default", "kept")


async def test_a_migration_can_be_cancelled_while_it_waits(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    runtime.extender.full = {"n2"}
    await runtime.ask_to_move()
    assert (await runtime.status())["phase"] == "Running"
    await runtime.cancel()
    assert await runtime.migration() is None
    assert ("MigrationCancelled", "move: the migration was deleted") in await runtime.said()
    await runtime.assert_well(old)


async def test_migration_can_be_cancelled_in_transfer(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    await runtime.begin_to_move()
    await runtime.cancel()
    assert await runtime.migration() is None
    assert ("MigrationCancelled", "move: the migration was deleted") in await runtime.said()
    await runtime.assert_well(old)


async def test_a_cancel_that_comes_too_late_changes_nothing(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    source, target = await runtime.begin_to_move()
    source.switches_when_cancelled = True
    await runtime.cancel()
    assert await runtime.migration() is None
    assert ("Migrated", "move: migrated from n1 to n2") in await runtime.said()
    await runtime.assert_well(target.spec.pod.name)


async def test_unreachable_target_may_run(
    runtime: RuntimeFixture,
) -> None:
    await runtime.run_vm()
    source, target = await runtime.begin_to_move()
    source.switches_when_cancelled = target.is_mute = True
    await runtime.cancel()
    target.is_mute = False
    await runtime.assert_well(target.spec.pod.name)


async def test_an_ended_migration_can_simply_be_deleted(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    source, target = await runtime.begin_to_move()
    source.arrive()
    await runtime.settle()
    await runtime.cancel()
    assert await runtime.migration() is None
    await runtime.assert_well(target.spec.pod.name)


async def test_removed_finalizer_cancels_the_move(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    await runtime.begin_to_move()
    runtime.api.go_away()
    runtime.api.come_back()
    await runtime.client.delete(MIGRATIONS, MOVE)
    await runtime.client.merge_patch(MIGRATIONS, MOVE, {"metadata": {"finalizers": []}})
    await runtime.settle()
    await runtime.pass_time(5)
    assert await runtime.migration() is None
    await runtime.assert_well(old)


async def test_foreign_finalizer_blocks_no_later_migration(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    runtime.api.go_away()
    runtime.api.come_back()
    body: Json = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration", "spec": {"vmName": "db"}}
    metadata: Json = {"name": "kept", "finalizers": ["backup.example.com/kept"]}
    await runtime.client.create(MIGRATIONS, "default", {**body, "metadata": metadata})
    await runtime.client.delete(MIGRATIONS, KEPT)
    await runtime.pass_time(1)
    source, target = await runtime.begin_to_move()
    source.arrive()
    await runtime.settle()
    assert await runtime.outcome() == ("Succeeded", "Migrated")
    await runtime.client.merge_patch(MIGRATIONS, KEPT, {"metadata": {"finalizers": []}})
    await runtime.assert_well(target.spec.pod.name)


async def test_deleting_the_vm_takes_everything_with_it(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    await runtime.begin_to_move()
    await runtime.client.delete(VIRTUAL_MACHINES, DB)
    await _gone(runtime)
    assert (runtime.guests.running, runtime.guests.doubled, await runtime.pods()) == ([], [], {})
    assert (runtime.network.plugged, set(runtime.network.released)) == ({}, {DB})
    assert await runtime.migration() is None


async def _gone(runtime: RuntimeFixture) -> None:
    """Wait until the VM is deleted; a thread removes its folder, which takes some time."""
    for _ in range(1000):
        if not (await runtime.client.list(VIRTUAL_MACHINES)).objects:
            break
        await runtime.settle()
    await runtime.settle()
