"""A migration reports what it waits for, times out, and blocks neither the VM nor its next migration."""

from protocol.kubernetes.objects import Json, items, text
from protocol.kubernetes.resources import NODES
from protocol.messages import ObjectName
from tests.neonvm.runtime_fixture import RuntimeFixture

AGAIN = ObjectName("default", "again")
NO_ROOM = (
    "the target pod cannot be scheduled: 0/2 nodes are available: "
    "1 Insufficient memory, 1 node(s) didn't match Pod's node affinity/selector."
)


async def condition(runtime: RuntimeFixture, name: ObjectName) -> tuple[str, str, str]:
    """Phase, and reason and message of the condition."""
    found: Json = await runtime.migration(name) or {}
    (said,) = items(found, "status", "conditions")
    return text(found, "status", "phase"), text(said, "reason"), text(said, "message")


async def test_vm_scales_before_target_is_placed(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    runtime.extender.full = {"n2"}
    await runtime.ask_to_move()
    await runtime.pass_time(2)
    assert await condition(runtime, ObjectName("default", "move")) == ("Pending", "Unschedulable", NO_ROOM)
    assert ("MigrationUnschedulable", f"move: {NO_ROOM}") in await runtime.said()
    await runtime.resize(3)
    await runtime.pass_time(2)
    status = await runtime.status()
    assert (status["phase"], status["cpus"], status["podName"]) == ("Running", "3", old)
    runtime.extender.full = set()
    await runtime.client.merge_patch(NODES, ObjectName("", "n2"), {"metadata": {"labels": {"room": "some"}}})
    await runtime.pass_time(30)
    assert (await runtime.status())["phase"] == "Migrating"
    runtime.guests.moving.arrive()
    await runtime.settle()
    status = await runtime.status()
    assert (status["cpus"], status["podName"] == old) == ("3", False)
    await runtime.assert_well(str(status["podName"]))


async def test_silent_source_node_bars_no_move(runtime: RuntimeFixture) -> None:
    """The kubelet of the source's node hangs after the guest has left: its pod remains, and the VM migrates again."""
    old = await runtime.run_vm()
    source, target = await runtime.begin_to_move()
    runtime.controllers.stop_kubelet("n1")
    source.arrive()
    await runtime.pass_time(5)
    assert await runtime.outcome() == ("Succeeded", "Migrated")
    assert old in await runtime.pods()
    runtime.extender.full = {"n1"}
    await runtime.ask_to_move("again", preventMigrationToSameHost=False)
    await runtime.pass_time(1)
    assert (await condition(runtime, AGAIN))[0] == "Running"
    runtime.guests.moving.arrive()
    await runtime.settle()
    assert await runtime.outcome(AGAIN) == ("Succeeded", "Migrated")
    assert (await runtime.status())["podName"] not in {old, target.spec.pod.name}
    runtime.controllers.start_kubelet("n1")
    await runtime.pass_time(5)
    runtime.extender.full = set()
    await runtime.assert_well(str((await runtime.status())["podName"]))


async def test_cleanup_wait_is_explained(runtime: RuntimeFixture) -> None:
    """The target's node is silent: its pod remains, and the wait for it ends after a minute."""
    await runtime.run_vm()
    _, target = await runtime.begin_to_move()
    runtime.controllers.stop_kubelet("n2")
    target.die()
    await runtime.settle()
    await runtime.cancel()
    assert text(await runtime.migration() or {}, "status", "phase") == "Failed"
    runtime.extender.full = {"n2"}
    await runtime.ask_to_move("again", completionTimeout=600, preventMigrationToSameHost=False)
    left = f"waiting for migration move to clean up pod {target.spec.pod.name} on n2"
    assert await condition(runtime, AGAIN) == ("", "Waiting", left)
    await runtime.pass_time(62)
    counts = [each.get("count") for each in await runtime.events("again") if text(each, "message") == f"again: {left}"]
    assert counts == [1], "it is looked at each second, and said once"
    assert (await condition(runtime, AGAIN))[0] == "Running"
