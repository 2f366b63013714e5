"""Values that cannot be meant are refused, with the message that people see."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from scripts.manifests.__main__ import ROOT, helm
from scripts.manifests.rendering import CHART
from tests import plain_yaml
from tests.kubernetes.chart.test_chart import KUBE_VERSION, SIDECAR, named, objects, template

pytestmark = pytest.mark.kubernetes

AGENT = ("DaemonSet", "autoscaling-agent")
BY_CERT_MANAGER = {"provider": "cert-manager"}
NO_SCHEDULER = {"scheduler": {"enabled": False}}
OURS = "registry.example:5000/team/a.b"

TYPOS: dict[str, tuple[dict[str, Any], str]] = {
    "issuer": ({"certificates": {**BY_CERT_MANAGER, "issuer": {"nme": "corp"}}}, "'nme' not allowed"),
    "pull secret": ({"image": {"pullSecrets": [{"nam": "a"}]}}, "'nam' not allowed"),
    "pull secret as text": ({"image": {"pullSecrets": ["a"]}}, "got string, want object"),
    "toleration": ({"deployments": {"tolerations": [{"kye": "a"}]}}, "'kye' not allowed"),
    "affinity": ({"scheduler": {"affinity": {"nodeAfinity": {}}}}, "'nodeAfinity' not allowed"),
    "variable": ({"groups": {"env": [{"name": "A", "valu": "b"}]}}, "'valu' not allowed"),
    "security": ({"podSecurityContext": {"runAsUsr": 1}}, "'runAsUsr' not allowed"),
    "spread": ({"scheduler": {"topologySpreadConstraints": [{"maxSkew": 1}]}}, "missing properties"),
    "amount": ({"scheduler": {"resources": {"limits": {"memory": "1 Gi"}}}}, "/scheduler/resources/limits/memory"),
    "setting": ({"scheduler": {"settings": {"nodeDefalts": {}}}}, "nodeDefalts"),
    "setting in a section": ({"agent": {"policy": {"memory": {"targt": 0.5}}}}, "targt"),
    "injector's setting": ({"injector": {"settings": {"agent": {"schedulerURL": "http://a"}}}}, "schedulerURL"),
    "label": ({"commonLabels": {"team": "a b"}}, "/commonLabels/team"),
    "namespace": ({"agent": {"sidecar": {"namespaces": ["A"]}}}, "/agent/sidecar/namespaces/0"),
    "repository": ({"scheduler": {"image": {"repository": "a:1"}}}, "/scheduler/image/repository"),
    "tag": ({"kubeScheduler": {"image": {"tag": "v1.36.3 "}}}, "/kubeScheduler/image/tag"),
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "scheme": ({"image": {"registry": "https://a"}}, 'image.registry is "https://a": expected HOST[:PORT][/PATH]'),
    "slash": ({"global": {"imageRegistry": "a/"}}, 'global.imageRegistry is "a/": expected HOST'),
    "their scheme": ({"kubeScheduler": {"image": {"registry": "oci://a"}}}, 'kubeScheduler.image.registry is "oci'),
    "maxUnavailable 0": ({"agent": {"node": {"maxUnavailable": 0}}}, "so agents could not be upgraded"),
    "maxUnavailable 0%": ({"agent": {"node": {"maxUnavailable": "0%"}}}, "so agents could not be upgraded"),
    "maxUnavailable 101%": ({"agent": {"node": {"maxUnavailable": "101%"}}}, "/agent/node/maxUnavailable"),
    "reversed": ({"neonvm": {"addresses": "10.1.0.9-10.1.0.1"}}, "the first address is above the last"),
    "two networks": ({"neonvm": {"addresses": "10.1.0.9-10.2.0.1"}}, "both ends must be in the same /16"),
    "no address": ({"neonvm": {"addresses": "10.1.0.9-10.1.300.1"}}, "10.1.300.1 is not an IPv4 address"),
    "half an address": ({"neonvm": {"addresses": "10.1.0-10.1.9"}}, "10.1.0 is not an IPv4 address"),
    "history": ({"dashboard": {"history": {"size": "1Mi"}}}, "expected at least 16Mi"),
    "agents' namespace twice": ({"agent": {"sidecar": {"namespaces": ["a", "a"]}}}, "items at 0 and 1 are equal"),
    "policy's namespace twice": ({"neonvm": {"policy": {"namespaces": ["a", "a"]}}}, "items at 0 and 1 are equal"),
    "namespace without name": (
        {"neonvm": {"policy": {"namespaces": [""]}}},
        "namespaces contains an empty name",
    ),
    "variable twice": ({"groups": {"env": [{"name": "A"}, {"name": "A"}]}}, "groups.env sets A twice"),
    "the chart's variable": ({"scheduler": {"env": [{"name": "POD_IP", "value": "a"}]}}, "the chart sets it already"),
    "a label of VMs": ({"commonLabels": {"vm.neon.tech/name": "a"}}, "commonLabels has vm.neon.tech/name"),
    "a pod's label": (
        {"neonvm": {"devices": {"podLabels": {"autoscaling.neon.tech/endpoints": "a"}}}},
        "neonvm.devices.podLabels has autoscaling.neon.tech/endpoints",
    ),
}
CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "issuer and self": ({"certificates": {"issuer": {"name": "corp"}}}, "the issuer would not be used"),
    "issuer and http": (
        {"certificates": {**BY_CERT_MANAGER, "enabled": False, "issuer": {"name": "corp"}}},
        "certificates.enabled is false",
    ),
    "issuer without name": (
        {"certificates": {**BY_CERT_MANAGER, "issuer": {"kind": "ClusterIssuer"}}},
        "certificates.issuer has no name",
    ),
    "agents alone": (NO_SCHEDULER, "agent.node.enabled is true and scheduler.enabled is false"),
    "pods without a node's agent": (
        {"pods": {"enabled": True}, "agent": {"node": {"enabled": False}}},
        "pods.enabled is true and agent.node.enabled is false",
    ),
    "sidecars alone": (
        {**NO_SCHEDULER, "agent": SIDECAR},
        "sidecar.enabled is true and scheduler.enabled is false",
    ),
    "scheduler's settings twice": (
        {"scheduler": {"settings": {"permits": {}}, "existingConfigMap": "mine"}},
        "scheduler.settings and scheduler.existingConfigMap are both set",
    ),
    "policy twice": (
        {"agent": {"policy": {"cpu": {}}, "node": {"existingConfigMap": "mine"}}},
        "agent.policy and agent.node.existingConfigMap are both set",
    ),
    "history twice": (
        {"dashboard": {"history": {"prometheus": "http://a", "persistent": True}}},
        "with Prometheus, the dashboard records nothing",
    ),
    "policy without VMs": (
        {"neonvm": {"enabled": False, "policy": {"namespaces": ["a"]}}},
        "no NetworkPolicy would be created",
    ),
    "class without claim": ({"dashboard": {"history": {"storageClass": "fast"}}}, "but no claim is created"),
}


@pytest.mark.parametrize(("values", "said"), TYPOS.values(), ids=TYPOS)
def test_misspelled_values_are_rejected(values: dict[str, Any], said: str) -> None:
    done = template(values)
    assert (done.returncode != 0, said in done.stderr) == (True, True), done.stderr


@pytest.mark.parametrize(("values", "said"), [*WRONG.values(), *CONTRADICTIONS.values()], ids=[*WRONG, *CONTRADICTIONS])
def test_wrong_and_contradicting_values_are_refused(values: dict[str, Any], said: str) -> None:
    done = template(values)
    assert (done.returncode != 0, said in done.stderr) == (True, True), done.stderr


@pytest.mark.parametrize(
    "values",
    [
        {"image": {"registry": OURS}, "global": {"imageRegistry": "mirror/a"}},
        {"agent": {"node": {"maxUnavailable": 1}}, "neonvm": {"addresses": "10.1.0.9-10.1.0.9"}},
        {**NO_SCHEDULER, "agent": {"node": {"env": [{"name": "SCHEDULER_URL", "value": "http://a"}]}}},
        {**NO_SCHEDULER, "agent": SIDECAR, "injector": {"settings": {"agent": {"schedulerUrl": "http://a"}}}},
        {"certificates": {**BY_CERT_MANAGER, "issuer": {"name": "corp", "kind": "ClusterIssuer"}}},
        {"dashboard": {"history": {"size": "16Mi", "persistent": True, "storageClass": "fast"}}},
    ],
)
def test_values_near_refusals_are_rendered(values: dict[str, Any]) -> None:
    assert objects(values)


def test_node_agent_variables_are_unique() -> None:
    """Server-side apply refuses the whole DaemonSet; an operator may set any variable that the chart sets."""

    def variables(*names: str) -> list[str]:
        env = [{"name": name, "value": "a"} for name in names]
        done = template({"agent": {"node": {"env": env}}})
        if done.returncode:
            assert "each variable can be set once" in done.stderr
            return list(names)
        pods = [each for each in plain_yaml.load_all(done.stdout) if each and named(each) == AGENT]
        return [each["name"] for each in pods[0]["spec"]["template"]["spec"]["containers"][0]["env"]]

    for name in variables():
        assert variables(name).count(name) == 1, name


def test_kubernetes_without_patch_release_is_refused() -> None:
    """Argo CD passes major and minor alone, and kube-scheduler has no image of that tag."""
    done = template({}, "--kube-version=1.34")
    assert "no image kube-scheduler:v1.34. Set kubeScheduler.image.tag to the server version" in done.stderr
    for values in (
        {"kubeScheduler": {"image": {"tag": "v1.34.2"}}},
        {**NO_SCHEDULER, "agent": {"node": {"enabled": False}}},
    ):
        assert template(values, "--kube-version=1.34").returncode == 0


@pytest.mark.parametrize("version", ["v1.34.2-eks-113cf36", "v1.34.2-gke.1000", "v1.34.2+k3s1"])
def test_providers_versions_name_kubernetes_own_image(version: str) -> None:
    done = template({}, f"--kube-version={version}")
    assert "image: registry.k8s.io/kube-scheduler:v1.34.2\n" in done.stdout


@pytest.mark.parametrize(
    "missing",
    ["certificates", "neonvm.policy.enabled", "policies.network", "monitoring.dashboards", "test.image", "release"],
)
def test_reused_values_of_older_charts_are_refused(missing: str) -> None:
    """``--reuse-values`` puts the old chart's defaults in the place of the new one's. Templates would end with "nil
    pointer", or leave out what is installed by default.
    """
    command = [str(helm()), "template", "autoscale", str(ROOT / CHART), KUBE_VERSION, f"--set={missing}=null"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"missing values: {missing}" in done.stderr
    assert "upgrade with --reset-then-reuse-values instead" in done.stderr


@pytest.mark.parametrize(
    "values",
    [
        {"scheduler": {"resources": None}, "deployments": {"priorityClassName": None, "tolerations": None}},
        {"commonLabels": None, "commonAnnotations": None, "definitions": {"annotations": None}},
        {"monitoring": {"enabled": True, "runbooks": None, "labels": None, "dashboardLabels": None}},
        {"dashboard": {"enabled": True, "history": {"persistent": None, "labels": None}}},
        {"image": {"pullSecrets": None}, "injector": {"settings": None}, "certificates": {"issuer": None}},
    ],
)
def test_values_with_empty_defaults_may_be_null(values: dict[str, Any]) -> None:
    text = json.dumps(objects(values))
    assert ("nil" in text, "imagePullSecrets: null" in text) == (False, False)
