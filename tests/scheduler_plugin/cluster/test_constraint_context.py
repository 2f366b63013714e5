"""Namespaces, claims and volumes narrow where VMs may go; a cluster may lack or forbid them."""

from __future__ import annotations

import pytest

from protocol.messages import ObjectName
from scheduler_plugin.constraints.checker import ConstraintContext
from scheduler_plugin.constraints.model import NodeTerm, Requirement
from tests.scheduler_plugin.fake_cluster import CLAIMS, NAMESPACES, VOLUMES, FakeCluster, Fault, to
from tests.scheduler_plugin.migration.moving_cluster import full_cluster, moving_cluster
from tests.scheduler_plugin.objects import Obj

ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}


def with_volumes() -> FakeCluster:
    cluster = full_cluster()
    cluster.put(NAMESPACES, {"metadata": {"name": "default", "uid": "ns", "labels": {"team": "a"}}})
    claim: Obj = {"metadata": {"name": "data", "namespace": "default", "uid": "c"}, "spec": {"volumeName": "pv-1"}}
    cluster.put(CLAIMS, claim)
    affinity = {"required": {"nodeSelectorTerms": [ZONE]}}
    cluster.put(VOLUMES, {"metadata": {"name": "pv-1", "uid": "v"}, "spec": {"nodeAffinity": affinity}})
    return cluster


async def test_volumes_constrain_the_vm() -> None:
    async with moving_cluster(with_volumes()) as s:
        known = s.scheduler.parts.context.feed.constraint_context
        terms = (NodeTerm((Requirement("zone", "In", ("a",)),)),)
        assert known.namespace_labels == {"default": {"team": "a"}}
        assert known.terms_of("default", ("data", "other")) == (terms,)


@pytest.mark.parametrize("status", [403, 404])
async def test_missing_or_forbidden_kind_is_optional(status: int) -> None:
    cluster = with_volumes()
    for path in (NAMESPACES, CLAIMS, VOLUMES):
        cluster.faults.append(Fault(to("GET", path), refuse=status, times=9))
    async with moving_cluster(cluster) as s:
        known = s.scheduler.parts.context.feed.constraint_context
        assert known == ConstraintContext(is_current=True)
        assert (await s.scheduler.probe("readyz")).text == "ok\n"
        await s.passes(12)
        assert [target for _, target, _ in s.migrations] == ["n2"]


async def test_vm_with_remote_volume_stays() -> None:
    cluster = with_volumes()
    pod = cluster.get("/api/v1/pods", "default", "db-pod")
    pod["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    async with moving_cluster(cluster) as s:
        await s.passes(30)
        stuck = (await s.view("explain/default/db"))["stuck"]["n1"]
        assert (s.created(), stuck.endswith("db: node(s) had volume node affinity conflict (1 nodes)")) == (0, True)


def test_unknown_volume_constrains_nothing() -> None:
    known = ConstraintContext(claims={ObjectName("default", "data"): "pv-1"})
    assert (known.terms_of("default", ("data",)), known.namespace_labels) == ((), None)
