"""NeonVM's own controller with our scheduler, injector and agents: placed, injected, resized and moved (B.11)."""

from __future__ import annotations

import pytest

from protocol.names import AGENT_CONTAINER
from tests.kubernetes.failing.fleet import PODS, Obj, until
from tests.kubernetes.neon.stage import MIGRATIONS, Stage
from tests.kubernetes.real_kubernetes import PATIENCE

pytestmark = pytest.mark.kubernetes


async def pods_of(stage: Stage, vm: str) -> list[Obj]:
    return [each for each in await stage.fleet.list(PODS) if each["metadata"]["labels"]["vm.neon.tech/name"] == vm]


def agents_in(pod: Obj) -> list[str]:
    """Restart policies of our agent's containers in a pod."""
    return [each["restartPolicy"] for each in pod["spec"]["initContainers"] if each["name"] == AGENT_CONTAINER]


async def test_original_controllers_vms_scale_with_our_programs(stage: Stage) -> None:
    node = await stage.node()
    ours = await stage.our_scheduler(node)
    await stage.our_injector(ours)
    await stage.vm("db")
    guest = await stage.runs("db")
    (pod,) = await pods_of(stage, "db")
    assert (pod["spec"]["nodeName"], agents_in(pod)) == (node, ["Always"])
    await stage.sidecar("db")
    guest.load(3.0)
    await stage.grows("db", "3")
    assert guest.refused == []


async def test_original_migration_is_tracked(stage: Stage) -> None:
    """Its source has the migration as an owner that does not control it; only the target's is the controller."""
    first, second = await stage.node(), await stage.node()
    ours = await stage.our_scheduler(first)
    await stage.our_injector(ours)
    await stage.vm("db")
    await stage.runs("db")
    source = (await stage.found("db"))["status"]
    stage.guests.holds_moves = True
    spec = {"vmName": "db"}
    await stage.fleet.create(MIGRATIONS, _migration("move", spec))

    async def both_are_known() -> bool:
        return len(await pods_of(stage, "db")) == 2 and (await stage.found("db"))["status"]["phase"] == "Migrating"

    await until(both_are_known, "the migration runs", PATIENCE)

    async def both_are_booked() -> bool:
        return {name: len(pods) for name, pods in stage.booked(ours).items()} == {first: 1, second: 1}

    await until(both_are_booked, "each node has room for it")
    stage.guests.holds_moves = False

    async def has_moved() -> bool:
        status = (await stage.found("db"))["status"]
        return (status["phase"], status["podName"] != source["podName"]) == ("Running", True)

    await until(has_moved, "the VM has moved", PATIENCE)
    named = (await stage.found("db"))["status"]["podName"]
    (target,) = (each for each in await stage.fleet.list(PODS) if each["metadata"]["name"] == named)
    assert (target["spec"]["nodeName"] != source["node"], agents_in(target)) == (True, ["Always"])

    async def source_is_free() -> bool:
        return not stage.booked(ours)[source["node"]]

    await until(source_is_free, "the source's room is free again", PATIENCE)


def _migration(name: str, spec: Obj) -> Obj:
    head = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration"}
    return {**head, "metadata": {"name": name}, "spec": spec}
