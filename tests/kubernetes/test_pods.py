"""Pods on two nodes: they run, reach each other by address and by name, and kubectl reaches them."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.kube.client import client_from_kubeconfig
from deploy.local.kubernetes.programs.images import APPLETS, ProgramImage, write_image
from protocol.kubernetes.api import ApiRefusedError
from protocol.messages import ObjectName
from tests.kubernetes.real_kubernetes import VERSION, RealKubernetes, busybox_pod, eventually

pytestmark = pytest.mark.kubernetes
NODES = ("node-1", "node-2")
SERVE = ("sh", "-c", "echo serving; mkdir -p /www; hostname > /www/index.html; exec httpd -f -v -p 8080 -h /www")
RESTRICTED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def servers(cluster: RealKubernetes) -> Iterator[RealKubernetes]:
    """The cluster with a server on each node, and a Service for each."""
    services = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
        }
        for name in ("one", "two")
    ]
    pods = [busybox_pod(name, *SERVE, node=node) for name, node in (("one", "node-1"), ("two", "node-2"))]
    cluster.apply(*pods, *services)
    cluster.wait("condition=Ready", "pod/one", "pod/two")
    yield cluster
    cluster.kubectl("delete", "pod/one", "pod/two", "service/one", "service/two", "--wait=false")


def fetched(cluster: RealKubernetes, pod: str, host: str) -> str:
    return cluster.kubectl("exec", pod, "--", "wget", "-q", "-O", "-", f"http://{host}").strip()


def test_nodes_are_ready_at_pinned_version(cluster: RealKubernetes) -> None:
    nodes = cluster.get("nodes")["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["node-1", "node-2"]
    for node in nodes:
        ready = next(each for each in node["status"]["conditions"] if each["type"] == "Ready")
        assert ready["status"] == "True"
        assert node["status"]["nodeInfo"]["kubeletVersion"].startswith(f"v{VERSION}.")


def test_pods_reach_each_other_across_nodes(servers: RealKubernetes) -> None:
    addresses = {pod: servers.get("pod", pod)["status"]["podIP"] for pod in ("one", "two")}
    assert fetched(servers, "one", f"{addresses['two']}:8080") == "two"
    assert fetched(servers, "two", f"{addresses['one']}:8080") == "one"
    assert fetched(servers, "one", "two.default.svc.cluster.local") == "two"
    assert fetched(servers, "two", "one") == "one"


def test_pod_reaches_itself_through_service(servers: RealKubernetes) -> None:
    """Responses of a neighbour on the same node must pass through the node, which translated the address."""
    servers.apply(busybox_pod("beside", "sleep", "600", node="node-1"))
    servers.wait("condition=Ready", "pod/beside")
    service = servers.get("service", "one")["spec"]["clusterIP"]
    assert fetched(servers, "beside", service) == "one"
    assert fetched(servers, "one", service) == "one"
    servers.kubectl("delete", "pod/beside", "--wait=false")


def test_kubectl_shows_logs_runs_commands_and_forwards_ports(servers: RealKubernetes) -> None:
    assert servers.kubectl("logs", "two").startswith("serving\n")
    assert servers.kubectl("exec", "--stdin", "two", "--", "cat", typed="said\n") == "said\n"
    with forwarded(servers, "pod/two", 8080) as port:
        answer = urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=10)
        assert answer.read().strip() == b"two"


@contextmanager
def forwarded(cluster: RealKubernetes, target: str, port: int) -> Iterator[int]:
    command = cluster.kubectl_command("port-forward", target, f":{port}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+) ->", process.stdout.readline())
            assert found is not None
            yield int(found[1])
        finally:
            process.terminate()


def test_kubectl_shows_what_nodes_and_pods_use(servers: RealKubernetes) -> None:
    eventually(lambda: servers.try_kubectl("top", "pod", "two").returncode == 0, "figures of a pod")
    assert "two" in servers.kubectl("top", "pod", "two")
    assert "node-2" in servers.kubectl("top", "node")


def test_a_pod_is_resized_in_place(cluster: RealKubernetes) -> None:
    sizes = {"requests": {"cpu": "200m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "32Mi"}}
    cluster.apply(busybox_pod("grows", "sleep", "600", resources=sizes))
    cluster.wait("condition=Ready", "pod/grows")
    larger = '{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"400m"},"limits":{"cpu":"400m"}}}]}}'
    cluster.kubectl("patch", "pod", "grows", "--subresource=resize", f"--patch={larger}")

    def status() -> Any:
        return cluster.get("pod", "grows")["status"]["containerStatuses"][0]

    eventually(lambda: bool(status()["resources"]["limits"]["cpu"] == "400m"), "the larger limit")
    assert status()["restartCount"] == 0
    cluster.kubectl("delete", "pod/grows", "--wait=false")


def test_restricted_namespace_rejects_other_pods(cluster: RealKubernetes) -> None:
    cluster.kubectl("create", "namespace", "restricted")
    cluster.kubectl("label", "namespace", "restricted", "pod-security.kubernetes.io/enforce=restricted")
    placed = {"namespace": "restricted"}
    good = busybox_pod("good", "sleep", "600", securityContext=RESTRICTED)
    cluster.apply({**good, "metadata": {**good["metadata"], **placed}})
    cluster.wait("condition=Ready", "pod/good", namespace="restricted")
    refused = cluster.try_kubectl(
        "--namespace=restricted", "run", "bad", "--image=localhost/busybox:1", "--privileged", "--", "sleep", "1"
    )
    assert refused.returncode != 0
    assert 'violates PodSecurity "restricted:latest"' in refused.stderr
    cluster.kubectl("delete", "namespace", "restricted", "--wait=false")


def test_kubelet_changes_only_its_node(cluster: RealKubernetes) -> None:
    its_own = cluster.folder / "kubernetes" / "nodes" / "node-1" / "node" / "kubelet.kubeconfig"
    as_kubelet = (f"--server={server_for_people(cluster)}", "label", "node")
    allowed = cluster.try_kubectl(*as_kubelet, "node-1", "tested=yes", kubeconfig=its_own)
    refused = cluster.try_kubectl(*as_kubelet, "node-2", "tested=yes", kubeconfig=its_own)
    assert (allowed.returncode, allowed.stderr) == (0, "")
    assert "forbidden" in refused.stderr


def server_for_people(cluster: RealKubernetes) -> str:
    return cluster.kubectl("config", "view", "--output=jsonpath={.clusters[0].cluster.server}")


def test_pod_token_belongs_to_its_account(cluster: RealKubernetes) -> None:
    token = cluster.kubectl("create", "token", "default").strip()
    said = cluster.kubectl("auth", "whoami", f"--token={token}", kubeconfig=without_login(cluster))
    assert "system:serviceaccount:default:default" in said


def without_login(cluster: RealKubernetes) -> Path:
    """People's kubeconfig without the token that it shows."""
    plain = cluster.home / "without-login"
    plain.write_text(re.sub(r"^    token: .*$", "    token: ''", cluster.kubeconfig.read_text(), flags=re.MULTILINE))
    return plain


def test_loaded_image_is_on_every_node(cluster: RealKubernetes, tmp_path: Path) -> None:
    busybox = shutil.which("busybox")
    assert busybox is not None
    write_image(ProgramImage("localhost/loaded:1", Path(busybox), APPLETS), tmp_path / "loaded.tar", lambda _: None)
    done = cluster.autoscale("load", str(tmp_path / "loaded.tar"))
    assert (done.returncode, done.stderr) == (0, "")
    pods = {node: busybox_pod(f"loaded-on-{node}", "true", node=node, image="localhost/loaded:1") for node in NODES}
    cluster.apply(*({**pod, "spec": {**pod["spec"], "restartPolicy": "Never"}} for pod in pods.values()))
    names = [f"pod/loaded-on-{node}" for node in NODES]
    cluster.wait("jsonpath={.status.phase}=Succeeded", *names)
    cluster.kubectl("delete", *names, "--wait=false")


def test_port_forward_arrives_at_pod_loopback(servers: RealKubernetes) -> None:
    """As ``autoscale explain`` asks our programs: by the API server's WebSocket, with a person's client certificate."""

    async def asked(pod: str) -> bytes:
        async with client_from_kubeconfig(servers.kubeconfig) as client:
            return await client.pod_get(ObjectName("default", pod), 8080, "/")

    assert [asyncio.run(asked(pod)).strip() for pod in ("one", "two")] == [b"one", b"two"]
    assert "127.0.0.1" in servers.kubectl("logs", "two").splitlines()[-1]
    with pytest.raises(ApiRefusedError, match='pods "none" not found'):
        asyncio.run(asked("none"))
