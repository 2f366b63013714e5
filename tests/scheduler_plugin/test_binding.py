"""kube-scheduler places pods: filter advises, bind reserves, and every possible outcome of a bind (S4.10)."""

from __future__ import annotations

import asyncio

import pytest

from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.objects import node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.running import running


@pytest.fixture
def cluster() -> FakeCluster:
    """A cluster with two nodes of 10 vCPUs and 40Gi."""
    cluster = FakeCluster()
    cluster.put(NODES, node("n1"))
    cluster.put(NODES, node("n2"))
    return cluster


def waiting_pod(cluster: FakeCluster, name: str, cpu: str = "6") -> dict[str, object]:
    return cluster.put(PODS, plain_pod(name, cpu, "1Gi"))


async def test_racing_binds_have_one_winner(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        pods = [waiting_pod(cluster, f"p{i}") for i in range(3)]
        assert [await scheduler.filter(pod, "n1") for pod in pods] == [["n1"]] * 3
        said = await asyncio.gather(*(scheduler.bind(pod, "n1") for pod in pods))
        refused = "Insufficient cpu: pod needs 6 cpu, 1Gi; node n1 has 4 cpu, 39Gi free of 10 cpu, 40Gi"
        assert sorted(said) == ["", refused, refused]
        assert scheduler.reserved("n1") == "6 cpu, 1Gi"
        assert len(cluster.made("POST", "/binding")) == 1


async def test_repeated_bind_needs_no_api_call(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        pod = waiting_pod(cluster, "p")
        assert [await scheduler.bind(pod, "n1"), await scheduler.bind(pod, "n1")] == ["", ""]
        assert len(cluster.made("POST", "/binding")) == 1
        assert scheduler.reserved("n1") == "6 cpu, 1Gi"


async def test_a_refused_bind_gives_the_room_back(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        pod = waiting_pod(cluster, "p")
        cluster.faults.append(Fault(to("POST", "/binding"), refuse=403))
        assert await scheduler.bind(pod, "n1") == "the API server refused the binding: 403: refused by a fault"
        assert scheduler.reserved("n1") == "0 cpu, 0"


@pytest.mark.parametrize("landed", [True, False])
async def test_unanswered_bind_keeps_room_until_known(cluster: FakeCluster, clock: FakeClock, landed: bool) -> None:
    async with running(cluster, clock) as scheduler:
        pod, other = waiting_pod(cluster, "p"), waiting_pod(cluster, "other")
        cluster.faults.append(Fault(to("POST", "/binding"), is_applied=landed))
        assert "bind timed out" in await scheduler.bind(pod, "n1")
        assert scheduler.reserved("n1") == "6 cpu, 1Gi"
        assert await scheduler.filter(other, "n1") == []
        await clock.advance(9)
        assert scheduler.reserved("n1") == "6 cpu, 1Gi", "a binding may land late"
        await clock.advance(5)
        assert scheduler.reserved("n1") == ("6 cpu, 1Gi" if landed else "0 cpu, 0")


async def test_unsettled_bind_pins_the_node(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        pod = waiting_pod(cluster, "p")
        cluster.faults.append(Fault(to("POST", "/binding")))
        await scheduler.bind(pod, "n1")
        assert await scheduler.filter(pod, "n1", "n2") == ["n1"]
        assert "holds a reservation on node n1" in await scheduler.bind(pod, "n2")
        assert await scheduler.bind(pod, "n1") == ""
        assert (scheduler.reserved("n1"), scheduler.reserved("n2")) == ("6 cpu, 1Gi", "0 cpu, 0")


async def test_a_conflict_with_the_same_node_is_success(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        pod = waiting_pod(cluster, "p")
        held = asyncio.Event()
        cluster.faults.append(Fault(to("POST", "/binding"), hold=held))
        binding = asyncio.create_task(scheduler.bind(pod, "n1"))
        await settle()
        cluster.put(PODS, plain_pod("p", "6", "1Gi", "n1"))
        held.set()
        assert await binding == ""
        assert scheduler.reserved("n1") == "6 cpu, 1Gi"


async def test_a_conflict_with_another_node_moves_the_reservation(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        pod = waiting_pod(cluster, "p")
        held = asyncio.Event()
        cluster.faults.append(Fault(to("POST", "/binding"), hold=held))
        binding = asyncio.create_task(scheduler.bind(pod, "n1"))
        await settle()
        cluster.put(PODS, plain_pod("p", "6", "1Gi", "n2"))
        held.set()
        assert "runs on node n2" in await binding
        assert (scheduler.reserved("n1"), scheduler.reserved("n2")) == ("0 cpu, 0", "6 cpu, 1Gi")


async def test_a_pod_that_was_replaced_is_refused(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        old = waiting_pod(cluster, "p")
        cluster.put(PODS, plain_pod("p", uid="another"))
        await settle()
        assert await scheduler.bind(old, "n1") == "pod default/p with UID pod-p does not exist"
        assert scheduler.reserved("n1") == "0 cpu, 0"


async def test_unseen_pod_is_read_directly(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        cluster.go_away()
        await settle()
        pod = waiting_pod(cluster, "p")
        cluster.come_back()
        assert await scheduler.bind(pod, "n1") == ""
        assert len(cluster.made("GET", "/pods/p")) == 1


async def test_deletion_and_completion_release(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        deleted, finished = waiting_pod(cluster, "deleted", "2"), waiting_pod(cluster, "finished", "3")
        assert [await scheduler.bind(pod, "n1") for pod in (deleted, finished)] == ["", ""]
        assert scheduler.reserved("n1") == "5 cpu, 2Gi"
        done = plain_pod("finished", "3", "1Gi", "n1")
        done["status"]["phase"] = "Succeeded"
        cluster.put(PODS, done)
        cluster.remove(PODS, "default", "deleted")
        await settle()
        assert scheduler.reserved("n1") == "0 cpu, 0"


async def test_bound_foreign_pods_count(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        cluster.put(PODS, plain_pod("foreign", "7", "1Gi", "n1"))
        await settle()
        assert await scheduler.filter(waiting_pod(cluster, "p"), "n1", "n2") == ["n2"]


async def test_claim_follows_use_not_requests(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(VMS, vm("db", cpu=4, slots=8))
    async with running(cluster, clock) as scheduler:
        pod = cluster.put(PODS, vm_pod("db"))
        assert await scheduler.bind(pod, "n1") == ""
        assert scheduler.reserved("n1") == "4 cpu, 8Gi"


async def test_freed_room_wakes_pods_that_wait(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        first, second = waiting_pod(cluster, "first"), waiting_pod(cluster, "second")
        await scheduler.bind(first, "n1")
        assert await scheduler.filter(second, "n1") == []
        cluster.remove(PODS, "default", "first")
        await settle()
        assert "autoscaling.neon.tech/room-freed" in cluster.get(NODES, "", "n1")["metadata"]["annotations"]
        touched = len(cluster.made("PATCH", "/nodes/n1"))
        assert touched == 1


async def test_lost_wake_up_is_repeated(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        first, second = waiting_pod(cluster, "first"), waiting_pod(cluster, "second")
        await scheduler.bind(first, "n1")
        await scheduler.filter(second, "n1")
        cluster.faults.append(Fault(to("PATCH", "/nodes/n1")))
        cluster.remove(PODS, "default", "first")
        await settle()
        assert "annotations" not in cluster.get(NODES, "", "n1")["metadata"]
        await clock.advance(2)
        assert "annotations" in cluster.get(NODES, "", "n1")["metadata"]


async def test_gone_pod_in_conflict_frees_room(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        pod = waiting_pod(cluster, "p")
        await settle()
        cluster.faults.append(Fault(to("POST", "/binding"), refuse=409))
        cluster.faults.append(Fault(to("GET", "/pods/p"), refuse=404))
        assert await scheduler.bind(pod, "n1") == "pod default/p is gone: 409: refused by a fault"
        assert scheduler.reserved("n1") == "0 cpu, 0"


async def test_bound_successor_keeps_room(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        pod = waiting_pod(cluster, "p")
        await settle()
        late = asyncio.Event()
        cluster.faults += [
            Fault(to("POST", "/binding"), refuse=409),
            Fault(to("GET", "/pods/p"), refuse=404, hold=late),
        ]
        binding = asyncio.create_task(scheduler.bind(pod, "n1"))
        await settle()
        cluster.remove(PODS, "default", "p")
        cluster.put(PODS, plain_pod("p", "6", "1Gi", "n1", uid="second"))
        await settle()
        late.set()
        assert await binding != ""
        await settle()
        assert scheduler.reserved("n1") == "6 cpu, 1Gi"


async def test_unreadable_pod_keeps_room(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        pod = waiting_pod(cluster, "p")
        await settle()
        cluster.faults.append(Fault(to("POST", "/binding"), refuse=409))
        cluster.faults.append(Fault(to("GET", "/pods/p"), refuse=403, times=2))
        assert "cannot be read right now" in await scheduler.bind(pod, "n1")
        assert scheduler.reserved("n1") == "6 cpu, 1Gi"
        await clock.advance(2)
        assert scheduler.reserved("n1") == "0 cpu, 0", "a conflict is certain: this call bound nothing"


@pytest.mark.parametrize("refuse", [429, 403, 401, 409])
async def test_refused_wake_up_is_repeated(cluster: FakeCluster, clock: FakeClock, refuse: int) -> None:
    async with running(cluster, clock) as scheduler:
        first, second = waiting_pod(cluster, "first"), waiting_pod(cluster, "second")
        await scheduler.bind(first, "n1")
        await scheduler.filter(second, "n1")
        cluster.faults.append(Fault(to("PATCH", "/nodes/n1"), refuse=refuse, times=3))
        cluster.remove(PODS, "default", "first")
        await clock.advance(20)
        assert "annotations" in cluster.get(NODES, "", "n1")["metadata"]
        assert len(cluster.made("PATCH", "/nodes/n1")) == 4


async def test_wake_up_by_gone_node_ends(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        first, second = waiting_pod(cluster, "first"), waiting_pod(cluster, "second")
        await scheduler.bind(first, "n1")
        await scheduler.filter(second, "n1")
        cluster.faults.append(Fault(to("PATCH", "/nodes/n1"), refuse=404))
        cluster.remove(PODS, "default", "first")
        await clock.advance(20)
        assert len(cluster.made("PATCH", "/nodes/n1")) == 1
