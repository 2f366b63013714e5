"""Requests that the API server or a kubelet refuses: permits, reports, and retries (B.10)."""

from __future__ import annotations

import asyncio

import pytest

from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import PODS, FakeCluster, Fault, to
from tests.scheduler_plugin.followed_pod import (
    explained,
    following,
    made,
    permit,
    requested,
    sized,
    writes,
)
from tests.scheduler_plugin.objects import Obj, plain_pod


@pytest.fixture
def cluster() -> FakeCluster:
    return made()


@pytest.mark.parametrize("verdict", ["Deferred", "Infeasible"])
async def test_kubelet_refusal_is_reported_and_retried(cluster: FakeCluster, clock: FakeClock, verdict: str) -> None:
    cluster.put(PODS, sized(1, 4, allocated=(1, 4)))
    async with following(cluster, clock) as scheduler:
        asking = asyncio.create_task(scheduler.ask(sized(1, 4), 2, 8))
        await settle()
        refused = sized(2, 8, allocated=(1, 4))
        why = {"type": "PodResizePending", "status": "True", "reason": verdict, "message": "not enough cpu"}
        refused["status"]["conditions"] = [why]
        cluster.put(PODS, refused)
        assert permit(await asking) == (1, 4)
        said = f"the kubelet has not granted the pod's requests: {verdict}: not enough cpu"
        assert (await explained(scheduler))["requestsProblem"] == said
        assert cluster.notices[-1]["message"] == f"asked for 2 cpu, 8Gi, got 1 cpu, 4Gi: {said}"
        await clock.advance(2)
        assert requested(cluster) == {"cpu": "1", "memory": "4Gi"}
        cluster.put(PODS, sized(1, 4, allocated=(1, 4)))
        await settle()
        assert scheduler.reserved("n1") == "1 cpu, 4Gi"
        assert (await explained(scheduler))["requestsProblem"] == (
            f"the pod's requests were not raised: {verdict}: not enough cpu"
        )
        counted = f'autoscale_scheduler_pod_requests_withdrawn_total{{verdict="{verdict}"}} 1.0'
        assert counted in (await scheduler.probe("metrics")).text
        await clock.advance(10)
        asking = asyncio.create_task(scheduler.ask(sized(1, 4), 2, 8))
        await settle()
        cluster.put(PODS, sized(2, 8, allocated=(2, 8)))
        assert permit(await asking) == (2, 8)


async def test_full_quota_withholds_permit(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        cluster.faults.append(Fault(to("PATCH", "/resize"), refuse=403, times=3))
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (1, 4)
        assert scheduler.reserved("n1") == "1 cpu, 4Gi"
        said = "the pod's requests were not raised: 403: refused by a fault"
        assert (await explained(scheduler))["requestsProblem"] == said
        await settle()
        assert cluster.notices[-1]["message"] == f"asked for 2 cpu, 8Gi, got 1 cpu, 4Gi: {said}"
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (1, 4)
        assert writes(cluster).count("resize") == 3
        await clock.advance(5)
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)


async def test_full_memory_quota_allows_cpu(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        resized = to("PATCH", "/resize")
        cluster.faults.append(Fault(lambda call: resized(call) and "8Gi" in str(call.body), refuse=403, times=9))
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 4)
        assert requested(cluster) == {"cpu": "2", "memory": "4Gi"}
        assert scheduler.reserved("n1") == "2 cpu, 4Gi"


async def test_conflicting_pod_is_reread_and_rewritten(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        held = asyncio.Event()
        cluster.faults.append(Fault(to("PATCH", "/resize"), refuse=409, hold=held))
        asking = asyncio.create_task(scheduler.ask(sized(1, 4), 2, 8))
        await settle()
        held.set()
        assert permit(await asking) == (2, 8)
        assert writes(cluster).count("resize") == 2


async def test_waiting_pod_requests_only_rise(cluster: FakeCluster, clock: FakeClock) -> None:
    """The VM needs more CPU and less memory than its pod was made with, and a LimitRange keeps the memory up."""
    cluster.put(PODS, sized(0.1, 8, on=None))
    cluster.put(PODS, plain_pod("other", "9500m", "1Gi", "n1"))
    async with following(cluster, clock) as scheduler:
        resized = to("PATCH", "/resize")
        cluster.faults.append(Fault(lambda call: resized(call) and "4Gi" in str(call.body), refuse=403, times=9))
        assert await scheduler.filter(sized(0.1, 8, on=None), "n1") == []
        await settle()
        assert requested(cluster) == {"cpu": "1", "memory": "8Gi"}


async def test_node_without_resize_grants_as_before(cluster: FakeCluster, clock: FakeClock) -> None:
    why = 'Pod "db-pod" is invalid: spec: Forbidden: Pod running on node without support for resize'
    async with following(cluster, clock) as scheduler:
        cluster.faults.append(Fault(to("PATCH", "/resize"), refuse=422, says=why, times=2))
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)
        said = f"the pod's requests cannot be changed, so permits do not wait for them: 422: {why}"
        assert (await explained(scheduler))["requestsProblem"] == said
        await clock.advance(298)
        assert writes(cluster).count("resize") == 1
        await clock.advance(314)
        assert (writes(cluster).count("resize"), requested(cluster)) == (3, {"cpu": "2", "memory": "8Gi"})


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (422, 'pods "db-pod" is forbidden: ValidatingAdmissionPolicy "p" with binding "p" denied request: is invalid'),
        (400, 'admission webhook "sizes.example" denied the request: pod "db-pod" is invalid: too large'),
        (403, 'pods "db-pod" is forbidden: User "scheduler" cannot patch resource "pods/resize"'),
    ],
)
async def test_any_policy_refusal_is_refusal(cluster: FakeCluster, clock: FakeClock, status: int, why: str) -> None:
    async with following(cluster, clock) as scheduler:
        cluster.faults.append(Fault(to("PATCH", "/resize"), refuse=status, says=why, times=9))
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (1, 4)
        said = f"the pod's requests were not raised: {status}: {why}"
        assert (await explained(scheduler))["requestsProblem"] == said
        cluster.faults.clear()
        await clock.advance(5)
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)


async def test_webhook_changed_requests_are_refused(cluster: FakeCluster, clock: FakeClock) -> None:
    def at_most_three_cpus(pod: Obj) -> None:
        requests = pod["spec"]["containers"][0]["resources"]["requests"]
        requests["cpu"] = min(requests["cpu"], "3")

    cluster.admitted = at_most_three_cpus
    async with following(cluster, clock) as scheduler:
        assert permit(await scheduler.ask(sized(1, 4), 5, 8)) == (3, 8)
        assert (requested(cluster), scheduler.reserved("n1")) == ({"cpu": "3", "memory": "8Gi"}, "3 cpu, 8Gi")
        said = "the pod's requests were not raised: the API server changed them to 3 cpu, 8Gi"
        assert (await explained(scheduler))["requestsProblem"] == said
        cluster.calls.clear()
        for _ in range(2):
            await clock.advance(1)
            assert permit(await scheduler.ask(sized(1, 4), 5, 8)) == (3, 8)
        assert (scheduler.reserved("n1"), writes(cluster).count("resize") <= 6) == ("3 cpu, 8Gi", True)


async def test_overloaded_api_server_is_asked_once(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        cluster.faults.append(Fault(to("PATCH", "/resize"), refuse=429))
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (1, 4)
        assert writes(cluster).count("resize") == 1
        await clock.advance(5)
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)


async def test_refused_decrease_retries_without_blocking(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        assert permit(await scheduler.ask(sized(1, 4), 1, 8, sequence=1)) == (1, 8)
        await clock.advance(60)
        why = "minimum memory usage per Container is 8Gi"
        cluster.faults.append(Fault(to("PATCH", "/resize"), refuse=403, says=why, times=2))
        assert permit(await scheduler.ask(sized(1, 4), 1, 4, sequence=2)) == (1, 4)
        cluster.calls.clear()
        await clock.advance(10)
        assert writes(cluster).count("resize") == 2
        assert (await explained(scheduler))["requestsProblem"] == f"the pod's requests were not lowered: 403: {why}"
        assert permit(await scheduler.ask(sized(1, 4), 2, 4, sequence=3)) == (2, 4)
        await clock.advance(10)
        assert requested(cluster) == {"cpu": "2", "memory": "4Gi"}
        assert (await explained(scheduler))["requestsProblem"] is None
