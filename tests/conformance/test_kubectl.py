"""kubectl, as people type it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conformance.cluster import Cluster, Json, definition, done

MANIFEST = """
apiVersion: v1
kind: ConfigMap
metadata: {name: a, labels: {app: x}}
data: {k: v, gone: soon}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: one, image: i, env: [{name: A, value: "1"}]}, {name: two, image: i}]}
"""


class Kubectl:
    """Runs kubectl in the test's namespace, without a garbage collector; all tests share a discovery cache."""

    def __init__(self, program: str, cluster: Cluster, directory: Path, cache: Path) -> None:
        self._program = program
        self._flags = ["--kubeconfig", str(cluster.kubeconfig), "--namespace", cluster.namespace]
        self._flags += ["--cache-dir", str(cache)]
        self._environment = {**os.environ, "HOME": str(directory), "GOGC": "off"}

    def command(self, *words: str) -> list[str]:
        return [self._program, *self._flags, *words]

    def tried(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            input=given,
            text=True,
            capture_output=True,
            timeout=30,
            env=self._environment,
            check=False,
        )

    def __call__(self, *words: str, given: str = "") -> str:
        ran = self.tried(*words, given=given)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def json(self, *words: str) -> Json:
        body: Json = json.loads(self(*words, "-o", "json"))
        return body

    def reading(self, *words: str) -> subprocess.Popen[str]:
        bounded = self.command(*words, "--request-timeout", "20s")
        return subprocess.Popen(bounded, stdout=subprocess.PIPE, text=True, env=self._environment)


@pytest.fixture
def kubectl(
    kubectl_program: str, cluster: Cluster, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Kubectl:
    return Kubectl(kubectl_program, cluster, tmp_path, tmp_path_factory.getbasetemp() / "kubectl-cache")


def test_apply_creates_changes_and_prunes(kubectl: Kubectl) -> None:
    first = kubectl("apply", "-f", "-", given=MANIFEST)
    again = kubectl("apply", "-f", "-", given=MANIFEST)
    changed = (
        MANIFEST.replace(", gone: soon", "").replace(", {name: two, image: i}", "").replace("image: i,", "image: j,")
    )
    third = kubectl("apply", "-f", "-", given=changed)
    assert first.split("\n")[:2] == ["configmap/a created", "deployment.apps/d created"]
    assert again.split("\n")[:2] == ["configmap/a unchanged", "deployment.apps/d unchanged"]
    assert third.split("\n")[:2] == ["configmap/a configured", "deployment.apps/d configured"]
    assert kubectl.json("get", "configmap", "a")["data"] == {"k": "v"}
    containers = kubectl.json("get", "deploy", "d")["spec"]["template"]["spec"]["containers"]
    assert [(one["name"], one["image"]) for one in containers] == [("one", "j")]


def test_apply_on_the_server(kubectl: Kubectl) -> None:
    kubectl("apply", "--server-side", "-f", "-", given=MANIFEST)
    refused = kubectl.tried(
        "apply", "--server-side", "--field-manager", "other", "-f", "-", given=MANIFEST.replace("k: v", "k: w")
    )
    assert refused.returncode != 0
    assert 'conflict with "kubectl": .data.k' in refused.stderr


def test_get_shows_columns_and_selects(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", given=MANIFEST)
    header, row = kubectl("get", "configmaps", "-l", "app=x").splitlines()
    assert header.split() == ["NAME", "DATA", "AGE"]
    assert row.split()[:2] == ["a", "2"]
    assert kubectl("get", "cm", "a", "-o", "jsonpath={.data.k}") == "v"
    assert "not found" in kubectl.tried("get", "cm", "absent").stderr


def test_patch_label_annotate_and_scale(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", given=MANIFEST)
    kubectl("patch", "cm", "a", "--type", "merge", "-p", '{"data":{"k":"w"}}')
    kubectl("patch", "cm", "a", "--type", "json", "-p", '[{"op":"remove","path":"/data/gone"}]')
    kubectl("patch", "deploy", "d", "-p", '{"spec":{"template":{"spec":{"containers":[{"name":"two","image":"k"}]}}}}')
    kubectl("label", "cm", "a", "new=label")
    kubectl("annotate", "cm", "a", "new=note")
    kubectl("scale", "deploy", "d", "--replicas", "3")
    changed, deployment = kubectl.json("get", "cm", "a"), kubectl.json("get", "deploy", "d")
    assert (changed["data"], changed["metadata"]["labels"]["new"]) == ({"k": "w"}, "label")
    assert changed["metadata"]["annotations"]["new"] == "note"
    images = {one["name"]: one["image"] for one in deployment["spec"]["template"]["spec"]["containers"]}
    assert (deployment["spec"]["replicas"], images) == (3, {"one": "i", "two": "k"})


def test_create_rejects_existing_and_delete_waits(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", given=MANIFEST)
    assert "already exists" in kubectl.tried("create", "-f", "-", given=MANIFEST).stderr
    kubectl("delete", "-f", "-", given=MANIFEST)
    assert "NotFound" in kubectl.tried("get", "cm", "a").stderr


def test_create_subcommands(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "a", "--from-literal", "k=v")
    kubectl("create", "secret", "generic", "s", "--from-literal", "k=v")
    kubectl("create", "serviceaccount", "robot")
    token = kubectl("create", "token", "robot", "--audience", "another", "--duration", "10m")
    assert kubectl.json("get", "cm", "a")["data"] == {"k": "v"}
    assert kubectl.json("get", "secret", "s")["data"] == {"k": "dg=="}
    assert len(token.split(".")) == 3


def test_get_watch_and_wait_follow(kubectl: Kubectl, cluster: Cluster) -> None:
    cluster.pod("p")
    with kubectl.reading("get", "pods", "--field-selector", "metadata.name=p", "-w", "--no-headers") as watching:
        assert watching.stdout is not None
        first = watching.stdout.readline().split()
        condition = {"type": "Ready", "status": "True"}
        status = {"status": {"phase": "Running", "conditions": [condition]}}
        done(cluster.patch(f"{cluster.path('pods', 'p')}/status", status))
        second = watching.stdout.readline().split()
        watching.terminate()
    assert (first[:3], second[:3]) == (["p", "0/1", "Pending"], ["p", "0/1", "Running"])
    assert "condition met" in kubectl("wait", "--for", "condition=Ready", "pod/p", "--timeout", "10s")
    assert "condition met" in kubectl("wait", "--for", "jsonpath={.status.phase}=Running", "pod/p", "--timeout", "10s")


@pytest.fixture
def crd(kubectl: Kubectl) -> Iterator[Json]:
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "description": "what a thing shall be",
                "properties": {"size": {"type": "integer", "minimum": 1, "description": "how large it is"}},
            }
        },
    }
    columns = [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]
    given = definition(schema={"openAPIV3Schema": schema}, additionalPrinterColumns=columns)
    kubectl("apply", "-f", "-", given=yaml.safe_dump(given))
    kubectl("wait", "--for", "condition=established", f"crd/{given['metadata']['name']}", "--timeout", "10s")
    yield given
    kubectl("delete", "crd", given["metadata"]["name"])


def test_custom_resources_are_like_any_other(kubectl: Kubectl, crd: Json) -> None:
    name = crd["metadata"]["name"]
    thing = {
        "apiVersion": f"{crd['spec']['group']}/v1",
        "kind": "Thing",
        "metadata": {"name": "a"},
        "spec": {"size": 3},
    }
    assert kubectl("apply", "-f", "-", given=yaml.safe_dump(thing)).strip().endswith("/a created")
    assert [line.split() for line in kubectl("get", name).splitlines()] == [["NAME", "SIZE"], ["a", "3"]]
    wrong = kubectl.tried("apply", "-f", "-", given=yaml.safe_dump({**thing, "spec": {"size": 3, "sise": 3}}))
    assert 'unknown field "spec.sise"' in wrong.stderr
    small = kubectl.tried("patch", name, "a", "--type", "merge", "-p", '{"spec":{"size":0}}')
    assert "should be greater than or equal to 1" in small.stderr
    explained = kubectl("explain", f"{name}.spec")
    assert "what a thing shall be" in explained
    assert "how large it is" in explained


@pytest.fixture
def node(kubectl: Kubectl) -> Iterator[str]:
    """A node of this test, which no kubelet has."""
    name = f"conformance-{os.getpid()}"
    kubectl("create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}))
    yield name
    kubectl("delete", "node", name)


def taints_of(kubectl: Kubectl, node: str) -> set[str]:
    """The taints of a person's own; a cluster may add others to a node without a kubelet."""
    found = json.loads(kubectl("get", "node", node, "-o", "json"))["spec"].get("taints") or []
    return {
        f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
        for taint in found
        if not taint["key"].startswith("node.kubernetes.io/")
    }


def test_nodes_are_tainted_labelled_and_cordoned(kubectl: Kubectl, node: str) -> None:
    kubectl("taint", "node", node, "gpu=yes:NoSchedule", "old:NoExecute")
    assert taints_of(kubectl, node) == {"gpu=yes:NoSchedule", "old=:NoExecute"}
    kubectl("taint", "node", node, "gpu=no:NoSchedule", "--overwrite")
    kubectl("taint", "node", node, "old-")
    assert taints_of(kubectl, node) == {"gpu=no:NoSchedule"}
    kubectl("label", "node", node, "zone=b")
    assert node in kubectl("get", "nodes", "-l", "zone=b", "-o", "name")
    kubectl("cordon", node)
    assert "SchedulingDisabled" in kubectl("get", "node", node, "--no-headers")
    kubectl("uncordon", node)
    assert "SchedulingDisabled" not in kubectl("get", "node", node, "--no-headers")
