"""The chart as other people's pipelines render it: Argo CD, Flux, OpenShift, a registry behind a password."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from scripts.manifests.__main__ import ROOT, helm
from scripts.manifests.rendering import CHART
from tests import plain_yaml
from tests.kubernetes.chart.test_chart import ALL, KUBE_VERSION, objects, template, workload
from tests.kubernetes.real_kubernetes import kubectl_program

pytestmark = pytest.mark.kubernetes

OF_CHART: Final = {
    "app.kubernetes.io/name": "theirs",
    "app.kubernetes.io/managed-by": "theirs",
    "app.kubernetes.io/part-of": "platform",
    "kubernetes.io/service-name": "theirs",
    "helm.sh/chart": "theirs",
    "team": "db",
}
"""Labels of which the chart sets all but one itself."""

EVERYTHING: Final[dict[str, Any]] = {
    **ALL,
    "expander": {"enabled": True},
    "monitoring": {"enabled": True, "labels": {"team": "metrics"}},
}
OPENSHIFT: Final[dict[str, Any]] = {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}


def workloads(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {each["metadata"]["name"]: each["spec"] for each in objects(values) if "template" in each.get("spec", {})}
    return {name: spec for name, spec in found.items() if "selector" in spec}


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec["template"]["spec"]["containers"]
    return found


@pytest.fixture
def kustomized(tmp_path: Path) -> Path:
    """A post-renderer that does what Flux does with ``spec.postRenderers``: kustomize reads all and adds a label."""
    change = {
        "resources": ["all.yaml"],
        "labels": [{"pairs": {"toolkit.fluxcd.io/name": "a"}, "includeTemplates": True}],
    }
    (tmp_path / "kustomization.yaml").write_text(json.dumps(change))
    program = tmp_path / "post-render"
    program.write_text(f"#!/bin/sh\ncat >{tmp_path}/all.yaml\nexec {kubectl_program()} kustomize {tmp_path}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("labels", [{}, OF_CHART])
def test_flux_post_renderer_accepts_all_labels(kustomized: Path, labels: dict[str, str]) -> None:
    """kustomize refuses a key that occurs twice, which YAML forbids and Helm accepts."""
    values = {**EVERYTHING, "commonLabels": labels, "scheduler": {"podLabels": labels}}
    done = template(values, f"--post-renderer={kustomized}")
    assert done.returncode == 0, done.stderr
    found = [each for each in plain_yaml.load_all(done.stdout) if each]
    rendered = [each for each in found if "helm.sh/hook" not in each["metadata"].get("annotations", {})]
    assert {each["metadata"]["labels"]["toolkit.fluxcd.io/name"] for each in rendered} == {"a"}
    assert len(found) == len(objects(values))


def test_selectors_override_common_labels() -> None:
    values = {**EVERYTHING, "commonLabels": OF_CHART, "scheduler": {"podLabels": OF_CHART}}
    for name, spec in workloads(values).items():
        labels = spec["template"]["metadata"]["labels"]
        assert labels.items() >= spec["selector"]["matchLabels"].items() >= {("app.kubernetes.io/name", name)}
        assert (labels["team"], labels["app.kubernetes.io/part-of"]) == ("db", "platform")
    for each in objects(values):
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm", "or Helm would not own it"
        if each["kind"] == "EndpointSlice":
            assert labels["kubernetes.io/service-name"] == each["metadata"]["name"]
        if each["kind"] == "PodMonitor":
            assert labels["team"] == "metrics"


def test_argo_cd_renders_with_version_of_kube_scheduler() -> None:
    """It passes major and minor alone, and leaves EndpointSlices out by default: the leader may make them."""
    values = {"kubeScheduler": {"image": {"tag": "v1.34.2"}}}
    done = template(values, "--kube-version=1.34", "--include-crds", "--api-versions=v1")
    assert done.returncode == 0, done.stderr
    found = [each for each in plain_yaml.load_all(done.stdout) if each]
    used = {
        container["image"] for each in found if each["kind"] == "Deployment" for container in containers(each["spec"])
    }
    assert "registry.k8s.io/kube-scheduler:v1.34.2" in used
    (role,) = (each for each in found if (each["kind"], each["metadata"]["name"]) == ("Role", "autoscaling-scheduler"))
    made = [each["resources"] for each in role["rules"] if each["verbs"] == ["create"]]
    assert ["endpointslices"] in made


def test_webhook_is_at_the_documented_port() -> None:
    """A private GKE cluster opens the ports that a document names."""
    found = {each["kind"]: each for each in objects(ALL)}
    (hook,) = found["MutatingWebhookConfiguration"]["webhooks"]
    assert (hook["clientConfig"]["service"]["port"], hook["failurePolicy"]) == (10293, "Ignore")
    assert "--allow=tcp:10293" in (ROOT / "docs/install.md").read_text()


def test_controller_sidecars_need_no_webhook() -> None:
    """EKS with an overlay network: agents on nodes need none, and pods that our controller makes have their agents."""
    assert "MutatingWebhookConfiguration" not in {each["kind"] for each in objects({})}
    assert "--sidecar=/etc/neonvm-controller/pod.yaml" in arguments("neonvm-controller", ALL)
    found = {each["kind"]: each for each in objects(ALL)}
    (hook,) = found["MutatingWebhookConfiguration"]["webhooks"]
    assert "has-no-agent" in {each["name"] for each in hook["matchConditions"]}, "so that it is not asked about them"


def test_openshift_assigns_users_and_groups() -> None:
    """restricted-v2 refuses ids out of the range of the namespace; without any it fills them in."""
    root = {"neonvm-network", "neonvm-devices"}
    for name, spec in workloads({**EVERYTHING, **OPENSHIFT}).items():
        pod = spec["template"]["spec"]["securityContext"]
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod.keys() & {"runAsUser", "runAsGroup", "fsGroup"}
        if name not in root:
            assert pod["runAsNonRoot"]
            assert not any("runAsUser" in each["securityContext"] for each in containers(spec))


def test_openshift_settings_apply_to_later_pods() -> None:
    found = {each["metadata"]["name"]: each for each in objects({**ALL, **OPENSHIFT}) if each["kind"] == "ConfigMap"}
    settings = plain_yaml.load(found["autoscaling-injector-config"]["data"]["settings.yaml"])
    part = plain_yaml.load(found["autoscaling-agent-sidecar"]["data"]["pod.yaml"])
    securities = [settings["agent"]["securityContext"], part["spec"]["containers"][0]["securityContext"]]
    assert [(each["runAsNonRoot"], "runAsUser" in each) for each in securities] == [(True, False)] * 2
    (argument,) = (each for each in arguments("neonvm-controller", OPENSHIFT) if each.startswith("--pod-security="))
    assert json.loads(argument.partition("=")[2]) == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@pytest.mark.parametrize(
    "module",
    ["agent", "scheduler_plugin", "scheduler_plugin.injector", "deploy.neonvm.service", "deploy.neonvm.runner"],
)
def test_programs_run_as_arbitrary_users(module: str) -> None:
    """OpenShift's users are in no /etc/passwd, and have no home."""
    program = ["setpriv", "--reuid=1000730000", "--regid=0", "--clear-groups", sys.executable, "-m", module, "--help"]
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def arguments(name: str, values: dict[str, Any]) -> list[str]:
    found: list[str] = workload(values, name)["spec"]["containers"][0]["args"]
    return found


def test_selinux_labels_are_values() -> None:
    """neonvm-devices reaches the kubelet's folder on a node that enforces SELinux by a type that may."""
    label = {"type": "container_device_plugin_t"}
    values = {
        "neonvm": {
            "devices": {"securityContext": {"seLinuxOptions": label}},
            "runner": {"podSecurityContext": {"seLinuxOptions": {"level": "s0:c1,c2"}}},
        },
        "scheduler": {"podSecurityContext": {"runAsUser": 1000, "fsGroup": None}},
    }
    (devices,) = workload(values, "neonvm-devices")["spec"]["containers"]
    assert devices["securityContext"] == {
        "seLinuxOptions": label,
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    scheduler = workload(values, "autoscaling-scheduler")["spec"]["securityContext"]
    assert (scheduler["runAsUser"], "fsGroup" in scheduler) == (1000, False)
    assert "s0:c1,c2" in "".join(arguments("neonvm-controller", values))
    assert workload(values, "autoscaling-agent")["spec"]["securityContext"]["runAsUser"] == 65532


def test_pull_secrets_apply_to_later_pods() -> None:
    values = {**EVERYTHING, "image": {"pullSecrets": [{"name": "pull"}]}}
    for spec in workloads(values).values():
        assert spec["template"]["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    found = objects(values)
    accounts = [each for each in found if (each["kind"], each["metadata"]["name"]) == ("ServiceAccount", "vm-agent")]
    assert [each.get("imagePullSecrets") for each in accounts] == [[{"name": "pull"}]] * 2
    assert "--pull-secret=pull" in arguments("neonvm-controller", values)
    (settings,) = (each for each in found if each["metadata"]["name"] == "autoscaling-injector-config")
    agent = plain_yaml.load(settings["data"]["settings.yaml"])["agent"]
    assert agent["imagePullSecrets"] == [{"name": "pull"}]
    (hook,) = (each for each in found if each["kind"] == "Pod")
    assert hook["spec"]["imagePullSecrets"] == [{"name": "pull"}]


def test_each_pod_is_scraped_once() -> None:
    """A pod with annotations and a PodMonitor is two targets, and its series count twice."""

    def annotated(values: dict[str, Any]) -> set[str]:
        found = workloads(values).items()
        return {name for name, spec in found if "prometheus.io/scrape" in str(spec["template"]["metadata"])}

    monitored = EVERYTHING
    bare = {**EVERYTHING, "monitoring": {"enabled": False}}
    assert annotated(monitored) == set()
    scraped = {"autoscaling-scheduler", "autoscaling-injector", "autoscaling-groups", "autoscaling-dashboard"}
    assert annotated(bare) == {*scraped, "autoscaling-expander", "neonvm-controller", "neonvm-devices"}
    monitors = {each["metadata"]["name"] for each in objects(monitored) if each["kind"].endswith("Monitor")}
    assert monitors >= annotated(bare)
    command = [str(helm()), "lint", str(ROOT / CHART), "--strict", KUBE_VERSION, "--values=-"]
    done = subprocess.run(command, input=json.dumps(monitored), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
