"""The settings of a node's programs, read as those programs read them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import yaml

from deploy.local.kubernetes.plan import arguments
from deploy.local.kubernetes.plan.cluster_plan import (
    API_SERVICE,
    COREDNS_IMAGE,
    DNS_SERVICE,
    DOMAIN,
    METRICS_SERVER_IMAGE,
    PAUSE_IMAGE,
    NodePlan,
    node_size,
)
from deploy.local.kubernetes.plan.node_settings import (
    cni_settings,
    containerd_settings,
    kube_proxy_settings,
    kubelet_settings,
    node_files,
)
from protocol.units import Resources
from tests.local.kubernetes.sample_plan import FIRST, MACHINE, PLAN, SECOND

MANIFESTS = Path(__file__).parents[3] / "deploy" / "local" / "kubernetes" / "manifests"


def test_kubelet_reserves_rest_of_machine() -> None:
    first, second = (yaml.safe_load(kubelet_settings(PLAN, node)) for node in (FIRST, SECOND))
    assert first["systemReserved"] == {"cpu": "0", "memory": "0"}
    assert second["systemReserved"] == {"cpu": "2500m", "memory": "6Gi"}
    assert (second["address"], second["cgroupRoot"]) == ("10.100.0.12", "/autoscale.shop/node-2")


def test_node_can_be_shown_more_cpus() -> None:
    large = NodePlan("node-1", 1, Resources.parse("6500m", "8Gi"), {}, ())
    assert (node_files(PLAN, large)["cpus"], node_files(PLAN, SECOND)["cpus"]) == ("7\n", "4\n")
    assert yaml.safe_load(kubelet_settings(PLAN, large))["systemReserved"] == {"cpu": "500m", "memory": "0"}


def test_node_offer_is_limited_by_machine() -> None:
    asked = Resources.parse("8", "16Gi")
    assert node_size(asked, MACHINE, overcommit_cpus=True) == Resources.parse("8", "8Gi")
    assert node_size(asked, MACHINE, overcommit_cpus=False) == MACHINE


def test_kubelet_admits_only_api_server_callers() -> None:
    settings = yaml.safe_load(kubelet_settings(PLAN, FIRST))
    assert settings["authentication"]["anonymous"] == {"enabled": False}
    assert settings["authentication"]["webhook"] == {"enabled": True}
    assert settings["authorization"] == {"mode": "Webhook"}
    assert settings["readOnlyPort"] == 0


def test_sandbox_image_is_pinned() -> None:
    plugins = tomllib.loads(containerd_settings())["plugins"]
    assert plugins["io.containerd.cri.v1.images"]["pinned_images"] == {"sandbox": PAUSE_IMAGE}
    runtime = plugins["io.containerd.cri.v1.runtime"]
    assert (runtime["restrict_oom_score_adj"], runtime["disable_apparmor"]) == (True, True)


def test_pods_get_addresses_of_their_nodes_subnet() -> None:
    plugin = json.loads(cni_settings(SECOND))["plugins"][0]
    assert (plugin["type"], plugin["ipam"]["ranges"]) == ("ptp", [[{"subnet": "10.244.2.0/24"}]])


def test_kube_proxy_leaves_the_machines_connection_tracking_alone() -> None:
    settings = yaml.safe_load(kube_proxy_settings(FIRST))
    assert settings["mode"] == "nftables"
    assert settings["conntrack"] == {
        "maxPerCore": 0,
        "min": 0,
        "tcpEstablishedTimeout": "0s",
        "tcpCloseWaitTimeout": "0s",
    }


def test_command_lines_use_existing_files() -> None:
    written = {*node_files(PLAN, FIRST), "kubelet.kubeconfig", "kube-proxy.kubeconfig"}
    lines = [*arguments.kubelet(FIRST), *arguments.kube_proxy(), *arguments.containerd()]
    named = {line.rpartition("/run/autoscale/node/")[2] for line in lines if "/run/autoscale/node/" in line}
    assert named <= written


def test_control_plane_listens_inside_namespace() -> None:
    lines = [
        *arguments.etcd("/data"),
        *arguments.api_server("/pki"),
        *arguments.controller_manager("/pki"),
        *arguments.scheduler("/pki"),
    ]
    assert [line for line in lines if "0.0.0.0" in line] == []
    binds = {line.partition("=")[2] for line in lines if line.startswith(("--bind-address", "--listen-client-urls"))}
    assert binds == {"10.100.0.1", "127.0.0.1", "http://127.0.0.1:2379"}


def test_the_manifests_agree_with_the_plan() -> None:
    texts = {path.name: path.read_text() for path in MANIFESTS.glob("*.yaml")}
    assert f"clusterIP: {DNS_SERVICE}" in texts["coredns.yaml"]
    assert f"kubernetes {DOMAIN} " in texts["coredns.yaml"]
    assert f"image: {COREDNS_IMAGE}\n" in texts["coredns.yaml"]
    assert f"image: {METRICS_SERVER_IMAGE}\n" in texts["metrics-server.yaml"]
    assert API_SERVICE.rpartition(".")[0] == DNS_SERVICE.rpartition(".")[0]
