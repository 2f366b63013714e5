"""SIGTERM while requests are in flight: each gets a correct response or is sent to the next leader (B.3).

From the moment at which the Lease is given back the old leader writes nothing more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2 as httpx
import pytest

from protocol.kubernetes.api import ApiCall
from scheduler_plugin.settings.document import parse_settings
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.followed_pod import sized
from tests.scheduler_plugin.granted import POD, granted, with_permit
from tests.scheduler_plugin.objects import Obj, node, plain_pod, vm
from tests.scheduler_plugin.replicas.pair import TERMS, Process, Replicas, replicas
from tests.scheduler_plugin.running import SETTINGS, agent_request

REVIEW, PERMIT, BINDING = to("POST", "/tokenreviews"), to("PATCH", "/virtualmachines/"), to("POST", "/binding")
MOMENTS = range(0, 24, 2)
"""Rounds of the event loop: after the last one all answers have been given."""


@pytest.fixture
async def pair() -> AsyncIterator[Replicas]:
    """Two replicas, a VM of 1 vCPU on a node of 10, and a pod of 2 that waits."""
    clock, cluster = FakeClock(), granted()
    cluster.put(PODS, plain_pod("waits", "2"))
    async with replicas(cluster, clock) as made:
        await clock.advance(60)
        yield made


def grows(run: Replicas, to_process: Process) -> asyncio.Task[httpx.Response]:
    """The VM's agent requests 3 vCPUs."""
    headers, body = agent_request(run.cluster, POD, 3, 4)
    return asyncio.create_task(to_process.client.post("http://agents/", content=body, headers=headers))


def binds(run: Replicas, to_process: Process) -> asyncio.Task[httpx.Response]:
    """kube-scheduler binds the waiting pod."""
    meta = run.cluster.get(PODS, "default", "waits")["metadata"]
    body = {"PodName": "waits", "PodNamespace": "default", "PodUID": meta["uid"], "Node": "n1"}
    return asyncio.create_task(to_process.client.post("http://extender/bind", json=body))


def permitted(cluster: FakeCluster) -> Any:
    annotations = cluster.get(VMS, "default", "db")["metadata"]["annotations"]
    return json.loads(annotations["autoscaling.neon.tech/permit"])["vCPUs"]


def node_of_pod(cluster: FakeCluster) -> Any:
    return cluster.get(PODS, "default", "waits")["spec"].get("nodeName")


def is_sent_elsewhere(answer: httpx.Response) -> bool:
    """True if the client must retry immediately on another connection."""
    headers = answer.headers
    return (answer.status_code, headers.get("Retry-After"), headers.get("Connection")) == (503, "0", "close")


def last_write(process: Process) -> ApiCall:
    return [call for call in process.way.sent if call.method != "GET"][-1]


async def ended_while(run: Replicas, step: Callable[[ApiCall], bool], *, is_done: bool) -> tuple[str, str]:
    """Send SIGTERM to the leader while that call waits for its response. Returns the holders of the Lease before and
    after the response.
    """
    goes_on, leader = asyncio.Event(), run.running[0]
    run.cluster.faults.append(Fault(step, hold=goes_on, is_stale=is_done))
    await settle()
    ending = asyncio.create_task(run.end(leader, Process.terminate))
    await settle()
    before = run.lease()["holderIdentity"]
    goes_on.set()
    await ending
    return before, run.lease()["holderIdentity"]


@pytest.mark.parametrize("is_done", [False, True])
async def test_permit_in_flight_precedes_lease_release(pair: Replicas, is_done: bool) -> None:
    leader, standby = pair.running
    asking = grows(pair, leader)
    assert await ended_while(pair, PERMIT, is_done=is_done) == ("replica-1", "replica-2")
    answer = await asking
    assert (answer.status_code, answer.json()["permit"]["vCPUs"], permitted(pair.cluster)) == (200, 3, 3)
    assert last_write(leader).path == leader.replica._leadership.path
    assert str(standby.replica.context.ledger.nodes["n1"].reserved) == "3 cpu, 4Gi"


@pytest.mark.parametrize("is_done", [False, True])
async def test_binding_in_flight_precedes_lease_release(pair: Replicas, is_done: bool) -> None:
    leader, standby = pair.running
    binding = binds(pair, leader)
    assert await ended_while(pair, BINDING, is_done=is_done) == ("replica-1", "replica-2")
    assert ((await binding).json(), node_of_pod(pair.cluster)) == ({"Error": ""}, "n1")
    assert str(standby.replica.context.ledger.nodes["n1"].reserved) == "3 cpu, 5Gi"


async def test_token_review_ends_with_term(pair: Replicas) -> None:
    leader, standby = pair.running
    asking = grows(pair, leader)
    assert (await ended_while(pair, REVIEW, is_done=False))[0] == "replica-2", "a review is no write: it is not awaited"
    assert is_sent_elsewhere(await asking)
    assert permitted(pair.cluster) == "1"
    assert (await grows(pair, standby)).json()["permit"]["vCPUs"] == 3


async def test_kubelet_wait_ends_with_term() -> None:
    clock, cluster = FakeClock(), FakeCluster()
    cluster.put(NODES, node("n1"))
    cluster.put(VMS, with_permit(vm("db"), "1", "4Gi"))
    cluster.put(PODS, kubelet_says(1, 4))
    settings = parse_settings(SETTINGS + "permits: {asPodRequests: true}\n")
    async with replicas(cluster, clock, settings=settings) as pair:
        await clock.advance(60)
        leader, standby = pair.running
        asking = grows(pair, leader)
        await settle()
        assert not asking.done()
        began = clock.now()
        await pair.end(leader, Process.terminate)
        answer = await asking
        assert is_sent_elsewhere(answer) or answer.json()["permit"]["vCPUs"] == 1
        assert clock.now() - began < 0.2
        cluster.put(PODS, kubelet_says(3, 4))
        await settle()
        assert (await grows(pair, standby)).json()["permit"]["vCPUs"] == 3


def kubelet_says(cpu: float, slots: int) -> Obj:
    return sized(cpu, slots, allocated=(cpu, slots))


async def test_shutdown_answers_stored_or_redirects() -> None:
    outcomes = set[int]()
    for rounds in MOMENTS:
        clock, cluster = FakeClock(), granted()
        cluster.put(PODS, plain_pod("waits", "2"))
        async with replicas(cluster, clock) as pair:
            await clock.advance(TERMS.duration)
            leader, standby = pair.running
            asking, binding = grows(pair, leader), binds(pair, leader)
            for _ in range(rounds):
                await asyncio.sleep(0)
            await pair.end(leader, Process.terminate)
            answer, bound = await asking, (await binding).json()
            assert answer.status_code == 200 or is_sent_elsewhere(answer), (rounds, answer.text)
            assert last_write(leader).path == leader.replica._leadership.path
            assert pair.served is standby
            assert (bound, node_of_pod(cluster)) == ({"Error": ""}, "n1"), (
                "a binding is sent as soon as it is asked for"
            )
            assert answer.status_code == 503 or permitted(cluster) == 3
            outcomes.add(answer.status_code)
            again, bound_again = await grows(pair, standby), await binds(pair, standby)
            assert (again.json()["permit"]["vCPUs"], bound_again.json()) == (3, {"Error": ""})
            assert str(standby.replica.context.ledger.nodes["n1"].reserved) == "5 cpu, 5Gi"
    assert outcomes == {200, 503}
