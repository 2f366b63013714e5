"""Scalable objects, decoded as workloads and encoded again."""

from __future__ import annotations

import json

import pytest

from protocol.kubernetes.objects import Json, child
from protocol.kubernetes.resources import DEPLOYMENTS, VIRTUAL_MACHINES, VM_GROUPS
from protocol.names import ANNOTATION_BOUNDS
from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.workload import ResourceList, SizedContainer, Workload
from scheduler_plugin.groups.objects.pods import selector_of
from scheduler_plugin.groups.objects.targets import (
    TARGET_KINDS,
    VM_CONTAINER,
    InvalidSpecError,
    InvalidTargetError,
    read_reference,
    workload_of,
)
from scheduler_plugin.groups.objects.writes import achievable, resize, scale

DEPLOYMENT = TARGET_KINDS["apps", "Deployment"]
VM = TARGET_KINDS["vm.neon.tech", "VirtualMachine"]
GROUP = TARGET_KINDS["autoscaling.neon.tech", "VirtualMachineGroup"]
GIB = 1024**3

WEB: Json = {
    "metadata": {"namespace": "default", "name": "web", "resourceVersion": "7"},
    "spec": {
        "replicas": 3,
        "selector": {"matchLabels": {"b": "2", "a": "1"}},
        "template": {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1", "gpu": "1"}}}]}},
    },
    "status": {"readyReplicas": 2},
}
DB: Json = {
    "metadata": {"namespace": "default", "name": "db", "resourceVersion": "7"},
    "spec": {
        "guest": {
            "cpus": {"min": 1, "use": 2, "max": 4},
            "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "use": 2, "max": 8},
        }
    },
    "status": {"phase": "Running"},
}


def vm_container(cpu: int | None = None, memory: int | None = None) -> tuple[SizedContainer, ...]:
    cores, size = None if cpu is None else MilliCpu(cpu), None if memory is None else Bytes(memory)
    return (SizedContainer(VM_CONTAINER, ResourceList(cores, size)),)


def test_deployment_is_read_as_workload() -> None:
    app = SizedContainer("app", ResourceList(MilliCpu(1000)))
    assert workload_of(WEB, DEPLOYMENT) == Workload(3, 2, (app,))
    assert selector_of(WEB) == "a=1,b=2"


def test_a_selector_leaves_no_requirement_out() -> None:
    requirements = [
        {"key": "tier", "operator": "NotIn", "values": ["canary", "old"]},
        {"key": "zone", "operator": "In", "values": ["a"]},
        {"key": "live", "operator": "Exists"},
        {"key": "debug", "operator": "DoesNotExist"},
        {"key": "broken", "operator": "In"},
    ]
    found: Json = {"spec": {"selector": {"matchLabels": {"a": "1"}, "matchExpressions": requirements}}}
    assert selector_of(found) == "a=1,tier notin (canary,old),zone in (a),live,!debug,broken in ()"


def test_what_says_no_replicas_has_one() -> None:
    assert workload_of({"spec": {}}, DEPLOYMENT) == Workload(1)
    assert workload_of({"spec": {"replicas": "many"}}, DEPLOYMENT) == Workload(1)


def test_vm_counts_as_one_replica() -> None:
    assert workload_of(DB, VM) == Workload(1, 1, vm_container(1000, GIB))


def test_vm_group_has_no_containers() -> None:
    found: Json = {"spec": {"replicas": 2}, "status": {"readyReplicas": 1, "selector": "x=y"}}
    assert (workload_of(found, GROUP), selector_of(found)) == (Workload(2, 1), "x=y")


def test_cluster_has_instances_and_no_containers() -> None:
    """Its pods are found by the operator's labels, also before 1.28.4, which has no selector in the status."""
    cluster: Json = {
        "metadata": {"name": "pg"},
        "spec": {"instances": 3, "resources": {"requests": {"cpu": "1"}}},
        "status": {"readyInstances": 2},
    }
    assert workload_of(cluster, TARGET_KINDS["postgresql.cnpg.io", "Cluster"]) == Workload(3, 2)
    assert selector_of(cluster) == "cnpg.io/cluster=pg,cnpg.io/podRole=instance"
    newer: Json = {**cluster, "status": {"selector": "cnpg.io/cluster=pg"}}
    assert selector_of(newer) == "cnpg.io/cluster=pg"


def test_unreadable_field_is_named() -> None:
    broken = {**WEB, "spec": {"template": {"spec": {"containers": [{"resources": {"limits": {"memory": "much"}}}]}}}}
    with pytest.raises(InvalidTargetError, match=r"default/web: spec.template.spec.containers\[0\].*limits.memory"):
        workload_of(broken, DEPLOYMENT)
    with pytest.raises(InvalidTargetError, match="VirtualMachine default/db"):
        workload_of({**DB, "spec": {}}, VM)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ({"apiVersion": "apps/v1", "kind": "Deployment"}, "ref.name: expected the name"),
        ({"apiVersion": "v1", "kind": "Pod", "name": "x"}, "expected one of apps/v1 Deployment, .*got 'v1 Pod'"),
        ({"kind": "Deployment", "name": "x"}, "got 'Deployment'"),
    ],
)
def test_reference_needs_scalable_kind(reference: Json, said: str) -> None:
    with pytest.raises(InvalidSpecError, match=said):
        read_reference(reference, "ref")


def test_replicas_use_scale_with_version() -> None:
    write = scale(WEB, DEPLOYMENT, 5)
    assert write.path == DEPLOYMENTS.path("default", "web", "scale")
    assert write.guarded_body == {"spec": {"replicas": 5}, "metadata": {"resourceVersion": "7"}}
    group = scale({"metadata": {"name": "g", "namespace": "default"}}, GROUP, 2)
    assert group.path == VM_GROUPS.path("default", "g", "scale")


def test_requests_are_written_by_container_name() -> None:
    sizes = (SizedContainer("app", ResourceList(MilliCpu(500)), ResourceList(memory=Bytes(GIB))),)
    write = resize(WEB, DEPLOYMENT, sizes)
    resources = {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}}
    template = {"spec": {"containers": [{"name": "app", "resources": resources}]}}
    assert (write.body, write.merges_lists) == ({"spec": {"template": template}}, True)
    assert achievable(WEB, DEPLOYMENT, sizes) == sizes


@pytest.mark.parametrize(
    ("wanted", "least", "bounds"),
    [
        (vm_container(2000, 3 * GIB + 1), vm_container(2000, 4 * GIB), {"cpu": "2", "mem": "4Gi"}),
        (vm_container(9000), vm_container(4000), {"cpu": "4", "mem": "1Gi"}),
        (vm_container(memory=99 * GIB), vm_container(memory=8 * GIB), {"cpu": "1", "mem": "8Gi"}),
        (vm_container(100, GIB // 2), vm_container(1000, GIB), {"cpu": "1", "mem": "1Gi"}),
        ((SizedContainer("sidecar"),), (), {"cpu": "1", "mem": "1Gi"}),
    ],
)
def test_vm_bounds_are_whole_slots(
    wanted: tuple[SizedContainer, ...], least: tuple[SizedContainer, ...], bounds: Json
) -> None:
    write = resize(DB, VM, wanted)
    annotation = child(write.body, "metadata", "annotations")[ANNOTATION_BOUNDS]
    assert isinstance(annotation, str)
    assert json.loads(annotation) == {"min": bounds, "max": {"cpu": "4", "mem": "8Gi"}}
    assert (achievable(DB, VM, wanted), write.resource) == (least, VIRTUAL_MACHINES)


def test_lower_bound_returns_to_spec() -> None:
    narrow = '{"min": {"cpu": 2, "mem": "2Gi"}, "max": {"cpu": 3, "mem": "4Gi"}}'
    bounded = {**DB, "metadata": {"namespace": "default", "name": "db", "annotations": {ANNOTATION_BOUNDS: narrow}}}
    assert workload_of(bounded, VM).containers == vm_container(2000, 2 * GIB)
    assert achievable(bounded, VM, vm_container(100)) == vm_container(1000)
    assert achievable(bounded, VM, vm_container(9000)) == vm_container(3000)
