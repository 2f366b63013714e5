"""Whether a migration may begin at all, and what it says where it may not."""

import pytest

from deploy.kube.objects import MIGRATIONS, Json, child
from protocol.messages import ObjectName
from tests.neonvm.stage import Stage


async def test_of_two_migrations_of_one_vm_the_second_fails_and_says_why(stage: Stage) -> None:
    await stage.run_vm()
    source, target = await stage.begin_to_move()
    await stage.ask_to_move("again")
    assert await stage.outcome(ObjectName("default", "again")) == ("Failed", "AlreadyMigrating")
    assert ("MigrationAlreadyMigrating", "again: move is moving the VM already") in await stage.said()
    source.arrive()
    await stage.settle()
    await stage.assert_well(target.spec.pod.name)


async def test_two_migrations_that_are_made_at_once_never_run_both(stage: Stage) -> None:
    await stage.run_vm()
    stage.api.go_away()
    stage.api.come_back()
    spec: Json = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration", "spec": {"vmName": "db"}}
    for name in ("b", "a"):
        await stage.client.create(MIGRATIONS, "default", {**spec, "metadata": {"name": name}})
    await stage.pass_time(1)
    outcomes = {name: await stage.outcome(ObjectName("default", name)) for name in ("a", "b")}
    assert sorted(outcomes.values()) == [("Failed", "AlreadyMigrating"), ("Running", "Transferring")]
    stage.puppets.moving.arrive()
    await stage.settle()
    await stage.assert_well(str((await stage.status())["podName"]))


async def test_a_migration_of_a_vm_that_is_not_there_fails(stage: Stage) -> None:
    await stage.ask_to_move()
    assert await stage.outcome() == ("Failed", "VMGone")
    assert await stage.said("move") == [("MigrationVMGone", "move: there is no VM db")]
    assert "finalizers" not in child(await stage.migration() or {}, "metadata")


async def test_a_migration_of_a_vm_that_does_not_run_fails(stage: Stage) -> None:
    stage.full = {"n1", "n2"}
    with pytest.raises(AssertionError):
        await stage.run_vm()
    await stage.ask_to_move()
    assert await stage.outcome() == ("Failed", "VMNotRunning")


async def test_why_a_migration_may_not_begin_is_said_although_the_first_attempt_was_lost(stage: Stage) -> None:
    stage.api.lost = "POST /api/v1/namespaces/default/events"
    await stage.ask_to_move()
    assert (stage.api.lost, await stage.said("move")) == ("", [])
    await stage.pass_time(1)
    assert await stage.said("move") == [("MigrationVMGone", "move: there is no VM db")]
    assert await stage.outcome() == ("Failed", "VMGone")
    assert not child(await stage.migration() or {}, "metadata").get("finalizers")
