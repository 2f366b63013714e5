"""A slow kubelet may yet apply requests that were lowered since: their room stays reserved until it has seen that."""

from __future__ import annotations

from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import PODS, FakeCluster
from tests.scheduler_plugin.objects import Obj, plain_pod
from tests.scheduler_plugin.running import Running, running
from tests.scheduler_plugin.test_postgres_pods import cluster, permit, resized

__all__ = ["cluster"]

SMALL, LARGE = ("1", "4Gi"), ("3", "6Gi")


def pod(cpu: str, mem: str, actual: tuple[str, str], seen: int) -> Obj:
    """The pod with these requests; its kubelet reports ``actual`` and the generation that it has seen."""
    obj = resized(cpu, mem, actual)
    obj["status"]["observedGeneration"] = seen
    return obj


async def lower_before_kubelet_sees(cluster: FakeCluster, scheduler: Running) -> None:
    """Raise the pod's requests by a permit and lower them again, while its kubelet has seen neither."""
    cluster.put(PODS, pod(*SMALL, SMALL, 1))
    assert await permit(scheduler, 3, 6, sequence=1) == ("3", 6)
    for size in (LARGE, SMALL):
        cluster.put(PODS, pod(*size, SMALL, 1))
        await settle()


async def test_lowered_requests_count_until_kubelet_saw_them(cluster: FakeCluster) -> None:
    clock = FakeClock()
    async with running(cluster, clock) as scheduler:
        await clock.advance(31)
        await lower_before_kubelet_sees(cluster, scheduler)
        assert await permit(scheduler, 1, 4, sequence=2) == ("1", 4)
        await clock.advance(120)
        assert scheduler.reserved("n1") == "7100m cpu, 10304Mi"
        cluster.put(PODS, pod(*SMALL, LARGE, 2))
        await settle()
        assert scheduler.reserved("n1") == "7100m cpu, 10304Mi"
        cluster.put(PODS, pod(*SMALL, SMALL, 3))
        await settle()
        assert scheduler.reserved("n1") == "5100m cpu, 8256Mi"


async def test_old_kubelets_report_no_generation(cluster: FakeCluster) -> None:
    clock = FakeClock()
    async with running(cluster, clock) as scheduler:
        await clock.advance(31)
        assert await permit(scheduler, 3, 6, sequence=1) == ("3", 6)
        cluster.put(PODS, resized("3", "6Gi", ("1", "4Gi")))
        await settle()
        cluster.put(PODS, resized("1", "4Gi"))
        await settle()
        assert await permit(scheduler, 1, 4, sequence=2) == ("1", 4)
        assert scheduler.reserved("n1") == "5100m cpu, 8256Mi"


async def test_successor_waits_for_slow_kubelet(cluster: FakeCluster) -> None:
    """It cannot know which requests the kubelet may yet apply, so it gives away nothing on that node."""
    clock = FakeClock()
    async with running(cluster, clock) as scheduler:
        await clock.advance(31)
        await lower_before_kubelet_sees(cluster, scheduler)
    async with running(cluster, clock, identity="successor") as scheduler:
        await clock.advance(31)
        assert await permit(scheduler, 1, 4, sequence=2, lastPermit={"vCPUs": 1, "mem": 64}) == ("1", 4)
        await clock.advance(60)
        assert await scheduler.filter(plain_pod("new"), "n1") == []
        cluster.put(PODS, pod(*SMALL, LARGE, 2))
        await settle()
        assert await scheduler.filter(plain_pod("new"), "n1") == []
        cluster.put(PODS, pod(*SMALL, LARGE, 3))
        await settle()
        assert scheduler.reserved("n1") == "7100m cpu, 10304Mi"
        assert await scheduler.filter(plain_pod("new"), "n1") == ["n1"]
