"""A VM is moved by the whole runtime: what everybody sees of it, how it may end, and what is left of it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.local.kube.objects import MIGRATIONS, NODES, PODS, VIRTUAL_MACHINES, Json, child, items, node_of, text
from deploy.local.ports import GuestError, Survivor, TransferFault, TransferLimits
from protocol.messages import ObjectName
from protocol.units import Bytes, Seconds
from tests.local.neonvm.puppets import progress_of
from tests.local.neonvm.stage import DB, MOVE, Stage, staged


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as opened:
        yield opened


async def test_a_vm_is_moved_and_everybody_is_told(stage: Stage) -> None:
    old = await stage.run_vm()
    source, target = await stage.begin_to_move()
    new = target.spec.pod.name
    status = await stage.status()
    assert (status["phase"], status["podName"], status["node"]) == ("Migrating", old, "n1")
    source.arrive()
    await stage.settle()
    assert await stage.outcome() == ("Succeeded", "Migrated")
    found = child(await stage.migration() or {}, "status")
    ends = ("sourcePodName", "sourcePodIP", "sourceNode", "targetPodName", "targetPodIP", "targetNode")
    assert [found[end] for end in ends] == [old, "10.1.0.1", "n1", new, "10.1.0.2", "n2"]
    info = child(found, "info")
    assert (info["status"], info["totalTimeMs"], info["downtimeMs"]) == ("completed", 1250, 57)
    story = "move: moved from n1 to n2 in 1250 ms, standing still for 57 ms, 100 MiB sent"
    begun = f"move: the guest moves from pod {old} on n1 to pod {new} on n2"
    for name in ("db", "move"):
        assert sorted(await stage.said(name)) == [("Migrated", story), ("Migrating", begun)]
    await stage.assert_well(new)


async def test_the_order_of_success_is_vm_pod_migration_and_only_then_the_source(stage: Stage) -> None:
    old = await stage.run_vm()
    source, target = await stage.begin_to_move()
    steps: list[str] = []

    def follow(change: object) -> None:
        body: Json = change.now.body  # type: ignore[attr-defined]  # the store's own type
        name, kind = text(body, "metadata", "name"), text(body, "kind")
        owners = [text(each, "kind") for each in items(body, "metadata", "ownerReferences")]
        if kind == "VirtualMachine" and text(body, "status", "podName") == target.spec.pod.name:
            steps.append("the VM names the target")
        elif kind == "VirtualMachineMigration" and text(body, "status", "phase") == "Succeeded":
            steps.append("the migration has succeeded")
        elif name == target.spec.pod.name and owners == ["VirtualMachine"]:
            steps.append("the target is the VM's")
        elif name == old and text(body, "metadata", "deletionTimestamp"):
            steps.append("the source goes")

    stage.api.server.api.store.observe(follow)
    source.arrive()
    await stage.settle()
    assert list(dict.fromkeys(steps)) == [
        "the VM names the target",
        "the target is the VM's",
        "the migration has succeeded",
        "the source goes",
    ]


async def test_nothing_is_resized_while_the_guest_moves_and_all_is_done_afterwards(stage: Stage) -> None:
    await stage.run_vm()
    source, target = await stage.begin_to_move()
    await stage.resize(3)
    await stage.pass_time(5)
    assert (source.orders, (await stage.status())["cpus"]) == ([], "2")
    source.arrive()
    await stage.settle()
    await stage.pass_time(1)
    assert (target.orders, (await stage.status())["cpus"]) == (["cpu 3"], "3")
    await stage.assert_well(target.spec.pod.name)


async def test_a_resize_that_is_in_progress_ends_before_the_guest_moves(stage: Stage) -> None:
    old = await stage.run_vm()
    puppet = stage.puppets.by_pod[old]
    puppet.stops = asyncio.Event()
    await stage.resize(3)
    await stage.ask_to_move()
    await stage.pass_time(2)
    assert (puppet.orders, puppet.move) == (["cpu 3"], None)
    puppet.stops.set()
    await stage.settle()
    assert puppet.move is not None
    puppet.arrive()
    await stage.settle()
    await stage.assert_well((await stage.status())["podName"])  # type: ignore[arg-type]


async def test_progress_is_written_once_a_second(stage: Stage) -> None:
    await stage.run_vm()
    source, _ = await stage.begin_to_move()
    seen = []
    for tenth in range(1, 31):
        assert source.move is not None
        source.move.progress(progress_of(tenth / 10))
        await stage.pass_time(0.1)
        seen.append(child(await stage.migration() or {}, "status", "info").get("totalTimeMs"))
    assert list(dict.fromkeys(seen)) == [100, 1100, 2100]
    await stage.cancel()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (TransferFault.TARGET_LOST, "TargetLost"),
        (TransferFault.REFUSED, "Refused"),
        (TransferFault.TIMED_OUT, "TimedOut"),
    ],
)
async def test_a_move_that_fails_leaves_the_vm_where_it_was(stage: Stage, fault: TransferFault, reason: str) -> None:
    old = await stage.run_vm()
    source, _ = await stage.begin_to_move()
    source.fail(fault)
    await stage.settle()
    await stage.pass_time(3)
    assert await stage.outcome() == ("Failed", reason)
    assert (f"Migration{reason}", f"move: injected: {fault}") in await stage.said()
    await stage.assert_well(old)


async def test_how_it_ended_is_said_although_the_first_attempt_was_lost(stage: Stage) -> None:
    old = await stage.run_vm()
    source, _ = await stage.begin_to_move()
    stage.api.lost = "POST /api/v1/namespaces/default/events"
    source.fail(TransferFault.REFUSED)
    await stage.settle()
    await stage.pass_time(2)
    story = "move: injected: Refused"
    assert (stage.api.lost, await stage.said("move")) == ("", await stage.said())
    assert ("MigrationRefused", story) in await stage.said()
    await stage.assert_well(old)


async def test_a_target_that_dies_before_anything_is_sent_is_cleared_away(stage: Stage) -> None:
    old = await stage.run_vm()
    stage.puppets.by_pod[old].stops = busy = asyncio.Event()
    await stage.resize(3)  # keeps the source busy, so that nothing is sent yet
    await stage.ask_to_move()
    (target,) = stage.puppets.by_pod.keys() - {old}
    stage.puppets.by_pod[target].die()
    await stage.pass_time(3)
    assert await stage.outcome() == ("Failed", "TargetLost")
    busy.set()
    await stage.settle()
    await stage.assert_well(old)


async def test_a_target_that_cannot_even_receive_fails_the_migration(stage: Stage) -> None:
    old = await stage.run_vm()
    stage.puppets.refuse_to_receive = "no such machine type"
    await stage.ask_to_move()
    await stage.pass_time(1)
    assert await stage.outcome() == ("Failed", "TargetLost")
    assert "no such machine type" in (await stage.said())[0][1]
    await stage.assert_well(old)


async def test_a_target_that_dies_while_it_is_sent_to_leaves_the_source(stage: Stage) -> None:
    old = await stage.run_vm()
    _, target = await stage.begin_to_move()
    target.die()
    await stage.settle()
    await stage.pass_time(3)
    assert await stage.outcome() == ("Failed", "TargetLost")
    await stage.assert_well(old)


@pytest.mark.parametrize(("policy", "runs"), [("Always", 1), ("OnFailure", 1), ("Never", 0)])
@pytest.mark.parametrize("told", [True, False])
async def test_a_target_that_dies_just_after_the_guest_moved_in_means_a_restart_as_the_policy_says(
    stage: Stage, told: bool, policy: str, runs: int
) -> None:
    old = await stage.run_vm(policy)
    source, target = await stage.begin_to_move()
    new = target.spec.pod.name
    if not told:
        stage.api.go_away()
    source.arrive()
    await stage.settle()
    target.die()
    await stage.pass_time(3)
    stage.api.come_back()
    await stage.pass_time(20)
    assert await stage.outcome() == (("Succeeded", "Migrated") if told else ("Failed", "TargetLost"))
    why = "the guest has ended" if told else f"the guest has moved to pod {new}, and was lost there"
    assert ("Failed", f"the VM has ended: {why}") in await stage.said()
    status = await stage.status()
    assert (len(stage.puppets.running), stage.puppets.doubled, status.get("restartCount", 0)) == (runs, [], runs)
    if runs:
        assert status["podName"] not in {old, new}
        await stage.assert_well(str(status["podName"]))
    else:
        assert (status["phase"], status["podName"]) == ("Failed", new if told else old)


@pytest.mark.parametrize(("policy", "runs"), [("Always", 1), ("OnFailure", 1), ("Never", 0)])
async def test_a_source_that_dies_is_started_again_as_its_policy_says(stage: Stage, policy: str, runs: int) -> None:
    old = await stage.run_vm(policy)
    source, _ = await stage.begin_to_move()
    source.fail(TransferFault.SOURCE_LOST, Survivor.NOBODY)
    await stage.settle()
    await stage.pass_time(8)
    assert await stage.outcome() == ("Failed", "SourceLost")
    status = await stage.status()
    assert (len(stage.puppets.running), stage.puppets.doubled) == (runs, [])
    assert (status["phase"], status["podName"] == old) == (("Running", False) if runs else ("Failed", True))
    if runs:
        await stage.assert_well(str(status["podName"]))


async def test_when_both_ends_die_the_vm_starts_anew(stage: Stage) -> None:
    await stage.run_vm()
    source, target = await stage.begin_to_move()
    target.die()
    source.die()
    await stage.pass_time(8)
    assert (await stage.outcome())[0] == "Failed"
    await stage.assert_well(str((await stage.status())["podName"]))


async def test_a_move_that_takes_too_long_is_given_up(stage: Stage) -> None:
    old = await stage.run_vm()
    source, _ = await stage.begin_to_move(maxBandwidth="10Mi", autoConverge=False)
    assert source.move is not None
    limits = source.move.limits
    assert limits == TransferLimits(Seconds(0.1), Bytes(10 << 20), Seconds(60.0), auto_converge=False)
    await stage.pass_time(62)
    assert await stage.outcome() == ("Failed", "TimedOut")
    assert ("MigrationTimedOut", "move: not done within 60 s") in await stage.said()
    await stage.assert_well(old)


async def test_a_target_for_which_there_is_no_room_is_given_up_in_time(stage: Stage) -> None:
    old = await stage.run_vm()
    stage.full = {"n2"}
    await stage.ask_to_move()
    await stage.pass_time(62, step=5)
    assert await stage.outcome() == ("Failed", "TimedOut")
    assert ("MigrationTimedOut", "move: not done within 60 s; no node had room for it") in await stage.said()
    await stage.assert_well(old)


async def test_a_target_that_waits_is_placed_when_room_is_freed(stage: Stage) -> None:
    await stage.run_vm()
    stage.full = {"n2"}
    await stage.ask_to_move()
    await stage.pass_time(5)
    stage.full = set()
    touched: Json = {"metadata": {"annotations": {"autoscaling.neon.tech/room-freed": "1"}}}
    await stage.client.merge_patch(NODES, ObjectName("", "n2"), touched)
    await stage.pass_time(3)
    target = stage.puppets.moving.move.target  # type: ignore[union-attr]  # it is being moved
    stage.puppets.moving.arrive()
    await stage.settle()
    await stage.assert_well(target.spec.pod.name)


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


async def test_a_source_that_cannot_be_asked_after_a_failed_move_is_believed_to_run(stage: Stage) -> None:
    old = await stage.run_vm()
    source, _ = await stage.begin_to_move()
    source.is_mute = True
    source.fail(TransferFault.TARGET_LOST)
    await stage.settle()
    source.is_mute = False
    await stage.pass_time(3)
    assert await stage.outcome() == ("Failed", "TargetLost")
    await stage.assert_well(old)


async def test_a_guest_that_cannot_be_sent_for_any_other_reason_stays(stage: Stage) -> None:
    old = await stage.run_vm()
    source, _ = await stage.begin_to_move()
    assert source.move is not None
    source.move.end.set_exception(GuestError("the monitor is gone"))
    await stage.settle()
    assert await stage.outcome() == ("Failed", "Refused")
    await stage.assert_well(old)


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


@pytest.mark.parametrize("node", ["n1", "n2"])
async def test_a_node_that_is_removed_takes_its_end_of_the_move_with_it(stage: Stage, node: str) -> None:
    old = await stage.run_vm()
    await stage.begin_to_move()
    await stage.client.delete(NODES, ObjectName("", node))
    await stage.settle()
    await stage.pass_time(8)
    assert await stage.outcome() == ("Failed", "TargetLost" if node == "n2" else "SourceLost")
    status = await stage.status()
    assert status["node"] == ("n1" if node == "n2" else "n2")
    assert (status["podName"] == old) is (node == "n2")
    await stage.assert_well(str(status["podName"]))


async def test_an_api_server_that_is_away_for_half_a_minute_only_delays(stage: Stage) -> None:
    await stage.run_vm()
    source, target = await stage.begin_to_move()
    stage.api.go_away()
    await stage.pass_time(2)
    source.arrive()
    await stage.pass_time(28)
    assert stage.puppets.running == [target.spec.pod.name]
    stage.api.come_back()
    await stage.pass_time(12)
    assert await stage.outcome() == ("Succeeded", "Migrated")
    await stage.assert_well(target.spec.pod.name)


@pytest.mark.parametrize(
    "lost", ["PATCH /apis/vm.neon.tech/v1/namespaces/default/virtualmachinemigrations/move/status", "/pods"]
)
async def test_an_answer_that_is_lost_does_nothing_twice(stage: Stage, lost: str) -> None:
    await stage.run_vm()
    stage.api.unanswered = lost
    await stage.ask_to_move()
    await stage.pass_time(2)
    assert stage.api.unanswered == ""
    target = stage.puppets.moving.move.target  # type: ignore[union-attr]  # it is being moved
    stage.api.unanswered = "/status"
    stage.puppets.moving.arrive()
    await stage.settle()
    await stage.pass_time(2)
    assert await stage.outcome() == ("Succeeded", "Migrated")
    await stage.assert_well(target.spec.pod.name)


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


async def test_a_migration_may_follow_another_one_at_once(stage: Stage) -> None:
    old = await stage.run_vm()
    source, _ = await stage.begin_to_move()
    source.arrive()
    await stage.settle()
    await stage.ask_to_move("back")
    stage.puppets.moving.arrive()
    await stage.settle()
    status = await stage.status()
    assert (status["node"], status["podName"] == old) == ("n1", False)
    await stage.assert_well(str(status["podName"]))


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


async def test_a_migration_within_one_node_must_be_asked_for(stage: Stage) -> None:
    await stage.run_vm()
    stage.full = {"n2"}
    await stage.ask_to_move(preventMigrationToSameHost=False)
    target = stage.puppets.moving.move.target  # type: ignore[union-attr]  # it is being moved
    assert node_of((await stage.pods())[target.spec.pod.name]) == "n1"
    stage.puppets.moving.arrive()
    await stage.settle()
    await stage.assert_well(target.spec.pod.name)


@pytest.mark.parametrize("sending", [False, True])
async def test_a_runtime_that_is_restarted_ends_the_migration_and_starts_the_vm_anew(
    stage: Stage, sending: bool
) -> None:
    await stage.run_vm()
    if not sending:
        stage.full = {"n2"}
    await stage.ask_to_move()
    await stage.restart()
    await stage.pass_time(8)
    assert await stage.outcome() == ("Failed", "RuntimeRestarted" if sending else "SourceLost")
    await stage.assert_well(str((await stage.status())["podName"]))


async def test_a_runtime_that_dies_right_after_the_switch_knows_where_the_vm_is(stage: Stage) -> None:
    await stage.run_vm()
    source, target = await stage.begin_to_move()
    body: Json = {"status": {"podName": target.spec.pod.name}}
    await stage.stop()
    await stage.client.merge_patch(VIRTUAL_MACHINES, DB, body, "status")
    await stage.start()
    await stage.pass_time(8)
    assert (await stage.outcome())[0] == "Succeeded"
    assert source.move is None
    await stage.assert_well(str((await stage.status())["podName"]))


async def test_pods_of_the_vm_that_nothing_needs_are_deleted(stage: Stage) -> None:
    old = await stage.run_vm()
    pod = (await stage.pods())[old]
    owners = child(pod, "metadata")["ownerReferences"]
    labels = {"vm.neon.tech/name": "db"}
    stray: Json = {
        "metadata": {"name": "stray", "labels": labels, "ownerReferences": owners},
        "spec": child(pod, "spec"),
    }
    stray["spec"] = {**child(stray, "spec"), "nodeName": None}
    stage.full = {"n1", "n2"}
    await stage.client.create(PODS, "default", stray)
    await stage.pass_time(1)
    await stage.assert_well(old)
