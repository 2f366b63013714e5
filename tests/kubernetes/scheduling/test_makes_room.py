"""A real kubelet puts off the resize of a pod; our service has a VM leave its node, and the kubelet grants it (B.14).

The VM is a pod that its node runs, and no guest: the test does what a controller does in the end, it lets the pod go.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.names import LABEL_MAKE_ROOM, MIGRATION_PLURAL, VM_GROUP, VM_VERSION
from protocol.units import MilliCpu, Resources
from tests.conformance.cluster import done
from tests.kubernetes.real_kubernetes import RealKubernetes, busybox_pod, eventually
from tests.kubernetes.scheduling.books import PODS, VMS, Obj, requests_of
from tests.kubernetes.scheduling.stage import Stage

pytestmark = pytest.mark.kubernetes
NODE, GUEST, TOO_MUCH = "node-1", MilliCpu(500), MilliCpu(200)


def a_vm_on_the_node(stage: Stage) -> None:
    """It may move, and its pod requests what it has."""
    vm = stage.vm("db", "500m", 1)
    labels = {"metadata": {"labels": {"autoscaling.neon.tech/auto-migration-enabled": "true"}}}
    stage.patch(stage.path(VMS, "db"), {**labels, "spec": {"extraNetwork": {"enable": True}}})
    like = busybox_pod("db", "sleep", "600", node=NODE)["spec"]
    container = {**like["containers"][0], "name": "neonvm-runner"}
    container["resources"] = {"requests": {"cpu": GUEST.quantity(), "memory": "32Mi"}}
    stage.vm_pod(vm, "db", nodeSelector=like["nodeSelector"], containers=[container])
    stage.patch(f"{stage.path(VMS, 'db')}/status", {"status": {"podName": "db"}})


def a_pod_beside_it(stage: Stage, cluster: RealKubernetes, asks: str) -> None:
    resources = {"requests": {"cpu": "50m", "memory": "16Mi"}}
    pod = busybox_pod("web", "sleep", "600", node=NODE, resources=resources)
    pod["metadata"] |= {"labels": {LABEL_MAKE_ROOM: asks}, "namespace": stage.name}
    cluster.apply(pod)
    cluster.wait("condition=Ready", "pod/web", "pod/db", namespace=stage.name)


def wish(cluster: RealKubernetes) -> MilliCpu:
    """What of the node's CPU the pod may have once the VM has left, and not before."""
    allocatable = MilliCpu.parse(cluster.get("node", NODE)["status"]["allocatable"]["cpu"])
    there = [each for each in cluster.get("pods", "--all-namespaces")["items"] if each["spec"].get("nodeName") == NODE]
    others = Resources.sum(requests_of(each) for each in there if each["metadata"]["name"] != "web")
    return allocatable - others.cpu + TOO_MUCH


def resize(stage: Stage, cluster: RealKubernetes, cpu: MilliCpu) -> None:
    larger = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu.quantity()}}}]}}
    patch = f"--patch={json.dumps(larger)}"
    cluster.kubectl("patch", "pod", "web", f"--namespace={stage.name}", "--subresource=resize", patch)


def pending(stage: Stage) -> list[str]:
    """Why the pod's resize waits."""
    said = stage.get(PODS, "web")["status"].get("conditions", [])
    return [each["reason"] for each in said if each["type"] == "PodResizePending"]


def granted(stage: Stage) -> Any:
    return stage.get(PODS, "web")["status"]["containerStatuses"][0]["resources"]["requests"]["cpu"]


def migrations(stage: Stage) -> list[Obj]:
    path = f"/apis/{VM_GROUP}/{VM_VERSION}/namespaces/{stage.name}/{MIGRATION_PLURAL}"
    return list(done(stage.http.get(path))["items"])


def told(stage: Stage) -> list[str]:
    events = done(stage.http.get(stage.path("events")))["items"]
    return [each["involvedObject"]["name"] for each in events if each["reason"] == "RoomBeingMade"]


def test_a_pod_whose_resize_is_deferred_has_a_vm_leave_and_is_resized(
    stage: Stage, real_kubernetes: RealKubernetes
) -> None:
    a_vm_on_the_node(stage)
    a_pod_beside_it(stage, real_kubernetes, "true")
    wanted = wish(real_kubernetes)
    resize(stage, real_kubernetes, wanted)
    eventually(lambda: pending(stage) == ["Deferred"], "the kubelet puts it off", 30.0)
    eventually(lambda: len(migrations(stage)) == 1, "a move is ordered", 30.0)
    (move,) = migrations(stage)
    assert move["spec"]["vmName"] == "db"
    assert "defers the resize of a pod" in move["metadata"]["annotations"]["autoscaling.neon.tech/reason"]
    eventually(lambda: told(stage) == ["web"], "the pod hears of it", 30.0)
    stage.delete_pods("db")
    eventually(lambda: granted(stage) == wanted.quantity(), "the kubelet grants it", 60.0)
    assert pending(stage) == []
