"""Pods and nodes become facts exactly as kube-scheduler counts them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from protocol.messages import ObjectName
from protocol.units import ZERO, Resources
from scheduler_plugin.cluster.pods.reading import decode_pod, read_pod
from scheduler_plugin.cluster.translate import ClusterNode, decode_node, read_node
from scheduler_plugin.cluster.virtual_machines import read_vm, vm_facts
from scheduler_plugin.constraints.model import PodTraits
from scheduler_plugin.ledger.facts import PodFacts, VmFacts
from tests.scheduler_plugin.objects import node, plain_pod, vm, vm_pod


def container(cpu: str | None = None, memory: str | None = None, **more: Any) -> dict[str, Any]:
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    return {"name": "c", "resources": {"requests": requests}, **more}


def requests_of(**spec: Any) -> str:
    return str(read_pod({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}).requests)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": []}, "0 cpu, 0"),
        ({"containers": [{"name": "none"}, container()]}, "0 cpu, 0"),
        ({"containers": [container("100m", "1Gi"), container("1", "512Mi")]}, "1100m cpu, 1536Mi"),
        (
            {"containers": [container("1", "1Gi")], "initContainers": [container("3", "1Mi"), container("2", "4Gi")]},
            "3 cpu, 4Gi",
        ),
        (
            {
                "containers": [container("1", "1Gi")],
                "initContainers": [container("2", "1Gi", restartPolicy="Always"), container("1500m", "1Gi")],
            },
            "3500m cpu, 2Gi",
        ),
        (
            {
                "containers": [container("1", "1Gi")],
                "initContainers": [container("1500m", "1Gi"), container("2", "1Gi", restartPolicy="Always")],
            },
            "3 cpu, 2Gi",
        ),
        ({"containers": [container("1", "1Gi")], "overhead": {"cpu": "250m", "memory": "1Gi"}}, "1250m cpu, 2Gi"),
        ({"containers": [container("1", "1Gi")], "resources": {"requests": {"cpu": "2"}}}, "2 cpu, 1Gi"),
        ({"containers": [container("1", "1Gi")], "resources": {"requests": {"memory": "2Gi"}}}, "1 cpu, 2Gi"),
        ({"containers": [container("0.0001", "1e3")]}, "1m cpu, 1000"),
    ],
)
def test_requests_are_counted_like_kube_scheduler(spec: dict[str, Any], expected: str) -> None:
    assert requests_of(**spec) == expected


def test_vm_pod_names_its_vm() -> None:
    pod = vm_pod("db", "n1")
    pod["status"]["phase"] = "Failed"
    expected = PodFacts(
        uid="pod-db",
        name=ObjectName("default", "db-pod"),
        requests=Resources.parse("100m", "128Mi"),
        vm=ObjectName("default", "db"),
        node="n1",
        finished=True,
        vm_uid="vm-db",
    )
    assert decode_pod(json.dumps(pod).encode()) == expected, "placing it asks for no labels"
    assert read_pod(pod) == replace(expected, traits=PodTraits({"vm.neon.tech/name": "db"}))


def test_a_pending_pod_has_neither_node_nor_vm() -> None:
    pod = plain_pod("p")
    pod["spec"]["nodeName"] = ""
    del pod["status"]
    facts = read_pod(pod)
    assert (facts.node, facts.vm, facts.finished) == (None, None, False)


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        ({}, "metadata: "),
        ({"metadata": {"name": "p"}, "spec": 3}, "spec: "),
        ({"metadata": {"name": "p"}, "spec": {"containers": [container("-1")]}}, "spec.containers[0].resources"),
        ({"metadata": {"name": "p"}, "spec": {"initContainers": [container("x")]}}, "spec.initContainers[0]."),
        ({"metadata": {"name": "p"}, "spec": {"overhead": {"cpu": "x"}}}, "spec.overhead.cpu: "),
    ],
)
def test_non_pod_is_refused_with_path(obj: dict[str, Any], path: str) -> None:
    with pytest.raises(ValueError, match=f"^{path.replace('[', chr(92) + '[')}"):
        read_pod(obj)
    with pytest.raises(ValueError, match=f"^{path.replace('[', chr(92) + '[')}"):
        decode_pod(json.dumps(obj).encode())


def test_a_node_is_what_it_says_is_allocatable() -> None:
    expected = ClusterNode("n1", Resources.parse("10", "40Gi"), is_open=True)
    assert read_node(node("n1")) == expected == decode_node(json.dumps(node("n1")).encode())
    assert not read_node(node("n1", unschedulable=True)).is_open
    holds = {"capacity": {"cpu": "10", "memory": "40Gi"}}
    old = {"metadata": {"name": "n1"}, "status": holds}
    whole = Resources.parse("10", "40Gi")
    assert read_node(old) == replace(expected, capacity=whole)
    smaller = {**old, "status": {**holds, "allocatable": {"cpu": "9", "memory": "39Gi"}}}
    assert read_node(smaller) == replace(expected, allocatable=Resources.parse("9", "39Gi"), capacity=whole)
    assert read_node({"metadata": {"name": "n1"}}) == ClusterNode("n1", Resources.parse(0, 0), is_open=True)


@pytest.mark.parametrize("label", ["node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"])
def test_node_price_keys_and_accelerators(label: str) -> None:
    obj = node("n1")
    obj["metadata"]["labels"] = {label: "m5.xlarge", "karpenter.sh/nodepool": "cheap"}
    obj["status"]["allocatable"] |= {"nvidia.com/gpu": "2", "habana.ai/gaudi": 1, "vpc.amazonaws.com/pod-eni": "9"}
    found = read_node(obj)
    assert (found.price_keys, found.gpus) == (("cheap", "m5.xlarge"), 3)


def test_what_is_no_node_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^status\.allocatable\.cpu: "):
        read_node(node("n1", "many"))
    with pytest.raises(ValueError, match=r"^document: "):
        decode_node(b"{")


def test_a_vm_becomes_facts() -> None:
    obj = vm("db", 1, 4)
    obj["metadata"]["resourceVersion"] = "17"
    obj["status"] |= {"cpus": "750m", "memorySize": "3Gi"}
    expected = VmFacts(
        name=ObjectName("default", "db"),
        uid="vm-db",
        version=17,
        maximum=Resources.parse(8, "16Gi"),
        use=Resources.parse(1, "4Gi"),
        actual=Resources.parse("750m", "3Gi"),
        permit=None,
        pod=ObjectName("default", "db-pod"),
        first_requests=ZERO,
        limit=Resources.parse(8, "16Gi"),
    )
    assert vm_facts(read_vm(obj)) == expected


@pytest.mark.parametrize(
    ("resources", "first"),
    [
        ({}, Resources.parse(0, 0)),
        ({"podResources": {"requests": {"cpu": "100m"}}}, Resources.parse("100m", 0)),
        ({"podResources": {"requests": {"cpu": "100m", "memory": "1Gi"}}}, Resources.parse("100m", "1Gi")),
        ({"podResources": {"requests": {"cpu": "much"}}}, None),
    ],
)
def test_creation_requests_are_known(resources: dict[str, Any], first: Resources | None) -> None:
    obj = vm("db", 1, 4)
    obj["spec"] |= resources
    assert vm_facts(read_vm(obj)).first_requests == first


def test_podless_vm_with_opaque_version() -> None:
    obj = vm("db")
    obj["metadata"]["resourceVersion"] = "opaque"
    del obj["status"]
    facts = vm_facts(read_vm(obj))
    assert (facts.version, facts.pod) == (0, None)


def test_target_pod_names_its_migration() -> None:
    pod = vm_pod("db", "n2")
    owner = {"apiVersion": "vm.neon.tech/v1", "name": "db-7f3a", "uid": "m-1", "controller": True}
    pod["metadata"]["ownerReferences"] = [owner | {"kind": "VirtualMachineMigration"}]
    assert read_pod(pod).migration == ObjectName("default", "db-7f3a")
    pod["metadata"]["ownerReferences"] = [owner | {"kind": "VirtualMachine", "name": "db"}]
    assert read_pod(pod).migration is None


def test_a_pod_says_which_scheduler_places_it() -> None:
    assert read_pod(plain_pod("p")).scheduler == "autoscale-scheduler"
    assert not decode_pod(json.dumps(plain_pod("p") | {"spec": {"containers": []}}).encode()).scheduler
