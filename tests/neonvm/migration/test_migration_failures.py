"""A migration or one of its ends fails: where the VM runs then, and what is reported."""

import asyncio

import pytest

from deploy.neonvm.ports import GuestError, TransferFault
from deploy.neonvm.transfer_terms import TransferLimits
from protocol.kubernetes.resources import NODES
from protocol.messages import ObjectName
from protocol.units import Bytes, Seconds
from tests.neonvm.runtime_fixture import RuntimeFixture


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (TransferFault.TARGET_LOST, "TargetLost"),
        (TransferFault.REFUSED, "Refused"),
        (TransferFault.TIMED_OUT, "TimedOut"),
    ],
)
async def test_failed_move_leaves_vm_on_source(runtime: RuntimeFixture, fault: TransferFault, reason: str) -> None:
    old = await runtime.run_vm()
    source, _ = await runtime.begin_to_move()
    source.fail(fault)
    await runtime.settle()
    await runtime.pass_time(3)
    assert await runtime.outcome() == ("Failed", reason)
    assert (f"Migration{reason}", f"move: injected: {fault}") in await runtime.said()
    await runtime.assert_well(old)


@pytest.mark.parametrize("trouble", ["lost", "failing"])
async def test_outcome_is_reported_after_lost_write(runtime: RuntimeFixture, trouble: str) -> None:
    old = await runtime.run_vm()
    source, _ = await runtime.begin_to_move()
    setattr(runtime.api, trouble, "POST /api/v1/namespaces/default/events")
    source.fail(TransferFault.REFUSED)
    await runtime.settle()
    await runtime.pass_time(2)
    message = "move: injected: Refused"
    assert (runtime.api.lost, runtime.api.failing) == ("", "")
    assert sorted(await runtime.said("move")) == sorted(await runtime.said())
    assert ("MigrationRefused", message) in await runtime.said()
    await runtime.assert_well(old)


async def test_early_dead_target_is_removed(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    runtime.guests.by_pod[old].stops = busy = asyncio.Event()
    await runtime.resize(3)  # keeps the source busy, so that nothing is sent yet
    await runtime.ask_to_move()
    (target,) = runtime.guests.by_pod.keys() - {old}
    runtime.guests.by_pod[target].die()
    await runtime.pass_time(3)
    assert await runtime.outcome() == ("Failed", "TargetLost")
    busy.set()
    await runtime.settle()
    await runtime.assert_well(old)


async def test_target_unable_to_receive_fails_migration(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    runtime.guests.refuse_to_receive = "no such machine type"
    await runtime.ask_to_move()
    await runtime.pass_time(1)
    assert await runtime.outcome() == ("Failed", "TargetLost")
    assert "no such machine type" in (await runtime.said())[0][1]
    await runtime.assert_well(old)


async def test_target_death_in_transfer_keeps_source(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    _, target = await runtime.begin_to_move()
    target.die()
    await runtime.settle()
    await runtime.pass_time(3)
    assert await runtime.outcome() == ("Failed", "TargetLost")
    await runtime.assert_well(old)


@pytest.mark.parametrize(("policy", "runs"), [("Always", 1), ("OnFailure", 1), ("Never", 0)])
@pytest.mark.parametrize("told", [True, False])
async def test_target_death_after_switch_restarts_vm(
    runtime: RuntimeFixture, told: bool, policy: str, runs: int
) -> None:
    old = await runtime.run_vm(policy)
    source, target = await runtime.begin_to_move()
    new = target.spec.pod.name
    if not told:
        runtime.api.go_away()
    source.arrive()
    await runtime.settle()
    target.die()
    await runtime.pass_time(3)
    runtime.api.come_back()
    await runtime.pass_time(20)
    assert await runtime.outcome() == (("Succeeded", "Migrated") if told else ("Failed", "TargetLost"))
    lost = f"the guest has moved to pod {new}, and was lost there"
    why = "the guest has ended: its process was killed" if told else lost
    assert ("Failed", f"the VM has ended: {why}") in await runtime.said()
    status = await runtime.status()
    assert (len(runtime.guests.running), runtime.guests.doubled, status.get("restartCount", 0)) == (runs, [], runs)
    if runs:
        assert status["podName"] not in {old, new}
        await runtime.assert_well(str(status["podName"]))
    else:
        assert (status["phase"], status["podName"]) == ("Failed", new if told else old)


@pytest.mark.parametrize(("policy", "runs"), [("Always", 1), ("OnFailure", 1), ("Never", 0)])
async def test_dead_source_restarts_by_policy(runtime: RuntimeFixture, policy: str, runs: int) -> None:
    old = await runtime.run_vm(policy)
    source, _ = await runtime.begin_to_move()
    source.fail(TransferFault.SOURCE_LOST, source_too=True)
    await runtime.settle()
    await runtime.pass_time(8)
    assert await runtime.outcome() == ("Failed", "SourceLost")
    status = await runtime.status()
    assert (len(runtime.guests.running), runtime.guests.doubled) == (runs, [])
    assert (status["phase"], status["podName"] == old) == (("Running", False) if runs else ("Failed", True))
    if runs:
        await runtime.assert_well(str(status["podName"]))


async def test_when_both_ends_die_the_vm_starts_anew(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    source, target = await runtime.begin_to_move()
    target.die()
    source.die()
    await runtime.pass_time(8)
    assert (await runtime.outcome())[0] == "Failed"
    await runtime.assert_well(str((await runtime.status())["podName"]))


async def test_slow_move_times_out(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    source, _ = await runtime.begin_to_move(maxBandwidth="10Mi", autoConverge=False)
    assert source.move is not None
    limits = source.move.limits
    assert limits == TransferLimits(Seconds(0.02), Bytes(10 << 20), Seconds(60.0), auto_converge=False)
    await runtime.pass_time(62)
    assert await runtime.outcome() == ("Failed", "TimedOut")
    assert ("MigrationTimedOut", "move: not completed within 60 s") in await runtime.said()
    await runtime.assert_well(old)


async def test_unscheduled_target_times_out(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    runtime.extender.full = {"n2"}
    await runtime.ask_to_move()
    await runtime.pass_time(62, step=5)
    assert await runtime.outcome() == ("Failed", "TimedOut")
    why = (
        "the target pod cannot be scheduled: 0/2 nodes are available: "
        "1 Insufficient memory, 1 node(s) didn't match Pod's node affinity/selector."
    )
    assert ("MigrationTimedOut", f"move: not completed within 60 s; {why}") in await runtime.said()
    await runtime.assert_well(old)


async def test_unreachable_source_counts_as_running(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    source, _ = await runtime.begin_to_move()
    source.is_mute = True
    source.fail(TransferFault.TARGET_LOST)
    await runtime.settle()
    source.is_mute = False
    await runtime.pass_time(3)
    assert await runtime.outcome() == ("Failed", "TargetLost")
    await runtime.assert_well(old)


async def test_unsendable_guest_stays(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    source, _ = await runtime.begin_to_move()
    assert source.move is not None
    source.move.end.set_exception(GuestError("the monitor is gone"))
    await runtime.settle()
    assert await runtime.outcome() == ("Failed", "Refused")
    await runtime.assert_well(old)


@pytest.mark.parametrize("node", ["n1", "n2"])
async def test_removed_node_ends_its_side(runtime: RuntimeFixture, node: str) -> None:
    old = await runtime.run_vm()
    await runtime.begin_to_move()
    await runtime.client.delete(NODES, ObjectName("", node))
    await runtime.settle()
    await runtime.pass_time(8)
    assert await runtime.outcome() == ("Failed", "TargetLost" if node == "n2" else "SourceLost")
    status = await runtime.status()
    assert status["node"] == ("n1" if node == "n2" else "n2")
    assert (status["podName"] == old) is (node == "n2")
    await runtime.assert_well(str(status["podName"]))
