"""Permits that the API does not store as ordered, or that others put on the object, through the service (S4.5)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from protocol.messages import AgentRequest, ObjectName
from protocol.names import ANNOTATION_PERMIT
from protocol.units import Resources
from scheduler_plugin.ledger.events import PermitRequested
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.granted import POD, granted, settled, with_permit
from tests.scheduler_plugin.objects import Obj, plain_pod, token_of, vm, vm_pod
from tests.scheduler_plugin.running import Running, running

WRITES = to("PATCH", "/virtualmachines/db")
NEIGHBOUR = vm_pod("neighbour", "n1")


@pytest.fixture
def cluster() -> FakeCluster:
    """Two VMs of 1 CPU each on a node of 10."""
    found = granted()
    found.put(VMS, with_permit(vm("neighbour"), "1", "4Gi"))
    found.put(PODS, NEIGHBOUR)
    return found


def drops(obj: Obj) -> None:
    """A webhook that knows no such annotation."""
    obj["metadata"]["annotations"].pop(ANNOTATION_PERMIT, None)


def spoils(obj: Obj) -> None:
    """A webhook that writes what is no permit."""
    obj["metadata"]["annotations"][ANNOTATION_PERMIT] = "{"


def raises(obj: Obj) -> None:
    """A webhook that wants 8 CPUs."""
    obj["metadata"]["annotations"][ANNOTATION_PERMIT] = json.dumps({"vCPUs": 8, "mem": "4Gi"})


def lowers(obj: Obj) -> None:
    """A webhook that allows 3 CPUs."""
    obj["metadata"]["annotations"][ANNOTATION_PERMIT] = json.dumps({"vCPUs": 3, "mem": "4Gi"})


async def asks(scheduler: Running, pod: Obj, cpu: int, sequence: int, last: int | None = None) -> Any:
    """The CPUs that the agent is permitted, or the status and why not."""
    permit = None if last is None else {"vCPUs": last, "mem": 4}
    answer = await scheduler.ask(pod, cpu, 4, sequence=sequence, lastPermit=permit)
    await settle()
    body = answer.json()
    return body["permit"]["vCPUs"] if answer.status_code == 200 else (answer.status_code, body["error"])


@pytest.mark.parametrize(
    ("webhook", "kept"),
    [(drops, "an unreadable value"), (spoils, "an unreadable value"), (lowers, "3 cpu, 4Gi")],
)
async def test_permit_that_a_webhook_changes_is_not_answered(
    cluster: FakeCluster, clock: FakeClock, webhook: Any, kept: str
) -> None:
    async with settled(cluster, clock) as scheduler:
        cluster.webhook = webhook
        why = f"wrote permit 8 cpu, 4Gi, but the API server stored {kept}: a webhook or a policy changed it"
        refused = (503, f"the permit of default/db could not be stored; retry: {why}")
        assert await asks(scheduler, POD, 8, 1, 1) == refused
        explained = (await scheduler.probe("explain/default/db")).json()
        assert explained["pods"][0]["permitProblem"] == why
        await clock.advance(1)
        assert cluster.notices[-1]["message"] == f"the permit 8 cpu, 4Gi could not be stored: {why}"
        metrics = (await scheduler.probe("metrics")).text
        assert 'autoscale_scheduler_permit_writes_total{outcome="altered"} 1.0' in metrics
        cluster.webhook = None
        assert await asks(scheduler, POD, 1, 2, 1) == 1
        await clock.advance(1)
        assert await asks(scheduler, NEIGHBOUR, 6, 1, 1) == 6
    async with running(cluster, clock, identity="successor") as successor:
        assert await asks(successor, NEIGHBOUR, 6, 2, 6) == 6
        assert successor.reserved("n1") in ("7 cpu, 8Gi", "9 cpu, 8Gi")


@pytest.mark.parametrize("status", [400, 403, 422, 429])
async def test_refused_permit_frees_its_room(cluster: FakeCluster, clock: FakeClock, status: int) -> None:
    async with settled(cluster, clock) as scheduler:
        cluster.faults.append(Fault(WRITES, refuse=status, says="no more than 4", times=3))
        for sequence, wish in enumerate((8, 6, 9), start=1):
            refused = f"the permit of default/db could not be stored; retry: {status}: no more than 4"
            assert await asks(scheduler, POD, wish, sequence, 1) == (503, refused)
            assert scheduler.reserved("n1") == "2 cpu, 8Gi"
        assert await asks(scheduler, POD, 1, 4, 1) == 1
        assert await asks(scheduler, POD, 4, 5, 1) == 4
        explained = (await scheduler.probe("explain/default/db")).json()
        assert explained["pods"][0]["permitProblem"] is None


@pytest.mark.parametrize("is_seen", [True, False])
async def test_late_write_of_a_predecessor_is_not_granted(
    cluster: FakeCluster, clock: FakeClock, is_seen: bool
) -> None:
    """It lands after the successor has given its room away, and before or after a third process reads the cluster."""
    async with settled(cluster, clock) as first:
        cluster.faults.append(Fault(WRITES))
        assert (await asks(first, POD, 8, 1, 1))[0] == 503
    (lost,) = cluster.lost
    async with settled(cluster, clock, "second") as second:
        assert await asks(second, NEIGHBOUR, 8, 1, 1) == 8
        if is_seen:
            assert cluster.arrive(lost)
            await settle()
            assert await asks(second, POD, 8, 2, 1) == 2
            assert await asks(second, NEIGHBOUR, 8, 2, 8) == 8
            return
    assert cluster.arrive(lost)
    async with settled(cluster, clock, "third") as third:
        assert await asks(third, POD, 8, 3, 1) == 2
        assert await asks(third, NEIGHBOUR, 8, 3, 8) == 8
        await clock.advance(60)
        assert await asks(third, POD, 8, 4, 2) == 2
        await clock.advance(1)
        assert third.reserved("n1") == "10 cpu, 8Gi"


async def test_decrease_before_increase_stays_ordered(cluster: FakeCluster, clock: FakeClock) -> None:
    """Both arrive in one turn of the event loop, as in one batch; then autoscaling is switched off, and no agent sends
    more requests.
    """
    async with settled(cluster, clock) as scheduler:
        context, uid = scheduler.parts.context, POD["metadata"]["uid"]
        name, now = ObjectName("default", POD["metadata"]["name"]), clock.now()
        raised = context.ledger.apply(
            PermitRequested(uid, AgentRequest(name, Resources.parse("8", "4Gi"), sequence=1)), now
        ).persist
        lowered = context.ledger.apply(
            PermitRequested(uid, AgentRequest(name, Resources.parse("1", "4Gi"), sequence=2)), now
        ).persist
        assert raised is not None
        assert lowered is not None
        context.queues.add((lowered,))
        assert await scheduler.parts.workers.permits.store(raised) == ""
        found = json.loads(json.dumps(cluster.get(VMS, "default", "db")))
        found["metadata"]["labels"]["autoscaling.neon.tech/enabled"] = "false"
        cluster.put(VMS, found)
        await clock.advance(60)
        assert scheduler.reserved("n1") == "2 cpu, 8Gi"


async def test_opt_out_and_in_behind_the_agents_back(cluster: FakeCluster, clock: FakeClock) -> None:
    """Its agent, whose watch is down, still names the permit that was revoked."""
    async with settled(cluster, clock) as scheduler:
        assert await asks(scheduler, POD, 8, 1, 1) == 8
        for enabled in ("false", "true"):
            found = json.loads(json.dumps(cluster.get(VMS, "default", "db")))
            found["metadata"]["labels"]["autoscaling.neon.tech/enabled"] = enabled
            cluster.put(VMS, found)
            await clock.advance(35)
            if enabled == "false":
                assert await asks(scheduler, NEIGHBOUR, 8, 1, 1) == 8
        assert await asks(scheduler, POD, 8, 2, 8) == 2


async def test_take_back_ends_on_opt_in(cluster: FakeCluster, clock: FakeClock) -> None:
    """The write meets a conflict with the edit that opts the VM in."""
    async with settled(cluster, clock) as scheduler:
        assert await asks(scheduler, POD, 8, 1, 1) == 8
        held = asyncio.Event()
        cluster.faults.append(Fault(WRITES, refuse=409, hold=held))
        for enabled in ("false", "true"):
            found = json.loads(json.dumps(cluster.get(VMS, "default", "db")))
            found["metadata"]["labels"]["autoscaling.neon.tech/enabled"] = enabled
            cluster.put(VMS, found)
            await clock.advance(35 if enabled == "false" else 1)
        held.set()
        await clock.advance(1)
        annotations = cluster.get(VMS, "default", "db")["metadata"]["annotations"]
        assert json.loads(annotations[ANNOTATION_PERMIT]) == {"vCPUs": 8, "mem": "4Gi"}
        assert scheduler.reserved("n1") == "9 cpu, 8Gi"
    async with running(cluster, clock, identity="successor") as successor:
        assert successor.reserved("n1") == "9 cpu, 8Gi"


@pytest.mark.parametrize(("webhook", "writes"), [(raises, 11), (spoils, 11), (drops, 1)])
async def test_take_back_that_a_webhook_undoes_is_rare(
    cluster: FakeCluster, clock: FakeClock, webhook: Any, writes: int
) -> None:
    """The room stays reserved, and the API server is spared. Without an annotation nothing is left to take back."""
    async with settled(cluster, clock) as scheduler:
        assert await asks(scheduler, POD, 8, 1, 1) == 8
        before = len(cluster.made("PATCH", "/virtualmachines/db"))
        cluster.webhook = webhook
        found = json.loads(json.dumps(cluster.get(VMS, "default", "db")))
        found["metadata"]["labels"]["autoscaling.neon.tech/enabled"] = "false"
        cluster.put(VMS, found)
        for _ in range(33):
            await clock.advance(10)
        assert 0 < len(cluster.made("PATCH", "/virtualmachines/db")) - before <= writes
        assert scheduler.reserved("n1") == {raises: "9 cpu, 8Gi", spoils: "9 cpu, 20Gi", drops: "2 cpu, 8Gi"}[webhook]


async def test_second_agent_learns_of_first(cluster: FakeCluster, clock: FakeClock) -> None:
    agent = cluster.put(PODS, plain_pod("agent-x", "0", "0", "n1", namespace="kube-system"))
    cluster.tokens["node"] = token_of(agent, node="n1")
    cluster.tokens["node"]["user"]["username"] = "system:serviceaccount:kube-system:autoscaling-agent"
    async with settled(cluster, clock) as scheduler:
        assert await asks(scheduler, POD, 8, 1, 1) == 8
        answer = await scheduler.ask(POD, 2, 4, token="node", sequence=10**9)
        assert (answer.status_code, answer.json()["error"]) == (
            409,
            "the agent in pod default/db-pod manages VM default/db: run one agent per VM, or wait"
            " 45 s in case that one is gone",
        )
        assert scheduler.reserved("n1") == "9 cpu, 8Gi"
