"""Namespaces, claims and volumes narrow where VMs may go; a cluster may lack or forbid them."""

from __future__ import annotations

import pytest

from protocol.messages import ObjectName
from scheduler_plugin.constraints import NodeTerm, Requirement, Surroundings
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


async def test_they_are_read_and_tie_a_vm_to_where_its_volumes_are() -> None:
    async with moving_cluster(with_volumes()) as s:
        known = s.scheduler.parts.context.feed.surroundings
        terms = (NodeTerm((Requirement("zone", "In", ("a",)),)),)
        assert known.namespace_labels == {"default": {"team": "a"}}
        assert known.terms_of("default", ("data", "other")) == (terms,)


@pytest.mark.parametrize("status", [403, 404])
async def test_a_cluster_that_forbids_or_lacks_them_is_served_without_them(status: int) -> None:
    cluster = with_volumes()
    for path in (NAMESPACES, CLAIMS, VOLUMES):
        cluster.faults.append(Fault(to("GET", path), refuse=status, times=9))
    async with moving_cluster(cluster) as s:
        known = s.scheduler.parts.context.feed.surroundings
        assert known == Surroundings(is_current=True)
        assert (await s.scheduler.probe("readyz")).text == "ok\n"
        await s.passes(12)
        assert [target for _, target, _ in s.migrations] == ["n2"]


async def test_a_vm_with_a_volume_elsewhere_stays_and_the_node_says_why() -> None:
    cluster = with_volumes()
    pod = cluster.get("/api/v1/pods", "default", "db-pod")
    pod["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    async with moving_cluster(cluster) as s:
        await s.passes(30)
        stuck = (await s.view("explain/default/db"))["stuck"]["n1"]
        assert (s.created(), stuck.endswith("db: a volume of it cannot be reached from there (1 nodes)")) == (0, True)


def test_a_volume_that_is_not_known_ties_to_nothing() -> None:
    known = Surroundings(claims={ObjectName("default", "data"): "pv-1"})
    assert (known.terms_of("default", ("data",)), known.namespace_labels) == ((), None)
