"""What a VM may use is requested by its pod, before its agent hears of it (B.10)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.granted import with_permit
from tests.scheduler_plugin.objects import Obj, node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.running import Running, following_settings, running, usual_settings


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.put(NODES, node("n1"))
    made.put(VMS, with_permit(vm("db"), "1", "4Gi"))
    made.put(PODS, sized(1, 4))
    return made


def sized(cpu: float, slots: int, on: str | None = "n1", allocated: tuple[float, int] | None = None) -> Obj:
    """The pod of the VM, which requests so much; ``allocated`` is what its kubelet says."""
    pod = vm_pod("db", on)
    pod["spec"]["containers"][0]["resources"]["requests"] = amounts(cpu, slots)
    held = [] if allocated is None else [{"name": "neonvm-runner", "allocatedResources": amounts(*allocated)}]
    pod["status"] = {"phase": "Running", "qosClass": "Burstable", "containerStatuses": held}
    return pod


def amounts(cpu: float, slots: int) -> Obj:
    return {"cpu": f"{round(cpu * 1000)}m", "memory": f"{slots}Gi"}


@asynccontextmanager
async def following(cluster: FakeCluster, clock: FakeClock) -> AsyncIterator[Running]:
    async with running(cluster, clock, following_settings()) as scheduler:
        await clock.advance(60)
        cluster.calls.clear()
        yield scheduler


def requested(cluster: FakeCluster) -> Any:
    return cluster.get(PODS, "default", "db-pod")["spec"]["containers"][0]["resources"]["requests"]


def permit(answer: httpx.Response) -> tuple[Any, Any]:
    assert answer.status_code == 200, answer.text
    return answer.json()["permit"]["vCPUs"], answer.json()["permit"]["mem"]


async def explained(scheduler: Running) -> Any:
    return (await scheduler.probe("explain/default/db")).json()["pods"][0]


def writes(cluster: FakeCluster) -> list[str]:
    return [call.path.rpartition("/")[2] for call in cluster.calls if call.method in {"PATCH", "POST"}]


async def test_requests_are_raised_then_the_permit_is_stored_then_the_agent_is_answered(
    cluster: FakeCluster, clock: FakeClock
) -> None:
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


async def test_an_agent_waits_until_the_kubelet_has_set_aside_what_it_asks_for(
    cluster: FakeCluster, clock: FakeClock
) -> None:
    cluster.put(PODS, sized(1, 4, allocated=(1, 4)))
    async with following(cluster, clock) as scheduler:
        asking = asyncio.create_task(scheduler.ask(sized(1, 4), 2, 8))
        await clock.advance(0.5)
        assert (requested(cluster), asking.done()) == ({"cpu": "2", "memory": "8Gi"}, False)
        cluster.put(PODS, sized(2, 8, allocated=(2, 8)))
        assert permit(await asking) == (2, 8)


async def test_an_agent_whose_kubelet_is_slow_is_permitted_what_it_has_and_asks_again(
    cluster: FakeCluster, clock: FakeClock
) -> None:
    cluster.put(PODS, sized(1, 4, allocated=(1, 4)))
    async with following(cluster, clock) as scheduler:
        asking = asyncio.create_task(scheduler.ask(sized(1, 4), 2, 8))
        await clock.advance(2)
        assert permit(await asking) == (1, 4)
        assert requested(cluster) == {"cpu": "2", "memory": "8Gi"}
        why = await explained(scheduler)
        assert why["requestsProblem"] == "the kubelet has not set aside yet what the pod requests"
        assert why["denied"] == {"cpu": "0", "mem": "0"}
        cluster.put(PODS, sized(2, 8, allocated=(2, 8)))
        await settle()
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)


@pytest.mark.parametrize("verdict", ["Deferred", "Infeasible"])
async def test_what_the_kubelet_refuses_is_explained_told_counted_withdrawn_and_tried_again(
    cluster: FakeCluster, clock: FakeClock, verdict: str
) -> None:
    cluster.put(PODS, sized(1, 4, allocated=(1, 4)))
    async with following(cluster, clock) as scheduler:
        asking = asyncio.create_task(scheduler.ask(sized(1, 4), 2, 8))
        await settle()
        refused = sized(2, 8, allocated=(1, 4))
        why = {"type": "PodResizePending", "status": "True", "reason": verdict, "message": "not enough cpu"}
        refused["status"]["conditions"] = [why]
        cluster.put(PODS, refused)
        assert permit(await asking) == (1, 4)
        said = f"the kubelet does not give what the pod requests: {verdict}: not enough cpu"
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


async def test_a_quota_that_is_full_holds_the_permit_back_and_says_so(cluster: FakeCluster, clock: FakeClock) -> None:
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


async def test_a_quota_of_memory_that_is_full_keeps_back_no_cpu(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        resized = to("PATCH", "/resize")
        cluster.faults.append(Fault(lambda call: resized(call) and "8Gi" in str(call.body), refuse=403, times=9))
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 4)
        assert requested(cluster) == {"cpu": "2", "memory": "4Gi"}
        assert scheduler.reserved("n1") == "2 cpu, 4Gi"


async def test_a_pod_that_changed_meanwhile_is_read_and_written_again(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        held = asyncio.Event()
        cluster.faults.append(Fault(to("PATCH", "/resize"), refuse=409, hold=held))
        asking = asyncio.create_task(scheduler.ask(sized(1, 4), 2, 8))
        await settle()
        held.set()
        assert permit(await asking) == (2, 8)
        assert writes(cluster).count("resize") == 2


@pytest.mark.parametrize("landed", [True, False])
async def test_a_write_without_an_answer_permits_nothing_and_keeps_its_room(
    cluster: FakeCluster, clock: FakeClock, landed: bool
) -> None:
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
        said = "it is not known whether the pod's requests were changed: lost by a fault"
        assert (await explained(scheduler))["requestsProblem"] == said
        await settle()
        assert cluster.notices[-1]["message"] == f"asked for 2 cpu, 8Gi, got 1 cpu, 4Gi: {said}"
        await clock.advance(3)
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)


async def test_requests_come_down_when_the_guest_has_given_back(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        assert permit(await scheduler.ask(sized(1, 4), 2, 8, sequence=1)) == (2, 8)
        await clock.advance(60)
        assert requested(cluster) == {"cpu": "2", "memory": "8Gi"}
        assert permit(await scheduler.ask(sized(1, 4), 1, 4, sequence=2)) == (1, 4)
        await clock.advance(4)
        assert requested(cluster) == {"cpu": "1", "memory": "4Gi"}
        assert scheduler.reserved("n1") == "1 cpu, 4Gi"


async def test_a_pod_requests_what_its_vm_needs_before_it_is_bound(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(PODS, sized(0.1, 1, on=None))
    async with following(cluster, clock) as scheduler:
        assert await scheduler.bind(sized(0.1, 1, on=None), "n1") == ""
        assert [each for each in writes(cluster) if each in {"resize", "binding"}] == ["resize", "binding"]
        assert requested(cluster) == {"cpu": "1", "memory": "4Gi"}


async def test_a_vm_starts_though_its_requests_cannot_be_raised_and_they_are_later(
    cluster: FakeCluster, clock: FakeClock
) -> None:
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


async def test_a_bind_waits_for_requests_no_longer_than_three_seconds(cluster: FakeCluster, clock: FakeClock) -> None:
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


async def test_a_pod_that_waits_for_room_requests_what_its_vm_needs(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(PODS, sized(0.1, 1, on=None))
    cluster.put(PODS, plain_pod("other", "9500m", "1Gi", "n1"))
    async with following(cluster, clock) as scheduler:
        assert await scheduler.filter(sized(0.1, 1, on=None), "n1") == []
        await settle()
        assert requested(cluster) == {"cpu": "1", "memory": "4Gi"}


async def test_an_api_without_resizes_works_as_ever_and_is_mentioned_once(
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
                "the API server has no pods/resize: requests of pods do not follow their VMs"
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


async def test_a_pod_whose_node_cannot_resize_is_permitted_as_ever(cluster: FakeCluster, clock: FakeClock) -> None:
    why = 'Pod "db-pod" is invalid: spec: Forbidden: Pod running on node without support for resize'
    async with following(cluster, clock) as scheduler:
        cluster.faults.append(Fault(to("PATCH", "/resize"), refuse=422, says=why, times=2))
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)
        said = f"the pod's requests cannot be changed, and permits do not wait for them: 422: {why}"
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
async def test_what_a_policy_refuses_is_not_permitted_whatever_status_it_answers_with(
    cluster: FakeCluster, clock: FakeClock, status: int, why: str
) -> None:
    async with following(cluster, clock) as scheduler:
        cluster.faults.append(Fault(to("PATCH", "/resize"), refuse=status, says=why, times=9))
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (1, 4)
        said = f"the pod's requests were not raised: {status}: {why}"
        assert (await explained(scheduler))["requestsProblem"] == said
        cluster.faults.clear()
        await clock.advance(5)
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)


async def test_requests_that_a_webhook_changes_count_as_refused_and_hold_no_room(
    cluster: FakeCluster, clock: FakeClock
) -> None:
    def at_most_three_cpus(pod: Obj) -> None:
        requests = pod["spec"]["containers"][0]["resources"]["requests"]
        requests["cpu"] = min(requests["cpu"], "3")

    cluster.admitted = at_most_three_cpus
    async with following(cluster, clock) as scheduler:
        assert permit(await scheduler.ask(sized(1, 4), 5, 8)) == (3, 8)
        assert (requested(cluster), scheduler.reserved("n1")) == ({"cpu": "3", "memory": "8Gi"}, "3 cpu, 8Gi")
        said = "the pod's requests were not raised: the API server has made them 3 cpu, 8Gi"
        assert (await explained(scheduler))["requestsProblem"] == said
        cluster.calls.clear()
        for _ in range(2):
            await clock.advance(1)
            assert permit(await scheduler.ask(sized(1, 4), 5, 8)) == (3, 8)
        assert (scheduler.reserved("n1"), writes(cluster).count("resize") <= 6) == ("3 cpu, 8Gi", True)


async def test_an_api_server_that_is_asked_too_much_is_asked_once(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        cluster.faults.append(Fault(to("PATCH", "/resize"), refuse=429))
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (1, 4)
        assert writes(cluster).count("resize") == 1
        await clock.advance(5)
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)


async def test_a_refused_lowering_is_tried_again_after_a_pause_and_keeps_back_no_growth(
    cluster: FakeCluster, clock: FakeClock
) -> None:
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


async def test_where_the_settings_do_not_say_so_no_request_is_written(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        await clock.advance(60)
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)
        await clock.advance(60)
        assert [call.path for call in cluster.calls if call.path == "/api/v1" or "/resize" in call.path] == []


async def test_switched_off_permits_wait_for_requests_no_more_at_once(cluster: FakeCluster, clock: FakeClock) -> None:
    async with following(cluster, clock) as scheduler:
        cluster.faults.append(Fault(to("PATCH", "/resize"), refuse=403, times=3))
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (1, 4)
        scheduler.parts.context.feed.use(usual_settings())
        assert permit(await scheduler.ask(sized(1, 4), 2, 8)) == (2, 8)


async def test_two_requests_of_one_pod_at_once_both_hear_from_the_kubelet(
    cluster: FakeCluster, clock: FakeClock
) -> None:
    cluster.put(PODS, sized(1, 4, allocated=(1, 4)))
    async with following(cluster, clock) as scheduler:
        asking = [asyncio.create_task(scheduler.ask(sized(1, 4), 2, 8, sequence=each)) for each in (1, 2)]
        await clock.advance(0.5)
        cluster.put(PODS, sized(2, 8, allocated=(1, 4)))
        await settle()
        assert not any(each.done() for each in asking)
        cluster.put(PODS, sized(2, 8, allocated=(2, 8)))
        assert [permit(await each) for each in asking] == [(2, 8), (2, 8)]


def raised_by_us(cpu: float, slots: int) -> Obj:
    """The pod of the VM, whose requests a scheduler of ours has raised to so much."""
    raised: Obj = {"f:resources": {"f:requests": {"f:cpu": {}, "f:memory": {}}}}
    fields = {"f:spec": {"f:containers": {'k:{"name":"neonvm-runner"}': raised}}}
    pod = sized(cpu, slots)
    entry = {"manager": "autoscale-scheduler", "subresource": "resize", "fieldsV1": fields}
    pod["metadata"]["managedFields"] = [entry]
    return pod


async def test_switched_off_what_was_raised_goes_back_to_what_the_pod_was_made_with(
    cluster: FakeCluster, clock: FakeClock
) -> None:
    made_with = with_permit(vm("db"), "1", "4Gi")
    made_with["spec"]["podResources"] = {"requests": {"cpu": "100m", "memory": "1Gi"}}
    cluster.put(VMS, made_with)
    async with following(cluster, clock) as scheduler:
        cluster.put(PODS, raised_by_us(1, 4))
        await settle()
        scheduler.parts.context.feed.use(usual_settings())
        await clock.advance(4)
        assert requested(cluster) == {"cpu": "100m", "memory": "1Gi"}
        assert scheduler.reserved("n1") == "1 cpu, 4Gi"


async def test_where_the_api_has_lost_resizes_what_was_raised_stays(
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
                "the API server has no pods/resize: requests of pods do not follow their VMs"
            ]
            assert [call.path for call in cluster.calls].count("/api/v1") == 0
