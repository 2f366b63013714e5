"""A node whose kubelet is gone, and a node that is gone altogether."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.kubernetes.real_kubernetes import RealKubernetes, busybox_pod, eventually

pytestmark = pytest.mark.kubernetes


def readiness(cluster: RealKubernetes, node: str) -> str:
    conditions = cluster.get("node", node)["status"]["conditions"]
    return str(next(each for each in conditions if each["type"] == "Ready")["status"])


def test_node_is_not_ready_without_kubelet(cluster: RealKubernetes) -> None:
    assert cluster.autoscale("kubelet", "stop", "node-2").returncode == 0
    eventually(lambda: readiness(cluster, "node-2") == "Unknown", "node-2 is not ready")
    assert cluster.autoscale("kubelet", "start", "node-2").returncode == 0
    eventually(lambda: readiness(cluster, "node-2") == "True", "node-2 is ready again")


def test_killed_kubelet_restarts_and_pods_keep_running(cluster: RealKubernetes) -> None:
    cluster.apply(busybox_pod("stays", "sleep", "600", node="node-1"))
    cluster.wait("condition=Ready", "pod/stays")
    before = pid_of(cluster, "node-1 kubelet")
    os.kill(before, signal.SIGKILL)
    eventually(lambda: pid_of(cluster, "node-1 kubelet") not in {0, before}, "another kubelet")
    eventually(lambda: readiness(cluster, "node-1") == "True", "node-1 is ready")
    assert cluster.get("pod", "stays")["status"]["containerStatuses"][0]["restartCount"] == 0
    cluster.kubectl("delete", "pod/stays", "--wait=false")


def test_crashed_node_restarts_its_pods(cluster: RealKubernetes) -> None:
    cluster.apply(busybox_pod("again", "sleep", "600", node="node-2"))
    cluster.wait("condition=Ready", "pod/again")
    os.kill(pid_of(cluster, "node-2"), signal.SIGKILL)
    eventually(lambda: restarts(cluster, "again") == 1, "the pod has been started anew")
    cluster.wait("condition=Ready", "pod/again", "node/node-2")
    cluster.kubectl("delete", "pod/again", "--wait=false")


def restarts(cluster: RealKubernetes, pod: str) -> int:
    return int(cluster.get("pod", pod)["status"]["containerStatuses"][0]["restartCount"])


def pid_of(cluster: RealKubernetes, part: str) -> int:
    """The pid of one of the cluster's processes, from ``status``."""
    parts = json.loads(cluster.autoscale("status", "-o", "json").stdout)["parts"]
    return int(next((each["pid"] for each in parts if each["name"] == part), 0))
