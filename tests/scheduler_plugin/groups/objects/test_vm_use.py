"""VMs in the recommenders' words, and what these say in those of an HPA's and a VPA's status."""

from __future__ import annotations

from protocol.kubernetes.objects import Json, name_of
from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.recommender.horizontal import HorizontalRules, MetricTarget, ReplicaUse
from scheduler_plugin.groups.core.workload import (
    ContainerRecommendation,
    HorizontalRecommendation,
    ReplicaBounds,
    ResourceList,
    VerticalRecommendation,
)
from scheduler_plugin.groups.objects.autoscalers import horizontal_of
from scheduler_plugin.groups.objects.vm_use import (
    GuestUse,
    hpa_status,
    recommendation_annotation,
    rules_of,
    target_vms,
    uses,
    vpa_status,
    with_annotated_status,
)

GUEST = {"cpus": {"min": 1, "use": 1, "max": 4}, "memorySlots": {"min": 1, "use": 1, "max": 2}}


def vm(name: str, phase: str = "Running", available: str = "", owner: str = "") -> Json:
    conditions = [{"type": "Other"}, {"type": "Available", "status": available}] if available else []
    owners = [{"uid": owner, "controller": True}] if owner else []
    metadata = {"namespace": "default", "name": name, "uid": f"uid-{name}", "ownerReferences": owners}
    return {
        "kind": "VirtualMachine",
        "metadata": metadata,
        "spec": {"guest": GUEST},
        "status": {"phase": phase, "conditions": conditions},
    }


def test_members_of_group_and_vm() -> None:
    group: Json = {"kind": "VirtualMachineGroup", "metadata": {"namespace": "default", "name": "shop", "uid": "us"}}
    there = [vm("shop-primary", owner="us"), vm("shop-replica-0", owner="us"), vm("other", owner="us")]
    others = [vm("shop-replica-1", owner="the group of that name before"), vm("shop-replica-2")]
    vms = {name_of(each): each for each in (*there, *others)}
    assert [name_of(each).name for each in target_vms(group, vms)] == ["shop-replica-0"]
    assert target_vms(there[0], vms) == [there[0]]


def test_vm_requests_its_maximum() -> None:
    seen = list(
        uses([vm("a"), vm("b", available="False"), {**vm("c"), "spec": {}}], {"uid-a": GuestUse(1.5, Bytes(7))})
    )
    assert [replica for replica, _ in seen] == [ReplicaUse(1500, 4000, True), ReplicaUse(None, 4000, False)]
    assert [amounts for _, amounts in seen] == [ResourceList(MilliCpu(1500), Bytes(7)), ResourceList()]


def test_sleeping_vm_serves_and_is_not_measured() -> None:
    """The agent's last measurement is outdated."""
    seen = list(uses([vm("a", "Asleep", available="False")], {"uid-a": GuestUse(1.5, Bytes(7))}))
    assert seen == [(ReplicaUse(None, 4000, True), ResourceList())]


def test_of_an_hpa_the_metrics_of_cpu_count() -> None:
    def source(name: str, **target: object) -> Json:
        return {"name": name, "target": dict(target)}

    metrics = [
        {"resource": source("cpu", averageUtilization=60)},
        {"containerResource": source("cpu", averageValue="1500m")},
        {"resource": source("cpu", averageValue="much")},
        {"resource": source("memory", averageUtilization=60)},
        {"external": {}},
    ]
    wanted = (MetricTarget(60, None), MetricTarget(None, 1500))
    assert rules_of({"spec": {"maxReplicas": 3, "metrics": metrics}}) == HorizontalRules(ReplicaBounds(1, 3), wanted)
    assert rules_of({"spec": {"minReplicas": 2}}).replicas == ReplicaBounds(2, 2)


def test_what_is_recommended_reads_like_that_of_kubernetes() -> None:
    found = hpa_status({}, 2, HorizontalRecommendation(3, 1, 3, limited=True))
    assert (found["currentReplicas"], found["desiredReplicas"]) == (2, 3)
    assert found["currentMetrics"] == []
    silent = hpa_status({}, 2, None)
    assert list(silent) == ["conditions"]
    row = ContainerRecommendation("vm", ResourceList(MilliCpu(500), Bytes(1024)), upper=ResourceList(MilliCpu(900)))
    assert vpa_status(VerticalRecommendation((row,))) == {
        "recommendation": {
            "containerRecommendations": [
                {
                    "containerName": "vm",
                    "target": {"cpu": "500m", "memory": "1Ki"},
                    "lowerBound": {},
                    "upperBound": {"cpu": "900m"},
                    "uncappedTarget": {},
                }
            ]
        }
    }


def test_measurements_of_runner_pods_do_not_count() -> None:
    """The cluster's HPA controller measures the pods of VMs, too: its figures do not explain the agents' count."""
    resource = {"name": "cpu", "target": {"averageUtilization": 60}}
    measured = {"name": "cpu", "current": {"averageUtilization": 90, "averageValue": "900m"}}
    hpa: Json = {
        "spec": {"maxReplicas": 3, "metrics": [{"resource": resource}]},
        "status": {"desiredReplicas": 1, "currentMetrics": [{"resource": measured}]},
    }
    noted = hpa_status(hpa, 2, HorizontalRecommendation(3, 1, 3))
    recommendation = horizontal_of(
        with_annotated_status({**hpa, "metadata": {"annotations": recommendation_annotation(noted)}})
    )
    assert recommendation == HorizontalRecommendation(3, 1, 3)
