"""A Tortoise as upstream writes it is read; what cannot be used is named field by field."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from protocol.units import Bytes, MilliCpu
from protocol.yaml_text import read_yaml
from scheduler_plugin.groups.core.tortoise.autoscaler import Scaling
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.tortoise_memory import Spec, TortoiseMode
from scheduler_plugin.groups.core.workload import ResourceList, SizeBounds
from scheduler_plugin.groups.objects.targets import InvalidSpecError
from scheduler_plugin.groups.objects.tortoise.manifest import Tortoise, parse_tortoise

USUAL = Configuration()
MINIMAL = """
metadata: {name: lovely-tortoise, namespace: zoo}
spec:
  updateMode: Auto
  targetRefs:
    scaleTargetRef: {kind: Deployment, name: sample}
"""
WHOLE = """
metadata: {name: lovely-tortoise, namespace: zoo}
spec:
  updateMode: Emergency
  targetRefs:
    scaleTargetRef: {apiVersion: apps/v1, kind: StatefulSet, name: sample}
    horizontalPodAutoscalerName: mine
  resourcePolicy:
  - containerName: istio-proxy
    minAllocatedResources: {cpu: "4"}
    maxAllocatedResources: {cpu: 6, memory: 1Gi}
  autoscalingPolicy:
  - containerName: istio-proxy
    policy: {cpu: Horizontal, memory: Vertical}
  - containerName: app
  maxReplicas: 40
  deletionPolicy: DeleteAll
  horizontalPodAutoscalerBehavior: {scaleDown: {stabilizationWindowSeconds: 60}}
"""


def document(text: str) -> Json:
    found = read_yaml(text, 10_000)
    assert isinstance(found, dict)
    return found


def changed(**spec: object) -> Json:
    found = document(MINIMAL)
    assert isinstance(found["spec"], dict)
    return {**found, "spec": {**found["spec"], **spec}}


def target(kind: str, name: str = "sample", hpa: str | None = None) -> Json:
    return {"scaleTargetRef": {"kind": kind, "name": name}, "horizontalPodAutoscalerName": hpa}


def test_minimal_manifest_creates_hpa() -> None:
    assert parse_tortoise(document(MINIMAL), USUAL) == Tortoise(
        ObjectName("zoo", "lovely-tortoise"),
        Spec(USUAL, TortoiseMode.AUTO),
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "sample"},
        "tortoise-hpa-lovely-tortoise",
    )


def test_a_whole_manifest() -> None:
    sizes = SizeBounds(ResourceList(MilliCpu(4000)), ResourceList(MilliCpu(6000), Bytes(2**30)))
    policies = {("istio-proxy", "cpu"): Scaling.HORIZONTAL, ("istio-proxy", "memory"): Scaling.VERTICAL}
    found = parse_tortoise(document(WHOLE), USUAL)
    assert found.spec == Spec(USUAL, TortoiseMode.EMERGENCY, "mine", policies, {"istio-proxy": sizes}, 40)  # type: ignore[arg-type]
    assert (found.hpa, found.deletes_all, found.target["kind"]) == ("mine", True, "StatefulSet")
    assert found.behavior == {"scaleDown": {"stabilizationWindowSeconds": 60}}


def test_single_vm_needs_no_hpa() -> None:
    found = parse_tortoise(changed(targetRefs=target("VirtualMachine", "db")), USUAL)
    vm = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "db"}
    assert (found.target, found.is_vm) == (vm, True)


POLICY = {"containerName": "app", "policy": {}}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"metadata": {}}, "spec: expected a value, the field is missing"),
        (changed(targetRefs={}), "spec.targetRefs.scaleTargetRef: expected a value, the field is missing"),
        (changed(targetRefs=target("")), "spec.targetRefs.scaleTargetRef: expected a kind and a name"),
        (
            changed(targetRefs=target("VirtualMachine", hpa="mine")),
            "spec.targetRefs.horizontalPodAutoscalerName: expected none, a VirtualMachine has no replicas",
        ),
        (changed(updateMode="on"), "spec.updateMode: expected one of Off, Auto, Emergency, got 'on'"),
        (changed(maxReplicas=0), "spec.maxReplicas: expected a whole number from 1 to 10000, got 0"),
        (changed(maxReplicas="many"), "spec.maxReplicas: expected int | null, got str"),
        (changed(deletionPolicy="All"), "spec.deletionPolicy: expected one of NoDelete, DeleteAll, got 'All'"),
        (
            changed(autoscalingPolicy=[{**POLICY, "policy": {"cpu": "Sideways"}}]),
            "spec.autoscalingPolicy[0].policy.cpu: expected one of Off, Horizontal, Vertical, got 'Sideways'",
        ),
        (
            changed(autoscalingPolicy=[{**POLICY, "policy": {"gpu": "Off"}}]),
            "spec.autoscalingPolicy[0].policy: expected cpu and memory, got 'gpu'",
        ),
        (
            changed(autoscalingPolicy=[POLICY, POLICY]),
            "spec.autoscalingPolicy[1].containerName: expected a unique name, got 'app'",
        ),
        (
            changed(resourcePolicy=[{"containerName": ""}]),
            "spec.resourcePolicy[0].containerName: expected a unique name, got ''",
        ),
        (
            changed(resourcePolicy=[{"containerName": f"c{number}"} for number in range(65)]),
            "spec.resourcePolicy: expected at most 64 containers, got 65",
        ),
        (
            changed(resourcePolicy=[{"containerName": "app", "minAllocatedResources": {"memory": "lots"}}]),
            "spec.resourcePolicy[0].minAllocatedResources.memory: expected a quantity ",
        ),
        (
            changed(
                resourcePolicy=[
                    {
                        "containerName": "app",
                        "minAllocatedResources": {"cpu": 2},
                        "maxAllocatedResources": {"cpu": 1, "memory": 1},
                    }
                ]
            ),
            "spec.resourcePolicy[0].minAllocatedResources.cpu: expected at most 1, got 2",
        ),
    ],
)
def test_what_cannot_be_used_is_named(found: Json, message: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        parse_tortoise(found, USUAL)
    assert str(refused.value).startswith(message)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InvalidSpecError) as refused:
        parse_tortoise(changed(updateMode="on", maxReplicas=-1, deletionPolicy="?"), USUAL)
    assert len(str(refused.value).split("; ")) == 3


def test_the_definition_knows_every_field_that_is_read() -> None:
    path = Path(__file__).parents[5] / "deploy/kubernetes/crds/tortoises.yaml"
    found = document(path.read_text())
    schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]  # type: ignore[index]
    written = document(WHOLE)["spec"]
    assert isinstance(written, dict)
    assert set(schema["properties"]) == set(written)
