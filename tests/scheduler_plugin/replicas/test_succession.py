"""One of two replicas acts; the other takes over after any end of the first (B.3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from protocol.kubernetes.api import ApiCall
from protocol.messages import ObjectName
from protocol.units import Seconds
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, SLICES, VMS, Fault, to
from tests.scheduler_plugin.granted import POD, granted
from tests.scheduler_plugin.objects import node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.replicas.pair import SLICE, TERMS, Process, Replicas, replicas
from tests.scheduler_plugin.replicas.stopped_process import Fate, as_usual
from tests.scheduler_plugin.running import agent_request

PERMITS = to("PATCH", "/virtualmachines/")
BINDINGS = to("POST", "/binding")


@pytest.fixture
async def pair() -> AsyncIterator[Replicas]:
    """One node of 10 vCPUs, with a VM of 1 vCPU and 4 slots, and two replicas that have run for a minute."""
    clock = FakeClock()
    async with replicas(granted(), clock) as made:
        await clock.advance(60)
        yield made


def persisted(run: Replicas) -> Any:
    return json.loads(run.cluster.get(VMS, "default", "db")["metadata"]["annotations"]["autoscaling.neon.tech/permit"])


async def grows(run: Replicas, cpu: int) -> bool:
    """True if the VM is permitted this many vCPUs now."""
    answer = await run.ask(POD, cpu, 4)
    return answer is not None and answer.status_code == 200 and answer.json()["permit"]["vCPUs"] == cpu


async def until_grown(run: Replicas, cpu: int) -> float:
    """Seconds until the VM was permitted this many vCPUs, with an agent that repeats its request."""
    began = run.clock.now()
    while not await grows(run, cpu):
        await run.clock.advance(0.1)
    return run.clock.now() - began


async def test_standby_reads_and_names_leader(pair: Replicas) -> None:
    leader, standby = pair.running
    assert (pair.leader, pair.served) == (leader, leader)
    assert (await standby.client.get("http://probes/readyz")).text == "ok, not the leader; leader is replica-1\n"
    nodes = (await standby.client.get("http://probes/nodes")).json()
    assert (nodes["ready"], nodes["leading"], nodes["leader"]) == (True, False, "replica-1")
    assert nodes["nodes"][0]["reserved"] == {"cpu": "1", "mem": "4Gi"}
    why = (await standby.client.get("http://probes/explain/default/db")).json()
    assert (why["leading"], why["leader"], why["pods"][0]["reserved"]["cpu"]) == (False, "replica-1", "1")
    assert {call.method for call in standby.way.sent} == {"GET"}


@pytest.mark.parametrize("url", ["agents/", "extender/filter", "extender/bind", "extender/prioritize"])
async def test_a_standby_sends_its_clients_to_the_leader(pair: Replicas, url: str) -> None:
    answer = await pair.running[1].client.post(f"http://{url}", content=b"{}")
    assert (answer.status_code, answer.json()) == (503, {"error": "not the leader; leader is replica-1"})
    assert (answer.headers["Retry-After"], answer.headers["Connection"]) == ("0", "close")


async def test_growth_resumes_after_sigterm(
    pair: Replicas,
) -> None:
    leader, standby = pair.running
    await pair.end(leader, Process.terminate)
    assert pair.lease()["holderIdentity"] == "replica-2"
    assert await until_grown(pair, 3) == 0
    assert (pair.leader, pair.served) == (standby, standby)


async def test_standby_polls_without_watch(
    pair: Replicas,
) -> None:
    leader, standby = pair.running
    standby.way.is_deaf = True
    await pair.end(leader, Process.terminate)
    assert pair.lease()["holderIdentity"] == ""
    assert await until_grown(pair, 3) < 2
    assert (pair.leader, pair.served) == (standby, standby)


async def test_shutdown_redirects_before_lease_release(pair: Replicas) -> None:
    leader, _ = pair.running
    await leader.replica.retire()
    answer = await leader.client.post("http://agents/", content=b"{}")
    assert (answer.status_code, answer.json()) == (503, {"error": "not the leader; leader is unknown"})
    assert (answer.headers["Retry-After"], pair.lease()["holderIdentity"]) == ("0", "replica-1")


async def test_late_request_is_redirected(pair: Replicas) -> None:
    leader, _ = pair.running
    reviewed = asyncio.Event()
    pair.cluster.faults.append(Fault(to("POST", "/tokenreviews"), hold=reviewed))
    headers, body = agent_request(pair.cluster, POD, 5, 4)
    asking = asyncio.create_task(leader.client.post("http://agents/", content=body, headers=headers))
    await settle()
    await leader.replica.retire()
    reviewed.set()
    answer = await asking
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "0")


async def test_growth_resumes_after_sigkill(pair: Replicas) -> None:
    leader, standby = pair.running
    await pair.end(leader, Process.kill)
    assert await until_grown(pair, 3) < 12
    assert pair.served is standby


@pytest.mark.parametrize("harm", ["stopped", "cut off"])
async def test_stopped_or_isolated_leader_is_succeeded(pair: Replicas, harm: str) -> None:
    leader, standby = pair.running
    if harm == "stopped":
        leader.stop()
    else:
        leader.way.is_cut = True
    assert await until_grown(pair, 3) < 15
    assert (pair.leader, pair.served) == (standby, standby)
    leader.resume()
    leader.way.is_cut = False
    pair.cluster.cut_watches()
    await pair.clock.advance(30)
    assert (leader.leads, leader.replica.leadership().leader) == (False, "replica-2")
    assert leader.replica.context.ledger.nodes["n1"].reserved == standby.replica.context.ledger.nodes["n1"].reserved


async def test_waking_old_leader_sends_nothing(pair: Replicas) -> None:
    """It is stopped between the decision to write and the write, where a check alone would not help."""
    leader, standby = pair.running
    leader.stop()
    asking = asyncio.create_task(leader.client.post("http://agents/", content=b"{}"))
    growing = asyncio.create_task(leader.replica.active().bind(*_bound(pair)))
    await pair.clock.advance(20)
    assert standby.leads
    written = len(leader.way.sent)
    leader.resume()
    await pair.clock.advance(5)
    assert "not sent" in await growing
    assert not [call for call in leader.way.sent[written:] if call.method != "GET"]
    assert (await asking).status_code in (401, 503)


def _bound(run: Replicas) -> tuple[Any, str, str]:
    pod = run.cluster.put(PODS, plain_pod("waits"))
    return ObjectName("default", "waits"), pod["metadata"]["uid"], "n1"


async def test_next_leader_knows_before_granting(pair: Replicas) -> None:
    """The standby's watches lag, so its view of the cluster is old. Its new list is current."""
    leader, standby = pair.running
    standby.way.is_deaf = True
    neighbour = pair.cluster.put(VMS, vm("other", 1, 1))
    other = pair.cluster.put(PODS, vm_pod("other"))
    await settle()
    body = {"PodName": "other-pod", "PodNamespace": "default", "PodUID": other["metadata"]["uid"], "Node": "n1"}
    assert (await leader.client.post("http://extender/bind", json=body)).json() == {"Error": ""}
    asked = pair.cluster.get(PODS, "default", "other-pod")
    granted_other = await pair.ask(asked, 6, 1)
    assert granted_other is not None
    assert granted_other.json()["permit"]["vCPUs"] == 6
    await pair.end(leader, Process.kill)
    answer = None
    while answer is None or answer.status_code != 200:
        await pair.clock.advance(0.5)
        answer = await pair.ask(POD, 8, 4)
    assert answer.json()["permit"]["vCPUs"] == 4, "the node has 10, and 6 are the neighbour's"
    assert neighbour["metadata"]["name"] == "other"


async def test_unanswered_permit_counts(pair: Replicas) -> None:
    leader, _ = pair.running
    leader.way.fate = lambda call: Fate(is_answered=not PERMITS(call))
    answer = await pair.ask(POD, 5, 4)
    assert answer is not None
    assert (answer.status_code, persisted(pair)["vCPUs"]) == (503, 5)
    await pair.end(leader, Process.kill)
    await until_grown(pair, 2)
    assert pair.leader is not None
    assert str(pair.leader.replica.context.ledger.nodes["n1"].reserved) == "5 cpu, 4Gi"


async def test_permit_confirmed_after_term_is_withheld(pair: Replicas) -> None:
    """The leader is stopped between the write and its response, and resumes when another leads."""
    leader, standby = pair.running

    def stops(call: ApiCall) -> Fate:
        if PERMITS(call):
            leader.stop()
        return Fate()

    leader.way.fate = stops
    headers, body = agent_request(pair.cluster, POD, 5, 4)
    asking = asyncio.create_task(leader.client.post("http://agents/", content=body, headers=headers))
    await pair.clock.advance(20)
    assert (standby.leads, persisted(pair)["vCPUs"], asking.done()) == (True, 5, False)
    leader.resume()
    await pair.clock.advance(1)
    answer = await asking
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "0")


async def test_pending_write_lets_lease_expire(pair: Replicas) -> None:
    leader, _ = pair.running
    leader.way.fate = lambda call: Fate(late=Seconds(8.0)) if PERMITS(call) else Fate()
    assert await pair.ask(POD, 5, 4) is not None
    await pair.end(leader, Process.terminate)
    assert pair.lease()["holderIdentity"] == "replica-1"
    assert 5 < await until_grown(pair, 2) < 12


async def test_late_write_conflicts_with_new_leader(pair: Replicas) -> None:
    leader, standby = pair.running
    leader.way.fate = lambda call: Fate(late=Seconds(60.0)) if PERMITS(call) else Fate()
    await pair.ask(POD, 8, 4)
    await pair.end(leader, Process.kill)
    await until_grown(pair, 3)
    assert persisted(pair) == {"vCPUs": 3, "mem": "4Gi"}
    await pair.clock.advance(60)
    assert persisted(pair) == {"vCPUs": 3, "mem": "4Gi"}
    assert str(standby.replica.context.ledger.nodes["n1"].reserved) == "3 cpu, 4Gi"


async def test_late_binding_of_old_leader_counts(pair: Replicas) -> None:
    leader, standby = pair.running
    pair.cluster.put(NODES, node("n2"))
    pod = pair.cluster.put(PODS, plain_pod("late", "6"))
    leader.way.fate = lambda call: Fate(late=Seconds(60.0)) if BINDINGS(call) else Fate()
    body = {"PodName": "late", "PodNamespace": "default", "PodUID": pod["metadata"]["uid"], "Node": "n1"}
    binding = asyncio.create_task(leader.client.post("http://extender/bind", json=body))
    await pair.clock.advance(4)
    assert "bind timed out" in (await binding).json()["Error"]
    await pair.end(leader, Process.kill)
    await until_grown(pair, 3)
    again = await standby.client.post("http://extender/bind", json={**body, "Node": "n2"})
    assert again.json() == {"Error": ""}
    await pair.clock.advance(60)
    assert pair.cluster.get(PODS, "default", "late")["spec"]["nodeName"] == "n2"
    assert str(standby.replica.context.ledger.nodes["n2"].reserved) == "6 cpu, 1Gi"


async def test_reset_slice_is_written_again(pair: Replicas) -> None:
    found = pair.cluster.get(SLICES, SLICE.namespace, SLICE.name)
    pair.cluster.put(SLICES, {**found, "endpoints": []})
    await pair.clock.advance(6)
    assert pair.served is pair.running[0]


async def test_regained_lease_starts_new_term(pair: Replicas) -> None:
    leader, standby = pair.running
    first = leader.replica.context.ledger
    await pair.end(standby, Process.terminate)
    leader.way.is_cut = True
    await pair.clock.advance(20)
    assert pair.leader is None
    leader.way.is_cut = False
    pair.cluster.cut_watches()
    assert await until_grown(pair, 3) < 10
    assert leader.replica.context.ledger is not first
    page = (await leader.client.get("http://probes/metrics")).text
    assert "autoscale_scheduler_leading 1.0" in page
    assert "autoscale_scheduler_lease_held 1.0" in page
    assert "autoscale_scheduler_terms_total 2.0" in page


async def test_refused_slice_write_is_retried(pair: Replicas) -> None:
    leader, standby = pair.running
    pair.cluster.faults.append(Fault(to("PATCH", "/endpointslices/"), refuse=409, times=3))
    await pair.end(leader, Process.terminate)
    await pair.clock.advance(3)
    assert pair.served is standby


async def test_crash_releases_lease_like_shutdown(pair: Replicas) -> None:
    leader, _ = pair.running
    leader.way.fate = lambda call: Fate(late=Seconds(8.0)) if PERMITS(call) else Fate()
    assert await pair.ask(POD, 5, 4) is not None

    def fails(call: ApiCall) -> Fate:
        leader.way.fate = as_usual
        raise RuntimeError("a fault of the program")

    leader.way.fate = fails
    pair.running.remove(leader)
    pair.ended.append(leader.way)
    while not leader.task.done():
        await pair.clock.advance(0.1)
    assert isinstance(leader.task.exception(), ExceptionGroup)
    assert pair.lease()["holderIdentity"] == "replica-1"


async def test_unknown_write_is_remembered_across_terms(pair: Replicas) -> None:
    leader, standby = pair.running
    await pair.end(standby, Process.terminate)
    leader.way.fate = lambda call: Fate(late=None) if call.method == "PATCH" else Fate()
    assert await pair.ask(POD, 5, 4) is not None
    while pair.leader:
        await pair.clock.advance(0.1)
    leader.way.fate = as_usual
    while not pair.leader:
        await pair.clock.advance(0.1)
    await pair.end(leader, Process.terminate)
    assert pair.lease()["holderIdentity"] == "replica-1"


async def test_new_term_lists_after_spare_time(pair: Replicas) -> None:
    """Writes from the end of its last term may still arrive within the hold-back time, as with any other leader."""
    leader, standby = pair.running
    await pair.end(standby, Process.terminate)
    leader.way.fate = lambda call: Fate(late=None) if call.method == "PATCH" else Fate()
    while pair.leader:
        await pair.clock.advance(0.1)
    leader.way.fate = as_usual
    before = pair.lease()["renewTime"]
    while pair.lease()["renewTime"] == before:
        await pair.clock.advance(0.01)
    won = pair.clock.now()
    while not pair.leader:
        await pair.clock.advance(0.01)
    assert pair.clock.now() - won == pytest.approx(TERMS.spare, abs=0.02)
