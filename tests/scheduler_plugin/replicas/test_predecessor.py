"""Replicas with a Lease replace a scheduler without one: none of them acts before its pod is deleted (B.3)."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_plugin.replica import runs_without_lease
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import PODS, Fault, to
from tests.scheduler_plugin.granted import POD, granted
from tests.scheduler_plugin.objects import Obj, plain_pod
from tests.scheduler_plugin.replicas.pair import LEASE, SLICE, TERMS, replicas

LABELS = {"app.kubernetes.io/name": "autoscaling-scheduler"}
LISTS = to("GET", f"/api/v1/namespaces/{LEASE.namespace}/pods")


def scheduler(name: str, *arguments: str, namespace: str = LEASE.namespace) -> Obj:
    pod = plain_pod(name, namespace=namespace)
    pod["metadata"]["labels"] = LABELS
    pod["spec"]["containers"] = [{"name": "service", "args": list(arguments)}, {"name": "kube-scheduler"}]
    return pod


async def test_replicas_wait_for_leaseless_predecessor() -> None:
    clock, cluster = FakeClock(), granted()
    cluster.put(PODS, scheduler("old", "--config=a"))
    async with replicas(cluster, clock) as run:
        await clock.advance(60)
        assert (run.leader, run.served) == (None, None)
        assert (await run.running[0].client.get("http://probes/readyz")).status_code == 200
        assert (await run.running[0].client.post("http://extender/bind", content=b"{}")).status_code == 503
        page = (await run.running[0].client.get("http://probes/metrics")).text
        assert "autoscale_scheduler_lease_held 1.0" in page
        assert "autoscale_scheduler_leading 0.0" in page
        cluster.remove(PODS, LEASE.namespace, "old")
        await clock.advance(2)
        assert (run.leader, run.served) == (run.running[0], run.running[0])
        answer = await run.ask(POD, 3, 4)
        assert answer is not None
        assert answer.json()["permit"]["vCPUs"] == 3


async def test_leased_and_foreign_schedulers_are_ignored() -> None:
    clock, cluster = FakeClock(), granted()
    cluster.put(PODS, scheduler("new", f"--lease={SLICE}"))
    cluster.put(PODS, scheduler("foreign", namespace="default"))
    async with replicas(cluster, clock) as run:
        await clock.advance(TERMS.duration + 1)
        assert run.leader is run.running[0]


async def test_failed_look_is_retried() -> None:
    clock, cluster = FakeClock(), granted()
    cluster.faults.append(Fault(LISTS, times=4, refuse=500))
    async with replicas(cluster, clock) as run:
        await clock.advance(TERMS.duration + 1)
        assert run.leader is None
        await clock.advance(4)
        assert run.leader is run.running[0]


@pytest.mark.parametrize(
    ("containers", "phase", "is_alone"),
    [
        ([{"args": ["--config=a", "--lease-duration=9"]}], "Running", True),
        ([{"args": None}], "Pending", True),
        ([{"command": ["autoscale-scheduler", "--lease", "a/b"]}], "Running", False),
        ([{"args": ["--v=2"]}, {"args": ["--lease=a/b"]}], "Running", False),
        ([{"args": ["--config=a"]}], "Failed", False),
    ],
)
def test_scheduler_without_lease_acts_alone(containers: list[Any], phase: str, is_alone: bool) -> None:
    assert runs_without_lease({"spec": {"containers": containers}, "status": {"phase": phase}}) is is_alone
