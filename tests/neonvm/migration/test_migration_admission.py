"""Conditions for starting a migration, and the message if it may not start."""

import pytest

from protocol.kubernetes.objects import Json, child, items, text
from protocol.kubernetes.resources import MIGRATIONS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from tests.neonvm.runtime_fixture import DB, RuntimeFixture


async def test_second_migration_of_vm_fails(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    source, target = await runtime.begin_to_move()
    await runtime.ask_to_move("again")
    assert await runtime.outcome(ObjectName("default", "again")) == ("Failed", "AlreadyMigrating")
    assert ("MigrationAlreadyMigrating", "again: migration move of the VM is already under way") in await runtime.said()
    source.arrive()
    await runtime.settle()
    await runtime.assert_well(target.spec.pod.name)


async def test_simultaneous_migrations_never_both_run(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    runtime.api.go_away()
    runtime.api.come_back()
    spec: Json = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration", "spec": {"vmName": "db"}}
    for name in ("b", "a"):
        await runtime.client.create(MIGRATIONS, "default", {**spec, "metadata": {"name": name}})
    await runtime.pass_time(1)
    outcomes = {name: await runtime.outcome(ObjectName("default", name)) for name in ("a", "b")}
    assert sorted(outcomes.values()) == [("Failed", "AlreadyMigrating"), ("Running", "Transferring")]
    runtime.guests.moving.arrive()
    await runtime.settle()
    await runtime.assert_well(str((await runtime.status())["podName"]))


async def test_late_migrations_are_refused_together(runtime: RuntimeFixture) -> None:
    """Each round lists the migrations of the namespace, where a tenant may have created thousands."""
    await runtime.run_vm()
    await runtime.begin_to_move()
    spec: Json = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration", "spec": {"vmName": "db"}}
    names = [f"late-{number}" for number in range(15)]
    runtime.api.read.clear()
    for name in names:
        await runtime.client.create(MIGRATIONS, "default", {**spec, "metadata": {"name": name}})
    await runtime.pass_time(1)
    outcomes = {await runtime.outcome(ObjectName("default", name)) for name in names}
    assert outcomes == {("Failed", "AlreadyMigrating")}
    assert runtime.api.read.count(MIGRATIONS.path("default")) < 10


async def test_migration_of_missing_vm_fails(runtime: RuntimeFixture) -> None:
    await runtime.ask_to_move()
    assert await runtime.outcome() == ("Failed", "VMGone")
    assert await runtime.said("move") == [("MigrationVMGone", "move: VM db not found")]
    assert "finalizers" not in child(await runtime.migration() or {}, "metadata")


async def test_migration_of_stopped_vm_fails(runtime: RuntimeFixture) -> None:
    runtime.extender.full = {"n1", "n2"}
    with pytest.raises(AssertionError):
        await runtime.run_vm()
    await runtime.ask_to_move()
    assert await runtime.outcome() == ("Failed", "VMNotRunning")


async def test_refusal_is_reported_after_lost_write(
    runtime: RuntimeFixture,
) -> None:
    runtime.api.lost = "POST /api/v1/namespaces/default/events"
    await runtime.ask_to_move()
    assert (runtime.api.lost, await runtime.said("move")) == ("", [])
    await runtime.pass_time(1)
    assert await runtime.said("move") == [("MigrationVMGone", "move: VM db not found")]
    assert await runtime.outcome() == ("Failed", "VMGone")
    assert not child(await runtime.migration() or {}, "metadata").get("finalizers")


async def test_vm_whose_memory_never_comes_may_move(runtime: RuntimeFixture) -> None:
    """An order that is not followed blocks migrations for a minute, gives the reason after that, and is sent to the
    target too.
    """
    pod = await runtime.run_vm()
    guest = runtime.guests.by_pod[pod]
    guest.keeps_memory = True
    await runtime.client.merge_patch(VIRTUAL_MACHINES, DB, {"spec": {"guest": {"memorySlots": {"use": 4}}}})
    await runtime.pass_time(50)
    assert (await runtime.status())["phase"] == "Scaling"
    await runtime.pass_time(25)
    status = await runtime.status()
    said = next(each for each in items(status, "conditions") if each["type"] == "ResizeStalled")
    assert (status["phase"], status["memorySize"]) == ("Running", "2Gi")
    assert "memory not reached: requested 2 cpu, 4Gi, the guest has 2 cpu, 2Gi" in text(said, "message")
    source, target = await runtime.begin_to_move()
    source.arrive()
    await runtime.pass_time(2)
    status = await runtime.status()
    assert (status["podName"], status["phase"], status["memorySize"]) == (target.spec.pod.name, "Running", "4Gi")
    assert [each["type"] for each in items(status, "conditions")] == ["Available"]
