"""A node's agent asks for all its VMs in one message: each is judged as if it had asked alone (S4.5, B.4)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2 as httpx
import pytest

from protocol.units import Instant
from protocol.wire.wire_batches import LONGEST_BATCH, MAX_REQUESTS, OFFER
from scheduler_plugin.ledger.accounts.permit_state import SILENT
from scheduler_plugin.ledger.events import PermitRequested
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.web.agents import BATCH_WAIT
from scheduler_plugin.web.apps import agents_app
from scheduler_plugin.web.hot_paths import HotRequest, HotResponse
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.granted import with_permit
from tests.scheduler_plugin.objects import Obj, node, plain_pod, token_of, token_text, vm, vm_pod
from tests.scheduler_plugin.running import Running, agent_request, running

UNITS = {name: {"vCPUs": "250m", "mem": 1} for name in ("computeUnit", "resourceUnit")}
NODE_AGENT = plain_pod("agent-x", node="n1", namespace="kube-system", uid="pod-agent")


@pytest.fixture
def cluster() -> FakeCluster:
    """Three VMs on ``n1`` and one on ``n2``, each granted 1 vCPU and 4Gi; the agent of ``n1``."""
    found = FakeCluster()
    for name in ("n1", "n2"):
        found.put(NODES, node(name))
    for name, where in (("a", "n1"), ("b", "n1"), ("c", "n1"), ("far", "n2")):
        found.put(VMS, with_permit(vm(name), "1", "4Gi", "pod-agent"))
        found.put(PODS, vm_pod(name, where))
    found.put(PODS, NODE_AGENT)
    found.tokens["node"] = token_of(NODE_AGENT, node="n1")
    found.tokens["node"]["user"]["username"] = "system:serviceaccount:kube-system:autoscaling-agent"
    found.tokens["sidecar"] = token_of(vm_pod("a"))
    return found


def request(cluster: FakeCluster, name: str, cpu: Any, slots: int, **more: Any) -> Any:
    return json.loads(agent_request(cluster, vm_pod(name), cpu, slots, "node", **more)[1])


async def post(scheduler: Running, entries: Any, by: str | None = "node") -> httpx.Response:
    headers = {} if by is None else {"Authorization": f"Bearer {token_text(by)}"}
    content = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    answer = await scheduler.client.post("http://agents/permits", content=content, headers=headers)
    scheduler.check()
    return answer


def permit(cpu: Any, mem: int) -> Obj:
    return {"status": 200, "permit": {"vCPUs": cpu, "mem": mem}, "migrate": None, **UNITS}


def stored(cluster: FakeCluster, name: str) -> Any:
    return json.loads(cluster.get(VMS, "default", name)["metadata"]["annotations"]["autoscaling.neon.tech/permit"])


async def test_batch_answers_match_single_ones(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        entries = [request(cluster, "a", 1, 4), request(cluster, "b", 2, 8), request(cluster, "c", 9, 4)]
        answer = await post(scheduler, entries)
        assert (answer.status_code, answer.json()) == (200, [permit(1, 4), permit(2, 8), permit(6, 4)])
        assert [stored(cluster, name) for name in "abc"] == [
            {"vCPUs": "1", "mem": "4Gi"},
            {"vCPUs": 2, "mem": "8Gi"},
            {"vCPUs": 6, "mem": "4Gi"},
        ]
        metrics = (await scheduler.probe("metrics")).text
        assert 'permits_total{outcome="whole"} 2.0' in metrics
        assert 'permits_total{outcome="partly"} 1.0' in metrics
        assert "autoscale_scheduler_batch_requests_sum 3.0" in metrics


async def test_a_bad_entry_fails_alone_and_says_why(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        twice = b'{"pod":{"namespace":"default","name":"b-pod"},"pod":{"namespace":"default","name":"a-pod"}}'
        entries = [
            json.dumps(request(cluster, "a", 1, 4)).encode(),
            json.dumps(request(cluster, "b", 0, 4)).encode(),
            json.dumps(request(cluster, "ghost", 1, 4)).encode(),
            b"7",
            json.dumps(request(cluster, "b", 1, 4, protoVersion=99)).encode(),
            twice[:-1] + b',"resources":{"vCPUs":1,"mem":4}}',
            json.dumps(request(cluster, "c", 1, 4)).encode(),
        ]
        found = (await post(scheduler, b"[" + b",".join(entries) + b"]")).json()
        assert (found[0], found[-1]) == (permit(1, 4), permit(1, 4))
        assert found[1:-1] == [
            {"status": 400, "error": "resources.vCPUs: expected more than zero"},
            {"status": 404, "error": "pod default/ghost-pod is not known to the scheduler"},
            {"status": 400, "error": "document: expected object, got int"},
            {"status": 400, "error": "protoVersion: expected 0 to 7, got 99"},
            {"status": 400, "error": "'pod': expected once, but the key is repeated in one object"},
        ]
        assert 'agent_refusals_total{status="400"} 4.0' in (await scheduler.probe("metrics")).text


async def test_batch_covers_only_own_node(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        entries = [request(cluster, "far", 8, 16), request(cluster, "a", 1, 4), request(cluster, "agent-x", 1, 4)]
        found = (await post(scheduler, entries)).json()
        account = "kube-system:autoscaling-agent"
        assert found[0] == {"status": 403, "error": f"{account} is not the agent of pod default/far-pod"}
        assert (found[1]["status"], found[2]["status"]) == (200, 404)
        own = (await post(scheduler, [request(cluster, name, 1, 4) for name in "ab"], by="sidecar")).json()
        assert [each["status"] for each in own] == [409, 403]
        await clock.advance(SILENT)
        own = (await post(scheduler, [request(cluster, name, 1, 4) for name in "ab"], by="sidecar")).json()
        assert [each["status"] for each in own] == [200, 403]
        assert (scheduler.reserved("n2"), stored(cluster, "far")) == ("1 cpu, 4Gi", {"vCPUs": "1", "mem": "4Gi"})


@pytest.mark.parametrize(
    ("entries", "by", "refusal"),
    [
        ([], "node", (400, "expected 1 to 128 entries, got 0")),
        ([{}] * (MAX_REQUESTS + 1), "node", (400, "expected 1 to 128 entries, got 129")),
        ({"requests": []}, "node", (400, "document: expected array, got object")),
        (b"[{", "node", (400, "document: input data was truncated")),
        (b" " * (LONGEST_BATCH + 1), "node", (413, "a request has at most 131072 bytes")),
        ([{}], None, (401, "a bearer token of the agent's service account is required")),
        ([{}], "stranger", (401, "a bearer token of the agent's service account is required")),
    ],
)
async def test_bad_or_foreign_batch_is_refused(
    cluster: FakeCluster, clock: FakeClock, entries: Any, by: str | None, refusal: tuple[int, str]
) -> None:
    async with running(cluster, clock) as scheduler:
        answer = await post(scheduler, entries, by)
        assert (answer.status_code, answer.json()["error"]) == refusal
        reviews = len(cluster.made("POST", "/tokenreviews"))
        assert reviews == (1 if by == "stranger" else 0), "its size is judged before its token"


async def test_hanging_write_blocks_only_its_vm(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        held = asyncio.Event()
        cluster.faults.append(Fault(to("PATCH", "/virtualmachines/b"), hold=held))
        entries = [request(cluster, "a", 2, 4), request(cluster, "b", 2, 8, sequence=7), request(cluster, "c", 1, 4)]
        asking = asyncio.create_task(post(scheduler, entries))
        await clock.advance(BATCH_WAIT - 0.01)
        assert not asking.done()
        assert stored(cluster, "a") == {"vCPUs": 2, "mem": "4Gi"}
        again = asyncio.create_task(scheduler.ask(vm_pod("b", "n1"), 2, 8, token="node", sequence=8))
        await clock.advance(0.02)
        assert not again.done(), "it is not answered before it is stored"
        held.set()
        await settle()
        assert (await again).json()["permit"] == {"vCPUs": 2, "mem": 8}
        waiting = {"status": 503, "error": "the permit is still being written; retry", "retryAfter": 0.0}
        assert (await asking).json() == [permit(2, 4), waiting, permit(1, 4)]
        assert stored(cluster, "b") == {"vCPUs": 2, "mem": "8Gi"}
        assert len(cluster.made("PATCH", "/virtualmachines/b")) == 1


async def test_failed_write_affects_one_entry(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        cluster.faults.append(Fault(to("PATCH", "/virtualmachines/b")))
        found = (await post(scheduler, [request(cluster, "b", 2, 8), request(cluster, "c", 2, 8)])).json()
        why = "the permit of default/b could not be stored; retry: lost by a fault"
        lost = {"status": 503, "error": why, "retryAfter": 1.0}
        assert found == [lost, permit(2, 8)]
        assert scheduler.reserved("n1") == "6 cpu, 21Gi", "what may have been written stays reserved"


async def test_internal_error_affects_one_vm(
    cluster: FakeCluster, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = Ledger.apply

    def fails_for_b(ledger: Ledger, event: Any, now: Instant) -> Any:
        if isinstance(event, PermitRequested) and event.uid == "pod-b":
            raise RuntimeError("a fault of ours")
        return apply(ledger, event, now)

    async with running(cluster, clock) as scheduler:
        monkeypatch.setattr(Ledger, "apply", fails_for_b)
        found = (await post(scheduler, [request(cluster, name, 1, 4) for name in "abc"])).json()
        failed = {"status": 500, "error": "internal error; see the scheduler log"}
        assert found == [permit(1, 4), failed, permit(1, 4)]


async def test_batches_are_offered_on_request(cluster: FakeCluster, clock: FakeClock) -> None:
    async with running(cluster, clock) as scheduler:
        headers, content = agent_request(cluster, vm_pod("a"), 1, 4, "node")
        old = await scheduler.client.post("http://agents/", content=content, headers=headers)
        new = await scheduler.client.post("http://agents/", content=content, headers={**headers, OFFER: "1"})
        assert (old.headers.get(OFFER), new.headers[OFFER]) == (None, str(MAX_REQUESTS))
        assert old.content == new.content


async def test_starting_scheduler_offers_batches(cluster: FakeCluster, clock: FakeClock) -> None:
    """All VMs of a node ask it at once, again and again until it has listed the cluster."""
    cluster.go_away()
    async with running(cluster, clock) as scheduler:
        headers, content = agent_request(cluster, vm_pod("a"), 1, 4, "node")
        answer = await scheduler.client.post("http://agents/", content=content, headers={**headers, OFFER: "1"})
        assert (answer.status_code, answer.headers.get(OFFER)) == (503, str(MAX_REQUESTS))
        assert (await post(scheduler, [request(cluster, "a", 1, 4)])).status_code == 503


async def test_batch_for_foreign_vms_does_not_authenticate(cluster: FakeCluster, clock: FakeClock) -> None:
    """Any pod can get a token of its service account with our audience: its batch is answered, but takes no slot."""
    cluster.tokens["other"] = token_of(plain_pod("other", node="n1"))
    async with running(cluster, clock) as scheduler:
        path = agents_app(scheduler.parts.service).paths["/permits"]
        content = json.dumps([request(cluster, "a", 1, 4)]).encode()
        for who, is_agent in (("other", False), ("node", True)):
            found = path.handler(HotRequest(content, f"Bearer {token_text(who)}", "10.0.0.9"))
            answer = found if isinstance(found, HotResponse) else await found
            assert (answer.status, answer.authenticates) == (200, is_agent)
