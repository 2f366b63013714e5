"""The whole runtime migrates a VM: its objects, its waits, and what is left afterwards."""

import asyncio

from protocol.kubernetes.objects import Json, child, items, node_of, text
from protocol.kubernetes.resources import NODES, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.units import Bytes, MilliCpu
from tests.neonvm.fake_guests import progress_of
from tests.neonvm.runtime_fixture import DB, RuntimeFixture
from tests.neonvm.sample_objects import GI


async def test_a_vm_is_moved_and_everybody_is_told(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    source, target = await runtime.begin_to_move()
    new = target.spec.pod.name
    status = await runtime.status()
    assert (status["phase"], status["podName"], status["node"]) == ("Migrating", old, "n1")
    source.arrive()
    await runtime.settle()
    assert await runtime.outcome() == ("Succeeded", "Migrated")
    found = child(await runtime.migration() or {}, "status")
    ends = ("sourcePodName", "sourcePodIP", "sourceNode", "targetPodName", "targetPodIP", "targetNode")
    assert [found[end] for end in ends] == [old, "10.1.0.1", "n1", new, "10.1.0.2", "n2"]
    info = child(found, "info")
    assert (info["status"], info["totalTimeMs"], info["downtimeMs"]) == ("completed", 1250, 57)
    message = "move: migrated from n1 to n2 in 1250 ms, downtime 57 ms, 100 MiB sent"
    begun = f"move: migrating the guest from pod {old} on n1 to pod {new} on n2"
    for name in ("db", "move"):
        assert sorted(await runtime.said(name)) == [("Migrated", message), ("Migrating", begun)]
    await runtime.assert_well(new)


async def test_no_step_is_written_from_stale_objects(runtime: RuntimeFixture) -> None:
    """The controllers remember their writes before their watches show them."""
    await runtime.run_vm()
    await runtime.begin_to_move()
    assert {status for status, _ in runtime.api.patched} == {200}


async def test_target_has_the_hardware_of_its_source(runtime: RuntimeFixture) -> None:
    """QEMU takes a guest into the same machine only, also if the VM's spec was edited after the guest was booted."""
    await runtime.run_vm()
    edit = {"cpus": {"max": 16}, "memorySlotSize": "512Mi", "memorySlots": {"min": 4, "max": 32, "use": 8}}
    await runtime.client.merge_patch(VIRTUAL_MACHINES, DB, {"spec": {"guest": edit}})
    await runtime.pass_time(3)
    source, target = await runtime.begin_to_move()
    sizes = [(each.spec.cpu_max, each.spec.mem_min, each.spec.mem_max) for each in (source, target)]
    assert sizes[0] == sizes[1] == (MilliCpu(4000), Bytes(GI), Bytes(8 * GI))


async def test_migration_controls_target_owns_source(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    _, target = await runtime.begin_to_move()
    owners = {}
    for name in (old, target.spec.pod.name):
        pod = await runtime.client.get(PODS, ObjectName("default", name))
        found = items(pod, "metadata", "ownerReferences")
        owners[name] = [(text(each, "kind"), each.get("controller")) for each in found]
    assert owners == {
        old: [("VirtualMachine", True), ("VirtualMachineMigration", False)],
        target.spec.pod.name: [("VirtualMachineMigration", True)],
    }


async def test_success_updates_vm_pod_migration_source(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    source, target = await runtime.begin_to_move()
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

    runtime.api.server.api.store.observe(follow)
    source.arrive()
    await runtime.settle()
    assert list(dict.fromkeys(steps)) == [
        "the VM names the target",
        "the target is the VM's",
        "the migration has succeeded",
        "the source goes",
    ]


async def test_resize_waits_for_the_move(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    source, target = await runtime.begin_to_move()
    await runtime.resize(3)
    await runtime.pass_time(5)
    assert (source.orders, (await runtime.status())["cpus"]) == ([], "2")
    source.arrive()
    await runtime.settle()
    await runtime.pass_time(1)
    assert (target.orders, (await runtime.status())["cpus"]) == (["cpu 3"], "3")
    await runtime.assert_well(target.spec.pod.name)


async def test_move_waits_for_running_resize(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    guest = runtime.guests.by_pod[old]
    guest.stops = asyncio.Event()
    await runtime.resize(3)
    await runtime.ask_to_move()
    await runtime.pass_time(2)
    assert (guest.orders, guest.move) == (["cpu 3"], None)
    guest.stops.set()
    await runtime.settle()
    assert guest.move is not None
    guest.arrive()
    await runtime.settle()
    await runtime.assert_well((await runtime.status())["podName"])  # type: ignore[arg-type]


async def test_progress_is_written_once_a_second(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    source, _ = await runtime.begin_to_move()
    seen = []
    for tenth in range(1, 31):
        assert source.move is not None
        source.move.progress(progress_of(tenth / 10))
        await runtime.pass_time(0.1)
        seen.append(child(await runtime.migration() or {}, "status", "info").get("totalTimeMs"))
    assert list(dict.fromkeys(seen)) == [100, 1100, 2100]
    await runtime.cancel()


async def test_waiting_target_is_placed_when_room_frees(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    runtime.extender.full = {"n2"}
    await runtime.ask_to_move()
    await runtime.pass_time(5)
    runtime.extender.full = set()
    touched: Json = {"metadata": {"annotations": {"autoscaling.neon.tech/room-freed": "1"}}}
    await runtime.client.merge_patch(NODES, ObjectName("", "n2"), touched)
    await runtime.pass_time(3)
    target = runtime.guests.moving.move.target  # type: ignore[union-attr]  # it is being moved
    runtime.guests.moving.arrive()
    await runtime.settle()
    await runtime.assert_well(target.spec.pod.name)


async def test_same_node_migration_is_opt_in(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    runtime.extender.full = {"n2"}
    await runtime.ask_to_move(preventMigrationToSameHost=False)
    target = runtime.guests.moving.move.target  # type: ignore[union-attr]  # it is being moved
    assert node_of((await runtime.pods())[target.spec.pod.name]) == "n1"
    runtime.guests.moving.arrive()
    await runtime.settle()
    await runtime.assert_well(target.spec.pod.name)


async def test_a_migration_may_follow_another_one_at_once(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    source, _ = await runtime.begin_to_move()
    source.arrive()
    await runtime.settle()
    await runtime.ask_to_move("back")
    runtime.guests.moving.arrive()
    await runtime.settle()
    status = await runtime.status()
    assert (status["node"], status["podName"] == old) == ("n1", False)
    await runtime.assert_well(str(status["podName"]))


async def test_unneeded_pods_are_deleted(runtime: RuntimeFixture) -> None:
    old = await runtime.run_vm()
    pod = (await runtime.pods())[old]
    owners = child(pod, "metadata")["ownerReferences"]
    labels = {"vm.neon.tech/name": "db"}
    stray: Json = {
        "metadata": {"name": "stray", "labels": labels, "ownerReferences": owners},
        "spec": child(pod, "spec"),
    }
    stray["spec"] = {**child(stray, "spec"), "nodeName": None}
    runtime.extender.full = {"n1", "n2"}
    await runtime.client.create(PODS, "default", stray)
    await runtime.pass_time(1)
    await runtime.assert_well(old)
