"""A restored store whose watches continue as if nothing had happened: only the Lease, renewed every two seconds, shows
it.
"""

from __future__ import annotations

import pytest

from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.objects import node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.replicas.pair import replicas

POD = vm_pod("db", "n1")


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.put(NODES, node("n1"))
    cluster.put(VMS, vm("db"))
    cluster.put(PODS, POD)
    cluster.put(PODS, plain_pod("big", "6", "1Gi", "n1"))
    return cluster


async def test_leader_reads_everything_again_and_keeps_its_promises(cluster: FakeCluster) -> None:
    """Others have written so much that watches resume where they were. A pod is back, and a permit is lost."""
    clock = FakeClock()
    async with replicas(cluster, clock, count=1) as run:
        await clock.advance(60)
        leader = run.leader
        assert leader is not None
        kept = cluster.backup()
        cluster.remove(PODS, "default", "big")
        await clock.advance(4)
        answer = await run.ask(POD, 3, 4, sequence=1)
        assert answer is not None
        assert answer.json()["permit"]["vCPUs"] == 3
        cluster.restore(kept)
        cluster.revision += 100
        await clock.advance(5)
        assert run.leader is leader
        assert leader.replica.context.term.leads
        assert str(leader.replica.context.ledger.nodes["n1"].reserved) == "9 cpu, 5Gi"
        answer = await run.ask(POD, 8, 4, sequence=2)
        assert answer is not None
        assert answer.json()["permit"]["vCPUs"] == 4
