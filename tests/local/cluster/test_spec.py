"""Specifications of clusters, and the resulting settings."""

from pathlib import Path

import msgspec
import pytest

from deploy.local.cluster.guests import IDLE, load_of, waves
from deploy.local.cluster.launch import launch
from deploy.local.cluster.progress import StepFailedError
from deploy.local.cluster.spec import ClusterSpec, SpecError
from deploy.local.kubelet.node_object import NodeSpec
from protocol.messages import ObjectName
from protocol.units import Resources, Seconds
from tests.local.cluster.living import folder_in

VM = ObjectName("default", "vm-1")


def test_nodes_are_numbered_and_alike() -> None:
    size = Resources.parse(4, "8Gi")
    spec = ClusterSpec(nodes=2, node_cpu="4", node_memory="8Gi")
    assert spec.node_specs == [NodeSpec("node-1", size), NodeSpec("node-2", size)]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (ClusterSpec(nodes=0), "at least one node"),
        (ClusterSpec(node_cpu="many"), "invalid node size"),
    ],
)
def test_impossible_nodes_are_refused(spec: ClusterSpec, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        _ = spec.node_specs


@pytest.mark.parametrize(
    ("spec", "form"),
    [
        (ClusterSpec(), "sidecar"),
        (ClusterSpec(guests="simulated", vms=8), "sidecar"),
        (ClusterSpec(guests="simulated", vms=9), "node"),
        (ClusterSpec(guests="simulated", vms=9, agents="sidecar"), "sidecar"),
        (ClusterSpec(guests="simulated", agents="node"), "node"),
    ],
)
def test_sidecars_up_to_a_limit(spec: ClusterSpec, form: str) -> None:
    assert spec.agent_form[0] == form


@pytest.mark.parametrize("size", [{"node_cpu": "0"}, {"node_memory": "0"}])
def test_a_node_has_cpu_and_memory(size: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="expected CPU and memory above zero, got "):
        _ = msgspec.structs.replace(ClusterSpec(), **size).node_specs


def test_agents_per_node_cannot_reach_real_guests() -> None:
    with pytest.raises(SpecError, match="--agents sidecar"):
        _ = ClusterSpec(agents="node").agent_form


def test_a_load_is_idle_waves_or_a_recording(tmp_path: Path) -> None:
    assert load_of("")(VM) == load_of("idle")(VM) == IDLE
    shifted = [load_of("waves")(ObjectName("default", f"vm-{number}")).at(Seconds(0.0)) for number in range(9)]
    assert len(set(shifted)) > 1
    (tmp_path / "from a spreadsheet.csv").write_text("seconds,cpu_cores\n0,2\n", encoding="utf-8-sig")
    assert load_of(str(tmp_path / "from a spreadsheet.csv"))(VM).at(Seconds(0.0)).cpu == 2
    with pytest.raises(StepFailedError, match="not idle, waves or a readable recording"):
        load_of("/no/such/file")
    (tmp_path / "binary.csv").write_bytes(b"\xff")
    with pytest.raises(StepFailedError, match="not idle, waves or a readable recording"):
        load_of(str(tmp_path / "binary.csv"))


def test_waves_exceed_two_cores() -> None:
    demands = [waves(0).at(Seconds(float(at))).cpu for at in range(0, 180, 5)]
    assert (demands[0], max(demands) > 2.0, demands[-1]) == (0.02, True, 0.02)


def test_a_folder_keeps_what_was_asked_for(tmp_path: Path) -> None:
    folder = folder_in(tmp_path, "kept")
    assert (folder.exists(), folder.is_running(), folder.owner()) == (False, False, None)
    folder.write_spec(ClusterSpec(vms=7))
    assert folder.read_spec() == ClusterSpec(vms=7)
    folder.remove()
    assert not folder.exists()


async def test_impossible_cluster_leaves_no_folder(tmp_path: Path) -> None:
    folder = folder_in(tmp_path, "never")
    with pytest.raises(SpecError, match="a node taint must be"):
        await launch(folder, ClusterSpec(node_taints=["node-1=gpu"]), attached=True)
    assert not folder.root.exists()


def test_nodes_get_labels_and_taints() -> None:
    spec = ClusterSpec(
        node_labels=["node-2=zone=b", "node-2=example.com/disk="],
        node_taints=["node-1=gpu=yes:NoSchedule", "node-1=old:NoExecute"],
    )
    first, second = spec.node_specs
    assert (dict(first.labels), dict(second.labels)) == ({}, {"zone": "b", "example.com/disk": ""})
    gpu, old = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}, {"key": "old", "effect": "NoExecute"}
    assert (first.taints, second.taints) == ((gpu, old), ())


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (ClusterSpec(node_labels=["zone=b"]), "NODE=KEY=VALUE"),
        (ClusterSpec(node_labels=["node-1=a b=c"]), "NODE=KEY=VALUE"),
        (ClusterSpec(node_labels=["node-1=a..b/zone=b"]), "NODE=KEY=VALUE"),
        (ClusterSpec(node_labels=["node-1=/zone=b"]), "NODE=KEY=VALUE"),
        (ClusterSpec(node_labels=["node-9=zone=b"]), "no node 'node-9'; the nodes are node-1, node-2"),
        (ClusterSpec(node_taints=["node-1=gpu"]), "NODE=KEY"),
        (ClusterSpec(node_taints=["node-1=-.a/gpu:NoSchedule"]), "NODE=KEY"),
        (ClusterSpec(node_taints=["node-1=gpu:Never"]), "NoSchedule, PreferNoSchedule, NoExecute"),
        (ClusterSpec(node_taints=["node-9=gpu:NoSchedule"]), "no node 'node-9'"),
    ],
)
def test_bad_labels_and_taints_are_refused(spec: ClusterSpec, problem: str) -> None:
    with pytest.raises(SpecError, match=problem.replace("[", r"\[")):
        _ = spec.node_specs


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (ClusterSpec(kubernetes="1.20"), r"--kubernetes-version must be 1\.36 or 1\.35, not '1\.20'"),
        (ClusterSpec(kubernetes="1.36", nodes=51), "a real Kubernetes can have at most 50 nodes, not 51"),
        (ClusterSpec(kubernetes="1.36", vms=3), "a real Kubernetes starts empty"),
        (ClusterSpec(kubernetes="1.36", guests="simulated"), "a real Kubernetes starts empty"),
        (ClusterSpec(kubernetes="1.36", add_ons=["keda"]), "--with must be vertical-pod-autoscaler, not 'keda'"),
        (ClusterSpec(add_ons=["vertical-pod-autoscaler"]), "--with needs --kubernetes"),
        (ClusterSpec(load="waves"), "--load needs --guests simulated: real guests have the load of their clients"),
    ],
)
def test_cluster_that_cannot_be_is_refused(spec: ClusterSpec, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        spec.check()


def test_two_kubernetes_versions_are_supported() -> None:
    ClusterSpec(kubernetes="1.36", nodes=50).check()
    ClusterSpec(kubernetes="1.35", add_ons=["vertical-pod-autoscaler"]).check()
