"""A VM's pod requests what the VM may use before its agent gets the permit (B.10)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from protocol.units import MilliCpu
from scheduler_plugin.settings.document import parse_settings
from scheduler_plugin.web import agents
from scheduler_plugin.web.hot_paths import HotRequest, HotResponse
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.followed_pod import (
    explained,
    following,
    made,
    permit,
    raised_by_us,
    requested,
    sized,
    writes,
)
from tests.scheduler_plugin.granted import with_permit
from tests.scheduler_plugin.objects import plain_pod, vm
from tests.scheduler_plugin.running import SETTINGS, agent_request, running, usual_settings


@pytest.fixture
def cluster() -> FakeCluster:
    return made()


async def test_requests_then_permit_then_answer(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)
        assert [each for each in writes(cluster) if each in {"resize", "db"}] == ["resize", "db"]
        assert requested(cluster) == {"cpu": "2", "memory": "8Gi"}
        assert scheduler.reserved("n1") == "2 cpu, 8Gi"
        why = await explained(scheduler)
        assert (why["requests"], why["requestsSecured"]) == ({"cpu": "2", "mem": "8Gi"}, {"cpu": "2", "mem": "8Gi"})
        assert why["requestsProblem"] is None


async def test_what_is_requested_already_costs_no_call(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        cluster.put(PODS, sized(3, 8))
        await settle()
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)
        assert "resize" not in writes(cluster)


async def test_unchanged_request_needs_no_task(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        assert permit(await scheduler.ask(sized(1, 4), 1, 4)) == (1, 4), "its token is known from now on"
        headers, unchanged = agent_request(cluster, sized(1, 4), 1, 4)
        answer = agents.request(scheduler.parts.service, HotRequest(unchanged, headers["Authorization"]))
        assert isinstance(answer, HotResponse)
        assert answer.status == 200


async def test_permit_waits_for_kubelet_allocation(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(PODS, sized(1, 4, allocated=(1, 4)))
    async with following(cluster, clock) as scheduler:
        asking = asyncio.create_task(scheduler.ask(sized(1, 4), 2, 8))
        await clock.advance(0.5)
        assert (requested(cluster), asking.done()) == ({"cpu": "2", "memory": "8Gi"}, False)
        cluster.put(PODS, sized(2, 8, allocated=(2, 8)))
        assert permit(await asking) == (2, 8)


async def test_slow_kubelet_grants_present_size(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(PODS, sized(1, 4, allocated=(1, 4)))
    async with following(cluster, clock) as scheduler:
        asking = asyncio.create_task(scheduler.ask(sized(1, 4), 2, 8))
        await clock.advance(2)
        assert permit(await asking) == (1, 4)
        assert requested(cluster) == {"cpu": "2", "memory": "8Gi"}
        why = await explained(scheduler)
        assert why["requestsProblem"] == "the kubelet has not applied the pod's requests yet"
        assert why["denied"] == {"cpu": "0", "mem": "0"}
        cluster.put(PODS, sized(2, 8, allocated=(2, 8)))
        await settle()
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)


@pytest.mark.parametrize("landed", [True, False])
async def test_unanswered_write_keeps_room(cluster: FakeCluster, clock: FakeClock, landed: bool) -> None:
    async with following(cluster, clock) as scheduler:
        held = asyncio.Event()
        cluster.faults += [
            Fault(to("PATCH", "/resize"), is_applied=landed),
            Fault(to("GET", "/pods/db-pod"), hold=held),
        ]
        cluster.cut_watches()
        asking = asyncio.create_task(scheduler.ask(sized(1, 4), 2, 8))
        await settle()
        assert (permit(await asking), scheduler.reserved("n1")) == ((1, 4), "2 cpu, 8Gi")
        said = "unknown whether the pod's requests were changed: lost by a fault"
        assert (await explained(scheduler))["requestsProblem"] == said
        await settle()
        assert cluster.notices[-1]["message"] == f"asked for 2 cpu, 8Gi, got 1 cpu, 4Gi: {said}"
        await clock.advance(3)
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)


async def test_requests_fall_after_guest(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        assert permit(await scheduler.ask(sized(1, 4), 2, 8, sequence=1)) == (2, 8)
        await clock.advance(60)
        assert requested(cluster) == {"cpu": "2", "memory": "8Gi"}
        assert permit(await scheduler.ask(sized(1, 4), 1, 4, sequence=2)) == (1, 4)
        await clock.advance(4)
        assert requested(cluster) == {"cpu": "1", "memory": "4Gi"}
        assert scheduler.reserved("n1") == "1 cpu, 4Gi"


async def test_requests_are_raised_before_bind(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(PODS, sized(0.1, 1, on=None))
    async with following(cluster, clock) as scheduler:
        assert await scheduler.bind(sized(0.1, 1, on=None), "n1") == ""
        assert [each for each in writes(cluster) if each in {"resize", "binding"}] == ["resize", "binding"]
        assert requested(cluster) == {"cpu": "1", "memory": "4Gi"}


async def test_vm_starts_before_requests_rise(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(PODS, sized(0.1, 1, on=None))
    async with following(cluster, clock) as scheduler:
        cluster.faults.append(Fault(to("PATCH", "/resize"), refuse=403, times=3))
        assert await scheduler.bind(sized(0.1, 1, on=None), "n1") == ""
        assert requested(cluster) == {"cpu": "100m", "memory": "1Gi"}
        await clock.advance(2)
        assert "autoscale_scheduler_pod_requests_short 1.0" in (await scheduler.probe("metrics")).text
        await clock.advance(6)
        assert requested(cluster) == {"cpu": "1", "memory": "4Gi"}
        assert "autoscale_scheduler_pod_requests_short 0.0" in (await scheduler.probe("metrics")).text


async def test_bind_waits_three_seconds_for_requests(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(PODS, sized(0.1, 1, on=None))
    async with following(cluster, clock) as scheduler:
        cluster.faults.append(Fault(to("PATCH", "/resize"), hold=asyncio.Event()))
        binding = asyncio.create_task(scheduler.bind(sized(0.1, 1, on=None), "n1"))
        await clock.advance(2.9)
        assert not binding.done()
        await clock.advance(0.1)
        assert await binding == ""
        await clock.advance(2)
        assert requested(cluster) == {"cpu": "1", "memory": "4Gi"}


async def test_waiting_pod_requests_vm_need(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(PODS, sized(0.1, 1, on=None))
    cluster.put(PODS, plain_pod("other", "9500m", "1Gi", "n1"))
    async with following(cluster, clock) as scheduler:
        assert await scheduler.filter(sized(0.1, 1, on=None), "n1") == []
        await settle()
        assert requested(cluster) == {"cpu": "1", "memory": "4Gi"}


async def test_api_without_resize_is_reported_once(
    cluster: FakeCluster, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.offers_resize = False
    with caplog.at_level(logging.WARNING, "autoscale.scheduler"):
        async with following(cluster, clock) as scheduler:
            assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)
            await clock.advance(30)
            assert "autoscale_scheduler_pod_requests_followed 0.0" in (await scheduler.probe("metrics")).text
            assert (writes(cluster).count("resize"), (await explained(scheduler))["requests"]) == (0, None)
            assert [each.message for each in caplog.records if "pods/resize" in each.message] == [
                "the API server has no pods/resize; pod requests do not follow their VMs"
            ]
            cluster.offers_resize = True
            await clock.advance(302)
            assert requested(cluster) == {"cpu": "2", "memory": "8Gi"}


async def test_an_api_that_loses_resizes_is_asked_anew(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        cluster.offers_resize = False
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (1, 4)
        await clock.advance(2)
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)


async def test_requests_follow_only_if_set(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        await clock.advance(60)
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)
        await clock.advance(60)
        assert [call.path for call in cluster.calls if call.path == "/api/v1" or "/resize" in call.path] == []


async def test_disabling_stops_request_waits(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        cluster.faults.append(Fault(to("PATCH", "/resize"), refuse=403, times=3))
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (1, 4)
        scheduler.parts.context.feed.apply_settings(usual_settings())
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)


async def test_raises_for_one_agent_are_paced(cluster: FakeCluster, clock: FakeClock) -> None:
    """Requests for a little more each time, all at once: each raised the pod's requests, before its permit waited."""
    async with following(cluster, clock) as scheduler:
        asking = [
            asyncio.create_task(scheduler.ask(sized(1, 4), f"{1001 + step}m", 4, sequence=step)) for step in range(40)
        ]
        await settle()
        assert writes(cluster).count("resize") == 10
        await clock.advance(11)
        assert (writes(cluster).count("resize"), requested(cluster)["cpu"]) == (11, "1040m")
        assert [(await task).status_code for task in asking][-1] == 200


async def test_concurrent_requests_share_kubelet_wait(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(PODS, sized(1, 4, allocated=(1, 4)))
    async with following(cluster, clock) as scheduler:
        asking = [asyncio.create_task(scheduler.ask(sized(1, 4), 2, 8, sequence=each)) for each in (1, 2)]
        await clock.advance(0.5)
        cluster.put(PODS, sized(2, 8, allocated=(1, 4)))
        await settle()
        assert not any(each.done() for each in asking)
        cluster.put(PODS, sized(2, 8, allocated=(2, 8)))
        assert [permit(await each) for each in asking] == [(2, 8), (2, 8)]


async def test_disabling_restores_created_requests(cluster: FakeCluster, clock: FakeClock) -> None:
    made_with = with_permit(vm("db"), "1", "4Gi")
    made_with["spec"]["podResources"] = {"requests": {"cpu": "100m", "memory": "1Gi"}}
    cluster.put(VMS, made_with)
    async with following(cluster, clock) as scheduler:
        cluster.put(PODS, raised_by_us(1, 4))
        await settle()
        scheduler.parts.context.feed.apply_settings(usual_settings())
        await clock.advance(4)
        assert requested(cluster) == {"cpu": "100m", "memory": "1Gi"}
        assert scheduler.reserved("n1") == "1 cpu, 4Gi"


async def test_lost_resize_api_keeps_requests(
    cluster: FakeCluster, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """One of several API servers may be older: by another the requests would go down under running guests."""
    cluster.offers_resize = False
    made_with = with_permit(vm("db"), "1", "4Gi")
    made_with["spec"]["podResources"] = {"requests": {"cpu": "100m", "memory": "1Gi"}}
    cluster.put(VMS, made_with)
    cluster.put(PODS, raised_by_us(1, 4))
    with caplog.at_level(logging.WARNING, "autoscale.scheduler"):
        async with following(cluster, clock):
            await clock.advance(200)
            assert writes(cluster).count("resize") == 0
            assert [each.message for each in caplog.records if "resize" in each.message] == [
                "the API server has no pods/resize; pod requests do not follow their VMs"
            ]
            assert [call.path for call in cluster.calls].count("/api/v1") == 0


async def test_cpu_limit_follows_what_is_reserved(cluster: FakeCluster, clock: FakeClock) -> None:
    """The limit is set soon after the start, raised with the requests before the permit, and lowered with them."""
    settings = parse_settings(SETTINGS + "permits: {asPodRequests: true, asCpuLimits: true}\n")

    def limits() -> object:
        return cluster.get(PODS, "default", "db-pod")["spec"]["containers"][0]["resources"].get("limits")

    async with running(cluster, clock, settings) as scheduler:
        await clock.advance(10)
        assert limits() == {"cpu": "1500m"}
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)
        assert (requested(cluster), limits()) == ({"cpu": "2", "memory": "8Gi"}, {"cpu": "2500m"})
        scheduler.parts.context.feed.apply_settings(parse_settings(SETTINGS))
        await clock.advance(60)
        found = limits()
        assert isinstance(found, dict)
        assert MilliCpu.parse(found["cpu"]) > MilliCpu(2500), "it bars nothing any more"
