"""Cached fields of the cluster's objects: a large cluster must fit the program's memory."""

from __future__ import annotations

import asyncio

from protocol.kubernetes.objects import Json, child, items, name_of
from protocol.kubernetes.resources import (
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    VIRTUAL_MACHINES,
    VM_GROUPS,
    Resource,
)
from protocol.messages import ObjectName
from scheduler_plugin.groups.app import assemble
from scheduler_plugin.groups.controllers.controller import Cache, trimmed
from scheduler_plugin.groups.controllers.watches import PodIndex
from scheduler_plugin.groups.objects.pods import MOST, pod_selector
from scheduler_plugin.groups.objects.targets import workload_of
from scheduler_plugin.groups.settings import GroupsSettings
from scheduler_plugin.groups.telemetry import GroupsTelemetry
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import Collection, FakeCluster


def of(owner: Resource, **metadata: object) -> Json:
    reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": "web", "controller": True}
    return {"metadata": {"name": "web-1", "ownerReferences": [reference], **metadata}, "spec": {"replicas": 3}}


def test_owned_replica_set_keeps_metadata() -> None:
    found = of(DEPLOYMENTS, managedFields=[{}], resourceVersion="7")
    assert trimmed(REPLICA_SETS, found) == {"metadata": of(DEPLOYMENTS, resourceVersion="7")["metadata"]}


def test_other_objects_keep_all_but_managed_fields() -> None:
    alone: Json = {"metadata": {"name": "web-1"}, "spec": {"replicas": 3}}
    assert trimmed(REPLICA_SETS, alone) == alone
    member = of(VM_GROUPS, managedFields=[{}])
    assert trimmed(VIRTUAL_MACHINES, member) == of(VM_GROUPS)
    assert "managedFields" in member["metadata"]  # type: ignore[operator]  # what was given is left as it is


def test_workload_keeps_the_sizes_of_its_template() -> None:
    """Twenty Deployments of any tenant, with 100,000 variables each, took the 512 MiB that the program may have."""
    sizes = {"name": "web", "resources": {"requests": {"cpu": "1"}}}
    bulk = {"env": [{"name": "a"}] * 1000, "image": "web:1"}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{**sizes, **bulk}], "volumes": [{}] * 1000}}
    spec = {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}}
    rest: Json = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "status": {"readyReplicas": 2},
        "metadata": {"name": "web"},
    }
    found = {**rest, "spec": {**spec, "template": template, "volumeClaimTemplates": [{}] * 1000}}
    kept = trimmed(STATEFUL_SETS, found)
    assert kept == {**rest, "spec": {**spec, "template": {"spec": {"containers": [sizes]}}}}
    assert workload_of(kept, STATEFUL_SETS) == workload_of(found, STATEFUL_SETS)


def test_pods_are_cached_up_to_a_limit() -> None:
    """Seventeen pods with 80,000 labels each took all memory, and so did others with as many containers."""
    many: list[Json] = [{"name": str(number)} for number in range(1000)]
    amounts = {"cpu": "1", **{f"example.com/{number}": "1" for number in range(1000)}}
    resources = {"requests": amounts, "limits": amounts, "claims": many}
    sidecars = [{"name": str(number), "restartPolicy": "Always"} for number in range(1000)]
    kept = trimmed(
        PODS,
        {
            "metadata": {"name": "web", "labels": {str(number): "a" for number in range(1000)}},
            "spec": {"containers": [{"name": "web", "resources": resources}, *many], "initContainers": sidecars},
            "status": {"conditions": [{"type": "PodResizePending"}] * 1000, "containerStatuses": many},
        },
    )
    assert child(kept, "spec")["containers"] == [
        {"name": "web", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}},
        *many[: MOST - 1],
    ]
    assert child(kept, "spec")["initContainers"] == sidecars[:MOST]
    assert len(child(kept, "metadata", "labels")) == MOST
    assert [len(items(kept, "status", part)) for part in ("conditions", "containerStatuses")] == [MOST] * 2


def test_workload_keeps_only_its_controller() -> None:
    """Its labels and other owners may be tens of thousands."""
    found = of(DEPLOYMENTS, labels={"a": "b"})
    metadata = child(found, "metadata")
    others = {**metadata, "ownerReferences": [{"name": "a"}, *items(metadata, "ownerReferences")]}
    assert trimmed(STATEFUL_SETS, {**found, "metadata": others}) == of(DEPLOYMENTS)


def test_workload_drops_a_huge_selector() -> None:
    """Fifty Deployments with 33,000 requirements each took all memory, and matching them against all pods took long."""
    selector: Json = {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}] * 200}
    kept = trimmed(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": {"replicas": 3, "selector": selector}})
    assert kept == {"metadata": {"name": "web"}, "spec": {"replicas": 3}}
    assert pod_selector(kept) == {}


def test_pods_are_found_by_expressions_alone() -> None:
    """Among those of the namespace, however many others there are."""
    cache = Cache([PODS], GroupsTelemetry())
    index = PodIndex(cache, lambda _: None)
    for number, (namespace, app) in enumerate((("default", "web"), ("default", "db"), ("other", "web"))):
        metadata = {"namespace": namespace, "name": f"pod-{number}", "uid": f"u-{number}", "labels": {"app": app}}
        cache.learn(PODS, {"metadata": {**metadata, "resourceVersion": str(number + 1)}})
    selector: Json = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}
    found = index.of({"metadata": {"namespace": "default", "name": "web"}, "spec": {"selector": selector}})
    assert [name_of(pod).name for pod in found] == ["pod-0"]


async def test_restored_store_is_reread() -> None:
    """Others have written so much that watches are resumed; only the Lease, now older, shows the restore."""
    clock, cluster, path = FakeClock(), FakeCluster(), DEPLOYMENTS.path()
    cluster.collections[path] = Collection()
    kept = cluster.backup()
    cluster.put(path, {"metadata": {"namespace": "default", "name": "web", "uid": "u"}})
    cache = Cache([DEPLOYMENTS], GroupsTelemetry())
    task = asyncio.create_task(cache.run(cluster, clock))
    await clock.advance(1)
    assert list(cache.objects(DEPLOYMENTS)) == [ObjectName("default", "web")]
    cluster.restore(kept)
    cluster.revision += 100
    await clock.advance(10)
    cache.read_again()
    await clock.advance(1)
    assert list(cache.objects(DEPLOYMENTS)) == []
    task.cancel()
    await asyncio.wait([task])


def test_lease_is_the_witness_of_a_restore() -> None:
    program = assemble(FakeCluster(), FakeClock(), GroupsSettings(), "one")
    assert program.leadership.on_restored == program.cache.read_again
