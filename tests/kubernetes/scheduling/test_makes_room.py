"""A real kubelet defers the resize of a pod; our service migrates a VM off its node, and the kubelet applies it (B.14).

The VM is a pod that its node runs, and no guest: the test does what a controller does in the end, it lets the pod go.
"""

from __future__ import annotations

import pytest

from protocol.names import MIGRATION_PLURAL, VM_GROUP, VM_VERSION
from protocol.units import MilliCpu
from tests.conformance.cluster import done
from tests.kubernetes.neighbour_pod import NeighbourPod
from tests.kubernetes.real_kubernetes import RealKubernetes, busybox_pod, eventually
from tests.kubernetes.scheduling.books import VMS, Obj
from tests.kubernetes.scheduling.stage import Stage

pytestmark = pytest.mark.kubernetes
NODE, GUEST = "node-1", MilliCpu(500)


def a_vm_on_the_node(stage: Stage) -> None:
    """A VM that may move, and whose pod requests what the VM has."""
    vm = stage.vm("db", "500m", 1)
    labels = {"metadata": {"labels": {"autoscaling.neon.tech/auto-migration-enabled": "true"}}}
    stage.patch(stage.path(VMS, "db"), {**labels, "spec": {"extraNetwork": {"enable": True}}})
    like = busybox_pod("db", "sleep", "600", node=NODE)["spec"]
    container = {**like["containers"][0], "name": "neonvm-runner"}
    container["resources"] = {"requests": {"cpu": GUEST.quantity(), "memory": "32Mi"}}
    stage.vm_pod(vm, "db", nodeSelector=like["nodeSelector"], containers=[container])
    stage.patch(f"{stage.path(VMS, 'db')}/status", {"status": {"podName": "db"}})


def migrations(stage: Stage) -> list[Obj]:
    path = f"/apis/{VM_GROUP}/{VM_VERSION}/namespaces/{stage.name}/{MIGRATION_PLURAL}"
    return list(done(stage.http.get(path))["items"])


def told(stage: Stage) -> list[str]:
    events = done(stage.http.get(stage.path("events")))["items"]
    return [each["involvedObject"]["name"] for each in events if each["reason"] == "RoomBeingMade"]


def test_vm_migrates_for_deferred_resize(stage: Stage, real_kubernetes: RealKubernetes) -> None:
    a_vm_on_the_node(stage)
    real_kubernetes.wait("condition=Ready", "pod/db", namespace=stage.name)
    web = NeighbourPod(real_kubernetes, NODE, stage.name)
    web.start()
    wanted = web.wish()
    web.resize(wanted)
    eventually(lambda: web.pending() == ["Deferred"], "the kubelet puts it off", 30.0)
    eventually(lambda: len(migrations(stage)) == 1, "a move is ordered", 30.0)
    (move,) = migrations(stage)
    assert move["spec"]["vmName"] == "db"
    assert "defers a pod's resize" in move["metadata"]["annotations"]["autoscaling.neon.tech/reason"]
    eventually(lambda: told(stage) == ["web"], "the pod hears of it", 30.0)
    stage.delete_pods("db")
    eventually(lambda: web.granted() == wanted, "the kubelet grants it", 60.0)
    assert web.pending() == []
