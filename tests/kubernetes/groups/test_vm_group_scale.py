"""A VirtualMachineGroup with a real HPA and a real VPA; the test simulates its VMs, and pods stand in for replicas."""

from __future__ import annotations

import pytest

from protocol.kubernetes.resources import (
    HORIZONTAL_AUTOSCALERS,
    HVPAS,
    VERTICAL_AUTOSCALERS,
    VIRTUAL_MACHINES,
    VM_GROUPS,
)
from tests.kubernetes.groups.scene import BUSY, Object, Scene, container, cpu_metric, hpa, hvpa, vpa

pytestmark = pytest.mark.kubernetes

GROUP = {"apiVersion": VM_GROUPS.api_version, "kind": VM_GROUPS.kind}
VM = {"apiVersion": VIRTUAL_MACHINES.api_version, "kind": VIRTUAL_MACHINES.kind}
LONG_AGO = "2026-01-01T00:00:00Z"
GUEST = {
    "cpus": {"min": 1, "max": 4, "use": 1},
    "memorySlotSize": "128Mi",
    "memorySlots": {"min": 2, "max": 8, "use": 2},
    "rootDisk": {"image": "localhost:5001/postgres-vm:dev"},
}
BUSY_CPU = cpu_metric(type="AverageValue", averageValue="5m")


def group(name: str, **spec: Object) -> Object:
    return {
        **GROUP,
        "metadata": {"name": name},
        "spec": {"replicas": 1, "template": {"spec": {"guest": GUEST}}, **spec},
    }


SCENE = (
    group("db"),
    hpa("db", {**GROUP, "name": "db"}, BUSY_CPU),
    vpa("db", {**GROUP, "name": "db"}),
    group("selfish", scaling={"maxReplicas": 4}),
    hpa("selfish", {**GROUP, "name": "selfish"}, BUSY_CPU),
    {**VM, "metadata": {"name": "single"}, "spec": {"guest": GUEST}},
    hvpa("single", {**VM, "name": "single"}, hpaTemplate={"maxReplicas": 1}, vpaTemplate={}),
)


def begin(scene: Scene) -> None:
    """The primary and the first replica serve, and the replica's pod is busy."""
    serves(scene, "db-primary", "10.111.0.5")
    serves(scene, "db-replica-0", "10.111.0.6")
    scene.apply(runner(scene, "db-replica-0"))


def serves(scene: Scene, name: str, address: str) -> None:
    """The VM runs, and its guest answers."""
    scene.until(lambda: scene.get(VIRTUAL_MACHINES, name) != {}, True, f"VM {name}")
    available = {
        "type": "Available",
        "status": "True",
        "reason": "Answers",
        "message": "",
        "lastTransitionTime": LONG_AGO,
    }
    status = {"phase": "Running", "podName": name, "extraNetIP": address, "node": "node-1", "conditions": [available]}
    scene.patch(VIRTUAL_MACHINES, name, {"status": status}, "status")


def runner(scene: Scene, name: str) -> Object:
    """A busy pod with the owner and the labels of the VM's own."""
    vm = scene.get(VIRTUAL_MACHINES, name)["metadata"]
    owner = {**VM, "name": name, "uid": vm["uid"], "controller": True}
    metadata = {"name": name, "labels": {**vm["labels"], "vm.neon.tech/name": name}, "ownerReferences": [owner]}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container("neonvm-runner", BUSY)]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_real_hpa_scales_the_group(scene: Scene) -> None:
    scene.until(lambda: scene.get(VM_GROUPS, "db")["spec"]["replicas"], 3, "what the HPA asks for")
    scene.until(lambda: scene.get(VIRTUAL_MACHINES, "db-replica-2") != {}, True, "the third replica's VM")
    assert scene.condition(HORIZONTAL_AUTOSCALERS, "db", "ScalingActive")[:2] == ("True", "ValidMetricFound")


def test_real_vpa_finds_the_groups_pods(scene: Scene) -> None:
    def containers() -> list[str]:
        recommended = (
            scene.status(VERTICAL_AUTOSCALERS, "db").get("recommendation", {}).get("containerRecommendations", ())
        )
        return [each["containerName"] for each in recommended]

    scene.until(containers, ["neonvm-runner"], "sizes of the runner")
    assert scene.condition(VERTICAL_AUTOSCALERS, "db", "ConfigUnsupported")[0] != "True"


def test_self_scaling_group_with_hpa_stops(scene: Scene) -> None:
    _, reason, message = scene.becomes(VM_GROUPS, "selfish", "AbleToScale", "False")
    assert (reason, "HorizontalPodAutoscaler selfish" in message) == ("TargetTaken", True)


def test_hvpa_of_one_vm_explains_missing_recommendations(scene: Scene) -> None:
    scene.becomes(HORIZONTAL_AUTOSCALERS, "single", "ScalingActive", "False", "InvalidSelector")
    scene.becomes(VERTICAL_AUTOSCALERS, "single", "ConfigUnsupported", "True")
    scene.until(lambda: "ConfigUnsupported" in scene.condition(HVPAS, "single", "ScalingActive")[2], True, "its reason")
    status, reason, message = scene.condition(HVPAS, "single", "ScalingActive")
    assert (status, reason, "InvalidSelector" in message) == ("False", "NoRecommendation", True)
