"""One unreadable object cannot end the process: it is skipped, counted, named and reported once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from scheduler_plugin.settings.document import parse_settings
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import MIGRATIONS, NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.objects import Obj, node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.running import SETTINGS, Running, running

POD = vm_pod("db", "n1")
HUGE = "1e1000000000000000000"


def bad_vm() -> Obj:
    found = vm("bad", uid="vm-bad")
    found["spec"]["guest"]["cpus"]["max"] = HUGE
    return found


def bad_migration() -> Obj:
    meta = {"namespace": "default", "name": "m", "uid": "m-1"}
    ram = {"dirtyPagesRate": "many", "pageSize": 4096}
    return {"metadata": meta, "spec": {"vmName": "db"}, "status": {"phase": "Running", "info": {"ram": ram}}}


BAD: list[tuple[str, Obj, str, str]] = [
    (VMS, bad_vm(), "VirtualMachine", "default/bad"),
    (PODS, plain_pod("bad", cpu="much", node="n1"), "Pod", "default/bad"),
    (NODES, node("bad", cpu=HUGE), "Node", "/bad"),
    (MIGRATIONS, bad_migration(), "VirtualMachineMigration", "default/m"),
]


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    for path, obj in ((NODES, node("n1")), (VMS, vm("db")), (PODS, POD)):
        cluster.put(path, obj)
    return cluster


async def counted(scheduler: Running) -> dict[str, float]:
    page = (await scheduler.probe("metrics")).text
    found = re.findall(r'^autoscale_scheduler_unreadable_objects\{kind="(\w+)"\} (\S+)$', page, re.MULTILINE)
    return {kind: float(count) for kind, count in found if float(count)}


async def named(scheduler: Running) -> list[tuple[str, str]]:
    return [(one["kind"], one["object"]) for one in (await scheduler.probe("nodes")).json()["unreadable"]]


def told(cluster: FakeCluster) -> list[tuple[str, str]]:
    """The kinds and names of the objects that have an event about being unreadable."""
    events = [one["involvedObject"] for one in cluster.notices if one["reason"] == "Unreadable"]
    return [(about["kind"], f"{about['namespace']}/{about['name']}") for about in events]


@pytest.mark.parametrize(("path", "obj", "kind", "name"), BAD, ids=[kind for _, _, kind, _ in BAD])
@pytest.mark.parametrize("is_first", [True, False])
async def test_unreadable_object_is_reported_alone(
    cluster: FakeCluster, path: str, obj: Obj, kind: str, name: str, *, is_first: bool
) -> None:
    clock = FakeClock()
    if is_first:
        cluster.put(path, obj)
    async with running(cluster, clock) as scheduler:
        if not is_first:
            cluster.put(path, obj)
        await clock.advance(60)
        assert await named(scheduler) == [(kind, name)]
        assert await counted(scheduler) == {path.rpartition("/")[2]: 1.0}
        assert told(cluster) == [(kind, name)]
        assert (await scheduler.ask(POD, 1, 4)).status_code == 200
        assert (await scheduler.filter(plain_pod("p", cpu="0", mem="0"), "n1")) in ([], ["n1"])
        cluster.remove(path, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        await clock.advance(15)
        assert (await named(scheduler), await counted(scheduler)) == ([], {})


async def test_a_second_scheduler_tells_nothing_twice(cluster: FakeCluster) -> None:
    cluster.put(VMS, bad_vm())
    for _ in range(2):
        clock = FakeClock()
        async with running(cluster, clock):
            await clock.advance(30)
    assert told(cluster) == [("VirtualMachine", "default/bad")]


async def test_each_version_of_bad_object_is_reported(cluster: FakeCluster) -> None:
    clock = FakeClock()
    async with running(cluster, clock):
        for _ in range(2):
            cluster.put(VMS, bad_vm())
            await clock.advance(30)
    assert len(told(cluster)) == 2


async def test_a_vm_that_cannot_be_read_is_explained(cluster: FakeCluster) -> None:
    cluster.put(VMS, bad_vm())
    async with running(cluster, FakeClock()) as scheduler:
        (problem,) = (await scheduler.probe("explain/default/bad")).json()["problems"]
        assert problem.startswith("VirtualMachine default/bad cannot be read: spec.guest.cpus.max: expected")
        assert (await scheduler.probe("explain/default/db")).json()["problems"] == []
        assert (await scheduler.probe("explain/default/none")).status_code == 404


async def test_oversized_compute_unit_is_reported(cluster: FakeCluster) -> None:
    clock = FakeClock()
    settings = parse_settings(SETTINGS.replace("mem: 1Gi", "mem: 32Gi"))
    said = "the compute unit's memory of 32Gi is larger than the VM's range of 1Gi to 16Gi"
    async with running(cluster, clock, settings) as scheduler:
        await clock.advance(60)
        events: list[Any] = [(one["reason"], one["message"]) for one in cluster.notices]
        assert events == [("ComputeUnitMisfit", said)]
        assert (await scheduler.probe("explain/default/db")).json()["problems"] == [said]


async def test_unreadable_annotation_becomes_vm_event(cluster: FakeCluster) -> None:
    clock, odd = FakeClock(), vm("odd")
    odd["metadata"]["annotations"] = {"autoscaling.neon.tech/bounds": "garbage"}
    cluster.put(VMS, odd)
    async with running(cluster, clock) as scheduler:
        await clock.advance(60)
        assert [(one["reason"], one["involvedObject"]["name"]) for one in cluster.notices] == [
            ("PartlyUnreadable", "odd")
        ]
        (problem,) = (await scheduler.probe("explain/default/odd")).json()["problems"]
        assert "autoscaling.neon.tech/bounds" in problem
