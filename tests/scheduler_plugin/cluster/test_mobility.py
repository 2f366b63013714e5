"""Facts from a VM's object and its neighbours that decide whether and where the VM may move."""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import Json
from scheduler_plugin.cluster.pods.reading import read_pod
from scheduler_plugin.cluster.translate import read_node
from scheduler_plugin.cluster.virtual_machines import read_vm, vm_facts
from scheduler_plugin.constraints.model import NodeTraits, PodConstraints, PodTraits, Requirement, Taint
from tests.scheduler_plugin.objects import owner_of, plain_pod, vm

AUTO_MIGRATION = "autoscaling.neon.tech/auto-migration-enabled"
ENABLED = {"autoscaling.neon.tech/enabled": "true"}
BREAKS = "without a flat-network address, so migration would break its connections"


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        (ENABLED, {}, (None, None)),
        ({}, {}, ("not autoscaled", None)),
        (ENABLED | {AUTO_MIGRATION: "false"}, {AUTO_MIGRATION: "true"}, (None, False)),
        (ENABLED, {AUTO_MIGRATION: "true"}, (None, True)),
        (ENABLED, {AUTO_MIGRATION: "perhaps"}, (None, None)),
    ],
)
def test_a_vm_says_whether_it_may_be_moved(
    labels: dict[str, str], annotations: dict[str, str], expected: tuple[str | None, bool | None]
) -> None:
    obj = vm("db")
    obj["metadata"] |= {"labels": labels, "annotations": annotations}
    facts = vm_facts(read_vm(obj))
    assert (facts.stays_because, facts.auto_migration) == expected


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        ({}, {}, BREAKS),
        ({"extraNetwork": {"enable": False}}, {}, BREAKS),
        ({"extraNetwork": {"enable": True}}, {}, None),
        ({}, {"extraNetIP": "10.0.0.7"}, None),
    ],
)
def test_vm_without_own_address_stays(spec: Json, status: Json, expected: str | None) -> None:
    obj = vm("db")
    del obj["spec"]["extraNetwork"]
    obj["spec"] |= spec
    obj["status"] |= status
    assert vm_facts(read_vm(obj)).stays_because == expected


def test_booting_vm_is_not_moved() -> None:
    obj = vm("db")
    obj["metadata"]["labels"] = ENABLED
    obj["status"]["conditions"] = [{"type": "Available", "status": "False", "reason": "Booting"}]
    assert vm_facts(read_vm(obj)).stays_because == "booting"
    obj["status"]["conditions"] = [{"type": "Available", "status": "True", "reason": "GuestRuns"}]
    assert vm_facts(read_vm(obj)).stays_because is None


def test_vm_node_constraints_are_read() -> None:
    obj = vm("db")
    obj["spec"]["nodeSelector"] = {"disk": "nvme"}
    assert vm_facts(read_vm(obj)).constraints == PodConstraints(node_selector=(Requirement("disk", "In", ("nvme",)),))


def test_unreadable_constraints_do_not_stop_scaling() -> None:
    obj = vm("db")
    obj["spec"]["affinity"] = "near"
    facts = vm_facts(read_vm(obj))
    assert (facts.use, facts.constraints.unreadable) == (vm_facts(read_vm(vm("db"))).use, facts.constraints.unreadable)
    assert facts.constraints.unreadable


def test_pod_carries_unschedulable_message() -> None:
    pod = plain_pod("p", "1", "1Gi")
    pod["metadata"]["ownerReferences"] = [owner_of("db-1", "m-1", "VirtualMachineMigration")]
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    told = []
    for changed in ({}, {"message": None}, {"reason": "SchedulerError"}, {"status": "True"}):
        pod["status"] = {"conditions": [{"type": "Ready", "status": "False"}, waits | changed]}
        told.append(read_pod(pod).unschedulable)
    assert told == ["0/3 nodes", "kube-scheduler has found no node for it", "", ""]


def test_constraint_fields_are_read() -> None:
    worker = {
        "metadata": {"name": "n", "labels": {"zone": "a"}},
        "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]},
    }
    conditions = [{"type": "Ready", "status": "Unknown"}]
    found = read_node(worker | {"status": {"allocatable": {"cpu": "1"}, "conditions": conditions}})
    assert found.traits == NodeTraits({"zone": "a"}, (Taint("gpu", "", "NoSchedule"),), ("not ready",))
    pod = plain_pod("p", "1", "1Gi")
    pod["metadata"] |= {"labels": {"app": "db"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert read_pod(pod).traits == PodTraits({"app": "db"}, is_terminating=True)
