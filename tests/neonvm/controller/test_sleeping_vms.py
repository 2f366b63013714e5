"""A VM sleeps and wakes in the whole runtime: its objects, and other events meanwhile."""

import pytest

from deploy.neonvm.ports import TransferFault
from protocol.guest.sleep import sleep_order_patch, sleep_report
from protocol.kubernetes.conditions import condition_of, is_condition_true
from protocol.kubernetes.objects import Json, annotations_of, child, text
from protocol.kubernetes.resources import NODES, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_PERMIT, ANNOTATION_USAGE, LABEL_ENABLED
from protocol.permits import encode_permit
from protocol.units import Resources
from tests.neonvm.fake_guests import FakeGuest, progress_of
from tests.neonvm.runtime_fixture import DB, RuntimeFixture

CALLER = "10.9.0.7 connects to port 5432"


async def permit(runtime: RuntimeFixture, cpu: str, mem: str) -> None:
    """The scheduler stores a permit."""
    body: Json = {"metadata": {"annotations": {ANNOTATION_PERMIT: encode_permit(Resources.parse(cpu, mem))}}}
    await runtime.client.merge_patch(VIRTUAL_MACHINES, DB, body)
    await runtime.settle()


async def order(runtime: RuntimeFixture, order: str | None) -> None:
    await runtime.client.merge_patch(VIRTUAL_MACHINES, DB, sleep_order_patch(order))
    await runtime.settle()


async def enable(runtime: RuntimeFixture, enabled: str = "true") -> None:
    await runtime.client.merge_patch(VIRTUAL_MACHINES, DB, {"metadata": {"labels": {LABEL_ENABLED: enabled}}})
    await runtime.settle()


async def asleep(runtime: RuntimeFixture, policy: str = "Always") -> FakeGuest:
    """The guest of a sleeping VM that has given up its permit."""
    pod = await runtime.run_vm(policy)
    await enable(runtime)
    await order(runtime, "a")
    await permit(runtime, "0", "0")
    assert (await runtime.status())["phase"] == "Asleep"
    return runtime.guests.by_pod[pod]


async def state(runtime: RuntimeFixture) -> tuple[str, str, str]:
    """The VM's phase, the state of its sleep, and the message about it."""
    report = sleep_report(await runtime.vm())
    return text(await runtime.status(), "phase"), str(report.state), report.message


async def usage(runtime: RuntimeFixture) -> str:
    pod = await runtime.client.get(PODS, ObjectName("default", text(await runtime.status(), "podName")))
    return annotations_of(pod)[ANNOTATION_USAGE]


async def test_vm_sleeps_and_wakes_with_its_permit(runtime: RuntimeFixture) -> None:
    guest = await asleep(runtime)
    vm = await runtime.vm()
    status = child(vm, "status")
    assert {"cpus", "memorySize"} & status.keys() == set()
    assert (status["node"], status["podIP"], text(status, "machine", "maxCpus")) == ("n1", "10.1.0.1", "4")
    assert (is_condition_true(vm, "Asleep"), is_condition_true(vm, "Available")) == (True, True)
    assert await usage(runtime) == '{"cpu": "0", "memory": "0"}'
    await runtime.pass_time(60, step=10)
    assert await runtime.vm() == vm, "nothing is written about a sleeper"
    guest.call(CALLER)
    await runtime.settle()
    assert await state(runtime) == ("Waking", "Waking", CALLER)
    await permit(runtime, "1", "2Gi")
    assert (runtime.guests.running, guest.orders) == ([], ["fall asleep"])
    await permit(runtime, "2", "2Gi")
    await runtime.pass_time(1)
    vm = await runtime.vm()
    assert (guest.orders, text(vm, "status", "cpus"), condition_of(vm, "Asleep")) == (["fall asleep", "wake"], "2", {})
    report = sleep_report(vm)
    assert (str(report.state), report.seconds, report.sessions, report.message) == ("Awake", 0.25, 3, CALLER)
    assert await usage(runtime) == '{"cpu": "2", "memory": "2Gi"}'
    assert sorted(await runtime.said()) == [
        ("Asleep", "asleep with 3 sessions open; 200 MiB of memory saved"),
        ("Awake", f"awake after 0.25 s: {CALLER}"),
        ("Waking", f"waking: {CALLER}"),
    ]
    await runtime.assert_well(text(vm, "status", "podName"))


async def test_stored_permit_wakes_at_once(runtime: RuntimeFixture) -> None:
    guest = await asleep(runtime)
    await permit(runtime, "2", "2Gi")
    assert guest.orders == ["fall asleep"]
    guest.call(CALLER)
    await runtime.settle()
    assert (await state(runtime), guest.orders) == (("Running", "Awake", CALLER), ["fall asleep", "wake"])


async def test_removed_order_wakes(runtime: RuntimeFixture) -> None:
    guest = await asleep(runtime)
    await order(runtime, None)
    assert await state(runtime) == ("Waking", "Waking", "the order to sleep was removed")
    await permit(runtime, "2", "2Gi")
    assert await state(runtime) == ("Running", "Awake", "the order to sleep was removed")
    await order(runtime, "b")
    assert ((await state(runtime))[0], guest.orders) == ("Asleep", ["fall asleep", "wake", "fall asleep"])


async def test_disabled_vm_wakes_without_permit(runtime: RuntimeFixture) -> None:
    guest = await asleep(runtime)
    await enable(runtime, "false")
    assert (guest.orders, await state(runtime)) == (
        ["fall asleep", "wake"],
        ("Running", "Awake", "autoscaling is not enabled for the VM"),
    )


async def test_refused_order_is_told_once(runtime: RuntimeFixture) -> None:
    pod = await runtime.run_vm()
    await enable(runtime)
    guest = runtime.guests.by_pod[pod]
    guest.refuses_to_sleep = "a session is in a transaction"
    await order(runtime, "a")
    await runtime.pass_time(20)
    assert await state(runtime) == ("Running", "Refused", "a session is in a transaction")
    assert guest.orders == ["fall asleep"]
    assert await runtime.said() == [("SleepRefused", "staying awake: a session is in a transaction")]
    guest.refuses_to_sleep = ""
    await order(runtime, "b")
    assert (await state(runtime))[0] == "Asleep"


async def test_vm_resized_while_asleep_wakes_with_new_size(runtime: RuntimeFixture) -> None:
    guest = await asleep(runtime)
    await runtime.resize(3)
    await permit(runtime, "2", "2Gi")
    guest.call(CALLER)
    await runtime.settle()
    assert (await state(runtime))[0] == "Waking"
    await permit(runtime, "3", "2Gi")
    await runtime.pass_time(1)
    assert (guest.orders, (await runtime.status())["cpus"]) == (["fall asleep", "wake", "cpu 3"], "3")


async def test_migration_moves_sleeper(runtime: RuntimeFixture) -> None:
    """Its phase stays, so that nothing is reserved on its source node, until its guest runs in the target."""
    guest = await asleep(runtime)
    await runtime.ask_to_move()
    await runtime.pass_time(2)
    assert await runtime.outcome() == ("Running", "Transferring")
    assert await state(runtime) == ("Asleep", "Asleep", "")
    assert runtime.guests.running == []
    runtime.guests.moving.arrive()
    await runtime.settle()
    assert await runtime.outcome() == ("Succeeded", "Migrated")
    assert await state(runtime) == ("Running", "Awake", "it was migrated")
    status = await runtime.status()
    assert (status["node"], status["cpus"], guest.orders) == ("n2", "2", ["fall asleep"])
    await runtime.assert_well(text(status, "podName"))


async def test_migration_moves_vm_that_waits_for_permit(runtime: RuntimeFixture) -> None:
    guest = await asleep(runtime)
    guest.call(CALLER)
    await runtime.settle()
    await runtime.ask_to_move()
    await runtime.pass_time(2)
    assert await state(runtime) == ("Waking", "Waking", CALLER)
    runtime.guests.moving.arrive()
    await runtime.settle()
    assert await state(runtime) == ("Running", "Awake", CALLER)
    await runtime.assert_well(text(await runtime.status(), "podName"))


async def test_permit_wakes_nothing_that_is_on_its_way(runtime: RuntimeFixture) -> None:
    """Once the migration has failed, it wakes the guest."""
    guest = await asleep(runtime)
    guest.call(CALLER)
    await runtime.settle()
    await runtime.ask_to_move()
    await runtime.pass_time(2)
    move = runtime.guests.moving.move
    assert move is not None
    move.progress(progress_of(0.1))
    await permit(runtime, "2", "2Gi")
    await runtime.pass_time(2)
    assert (await state(runtime), guest.orders) == (("Waking", "Waking", CALLER), ["fall asleep"])
    runtime.guests.moving.fail(TransferFault.TARGET_LOST)
    await runtime.pass_time(2)
    assert await runtime.outcome() == ("Failed", "TargetLost")
    assert (await state(runtime), guest.orders) == (("Running", "Awake", CALLER), ["fall asleep", "wake"])
    await runtime.assert_well(text(await runtime.status(), "podName"))


async def test_client_does_not_wait_for_a_disk_copy(runtime: RuntimeFixture) -> None:
    """Before its memory is sent, a migration reports no progress for minutes."""
    guest = await asleep(runtime)
    await runtime.ask_to_move()
    await runtime.pass_time(2)
    guest.call(CALLER)
    await runtime.pass_time(1)
    assert await state(runtime) == ("Waking", "Waking", CALLER)
    assert await runtime.outcome() == ("Running", "Transferring")
    await permit(runtime, "2", "2Gi")
    await runtime.pass_time(2)
    assert await runtime.outcome() == ("Failed", "Cancelled")
    assert (await state(runtime), guest.orders) == (("Running", "Awake", CALLER), ["fall asleep", "wake"])
    await runtime.assert_well(text(await runtime.status(), "podName"))


async def test_sleeper_wakes_while_its_target_has_no_node(runtime: RuntimeFixture) -> None:
    """Then it migrates awake."""
    guest = await asleep(runtime)
    runtime.extender.full = {"n2"}
    await runtime.ask_to_move()
    await permit(runtime, "2", "2Gi")
    guest.call(CALLER)
    await runtime.pass_time(2)
    assert (await runtime.outcome())[0] == "Pending"
    assert await state(runtime) == ("Running", "Awake", CALLER)
    runtime.extender.full = set()
    await runtime.client.merge_patch(NODES, ObjectName("", "n2"), {"metadata": {"labels": {"room": "some"}}})
    await runtime.pass_time(30)
    assert await state(runtime) == ("Migrating", "Awake", CALLER)
    runtime.guests.moving.arrive()
    await runtime.settle()
    assert await runtime.outcome() == ("Succeeded", "Migrated")


async def test_failed_move_leaves_vm_asleep(runtime: RuntimeFixture) -> None:
    guest = await asleep(runtime)
    await runtime.ask_to_move()
    await runtime.pass_time(2)
    runtime.guests.moving.fail(TransferFault.REFUSED)
    await runtime.pass_time(2)
    assert await runtime.outcome() == ("Failed", "Refused")
    assert (await state(runtime), guest.orders) == (("Asleep", "Asleep", ""), ["fall asleep"])
    assert len(await runtime.pods()) == 1


async def test_sleeper_that_is_lost_on_its_way_boots(runtime: RuntimeFixture) -> None:
    await asleep(runtime)
    await runtime.ask_to_move()
    await runtime.pass_time(2)
    runtime.guests.moving.fail(TransferFault.TARGET_LOST, source_too=True)
    await runtime.pass_time(5)
    assert await state(runtime) == ("Running", "Restarted", "its pod ended while it was asleep")
    assert (await runtime.outcome())[0] == "Failed"
    await runtime.assert_well(text(await runtime.status(), "podName"))


async def test_migration_of_vm_that_boots_from_sleep(runtime: RuntimeFixture) -> None:
    guest = await asleep(runtime)
    guest.fault_at_waking = "its memory's file is damaged"
    await permit(runtime, "2", "2Gi")
    guest.call(CALLER)
    await runtime.settle()
    await runtime.ask_to_move()
    await runtime.pass_time(3)
    assert await runtime.outcome() == ("", "Waiting")
    assert await state(runtime) == ("Running", "Restarted", "its memory's file is damaged")
    assert (
        "Restarted",
        "booting from disk, sessions lost: its memory's file is damaged",
    ) in await runtime.said()
    guest.boot()
    await runtime.pass_time(3)
    runtime.guests.moving.arrive()
    await runtime.settle()
    assert await runtime.outcome() == ("Succeeded", "Migrated")


async def test_deleted_sleeper_leaves_nothing(runtime: RuntimeFixture) -> None:
    guest = await asleep(runtime)
    await runtime.client.delete(VIRTUAL_MACHINES, DB)
    await runtime.pass_time(2)
    assert (await runtime.pods(), runtime.network.released, guest.over.is_set()) == ({}, [DB], True)


@pytest.mark.parametrize("policy", ["Always", "Never"])
async def test_sleeper_whose_pod_ends_restarts_by_policy(runtime: RuntimeFixture, policy: str) -> None:
    guest = await asleep(runtime, policy)
    guest.die("its node was lost")
    await runtime.pass_time(5)
    if policy == "Never":
        assert (await state(runtime))[0] == "Failed"
        return
    assert await state(runtime) == ("Running", "Restarted", "its pod ended while it was asleep")
    assert (await runtime.status())["restartCount"] == 1
    assert runtime.guests.doubled == []


async def test_runtime_that_restarts_loses_its_sleepers(runtime: RuntimeFixture) -> None:
    """Guests of the local cluster end with its process; the VM boots again and reports that it was asleep."""
    await asleep(runtime)
    await runtime.restart()
    await runtime.pass_time(5)
    assert await state(runtime) == ("Running", "Restarted", "its pod ended while it was asleep")
    await runtime.assert_well(text(await runtime.status(), "podName"))
