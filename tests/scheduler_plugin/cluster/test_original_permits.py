"""Grants of the original's scheduler stay reserved when ours takes over: agents use them without asking (B.11)."""

from __future__ import annotations

import pytest

from protocol.units import ZERO, Resources
from scheduler_plugin.cluster.virtual_machines import read_vm, vm_facts
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.objects import Obj, node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.running import running

APPROVED = "internal.autoscaling.neon.tech/resources-approved"


def granted(text: str, **labels: str) -> Obj:
    """A VM of 2 CPUs and 4Gi, 8 and 16Gi at most, whose agent was granted ``text``."""
    found = vm("db", 2, 4)
    found["metadata"]["annotations"] = {APPROVED: text}
    found["metadata"]["labels"] |= labels
    return found


@pytest.mark.parametrize(
    ("found", "counted"),
    [
        (granted('{"vCPUs":"6500m","mem":"4Gi"}'), Resources.parse("6500m", "4Gi")),
        (granted('{"vCPUs":1,"mem":"1Gi"}'), Resources.parse(1, "1Gi")),
        (granted('{"vCPUs":64,"mem":"900Gi"}'), Resources.parse(8, "16Gi")),
        (granted("garbage"), Resources.parse(8, "16Gi")),
        (granted('{"vCPUs":8,"mem":"16Gi"}', **{"autoscaling.neon.tech/enabled": "false"}), ZERO),
        (vm("db", 2, 4), ZERO),
    ],
)
def test_unreadable_vm_counts_within_maximum(found: Obj, counted: Resources) -> None:
    facts = vm_facts(read_vm(found))
    assert (facts.granted, facts.use) == (counted, Resources.parse(2, "4Gi"))


async def test_room_is_freed_after_take_back() -> None:
    cluster = FakeCluster()
    cluster.put(NODES, node("n1", "10"))
    cluster.put(VMS, granted('{"vCPUs":8,"mem":"16Gi"}'))
    cluster.put(PODS, vm_pod("db", "n1"))
    clock = FakeClock()
    async with running(cluster, clock) as scheduler:
        assert scheduler.reserved("n1") == "8 cpu, 16Gi"
        (pod,) = (await scheduler.probe("explain/default/db")).json()["pods"]
        because = "granted by the original's scheduler: annotation internal.autoscaling.neon.tech/resources-approved"
        assert pod["reservedBecause"][because] == {"cpu": "8", "mem": "16Gi"}
        assert await scheduler.filter(plain_pod("other", "4"), "n1") == []
        cluster.put(VMS, vm("db", 2, 4))
        await clock.advance(31)  # so long may a message from before be on its way
        assert await scheduler.filter(plain_pod("other", "4"), "n1") == ["n1"]
    assert cluster.made("PATCH", "/virtualmachines") == []
