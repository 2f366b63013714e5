"""Helm's output for the chart, values that it rejects, and the verdict of a real API server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from scripts.manifests.__main__ import ROOT, helm, rendered
from scripts.manifests.rendering import CHART, PLAIN
from tests import plain_yaml
from tests.deploy.manifests import POLICIES, WITH_CERTIFICATES, documents
from tests.kubernetes.adoption.release import NAMESPACE, Release
from tests.kubernetes.real_kubernetes import RealKubernetes

pytestmark = pytest.mark.kubernetes

KUBE_VERSION = "--kube-version=v1.36.3"
"""``helm template`` asks no cluster for its version."""

SIDECAR = {"node": {"enabled": False}, "sidecar": {"enabled": True, "namespaces": ["a", "b"]}}
ALL = {
    "agent": SIDECAR,
    "dashboard": {"enabled": True},
    "groups": {"enabled": True},
    "neonvm": {"policy": {"namespaces": ["a"]}},
    "policies": {"enabled": True},
}
OWN_TOLERATIONS = [{"key": "dedicated", "operator": "Exists"}]
EXTRAS = {
    "commonLabels": {"team": "db"},
    "commonAnnotations": {"owner": "db"},
    "image": {"registry": "registry.example:5000/neon", "tag": "1.2.3", "pullSecrets": [{"name": "pull"}]},
    "scheduler": {
        "env": [{"name": "A", "value": "b"}],
        "extraArgs": ["--log-level=debug"],
        "tolerations": OWN_TOLERATIONS,
        "podLabels": {"x": "y"},
        "nodeSelector": {"zone": "a"},
        "settings": {"nodeDefaults": {"computeUnit": {"vCPUs": "1"}}},
        "image": {"digest": f"sha256:{'0' * 64}"},
    },
}
ALONE = {"certificates": {"enabled": False}}
VALUES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "all components": ALL,
    "without certificates": {**ALONE, "agent": SIDECAR},
    "beside NeonVM": {"neonvm": {"enabled": False}},
    "with extras": EXTRAS,
    "with a quota": {"priorityQuota": True},
    "with the page": {"dashboard": {"enabled": True, "history": {"persistent": True}}},
    "with pods": {"pods": {"enabled": True}},
    "scheduler alone": {"agent": {"node": {"enabled": False}}, "neonvm": {"enabled": False}},
}


OF_RUNNERS = {f"neonvm-runners{part}" for part in ("", "-controller", "-agent")}
"""The Secrets that the controller of VMs fills, with certificates or without."""


def template(values: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
    command = [str(helm()), "template", "autoscale", str(ROOT / CHART), "--namespace=ours", KUBE_VERSION]
    return subprocess.run(
        [*command, "--values=-", *more], input=json.dumps(values), capture_output=True, text=True, check=False
    )


def objects(values: dict[str, Any], *more: str) -> list[dict[str, Any]]:
    """The objects rendered with these values."""
    done = template(values, *more)
    assert done.returncode == 0, done.stderr
    return [each for each in plain_yaml.load_all(done.stdout) if each]


def named(each: dict[str, Any]) -> tuple[str, str]:
    """An object's kind and name."""
    return each["kind"], each["metadata"]["name"]


def workload(values: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (
        each for each in objects(values) if each["metadata"]["name"] == name and "template" in each.get("spec", {})
    )
    pod: dict[str, Any] = found["spec"]["template"]
    return pod


def images(values: dict[str, Any]) -> set[str]:
    found = [each["spec"]["template"]["spec"] for each in objects(values) if "template" in each.get("spec", {})]
    return {container["image"] for pod in found for container in pod["containers"]}


def test_committed_manifests_match_the_chart() -> None:
    found = rendered(helm())
    assert [file for file in PLAIN if found[file] != (ROOT / file).read_text()] == [], "run make manifests"


@pytest.mark.parametrize("name", VALUES)
def test_helm_lint_passes(name: str) -> None:
    command = [str(helm()), "lint", str(ROOT / CHART), "--strict", KUBE_VERSION, "--values=-"]
    done = subprocess.run(command, input=json.dumps(VALUES[name]), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", VALUES)
def test_real_api_server_accepts_all_objects(cluster: RealKubernetes, name: str) -> None:
    found = [each for each in objects(VALUES[name]) if each["kind"] != "CustomResourceDefinition"]
    for each in found:
        if each["metadata"].get("namespace") in {"ours", "a", "b"}:
            each["metadata"]["namespace"] = "default"
    typed = json.dumps({"apiVersion": "v1", "kind": "List", "items": found})
    said = cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-", typed=typed
    )
    assert said.count("serverside-applied (server dry run)") == len(found)


def test_kustomize_base_matches_chart_defaults(cluster: RealKubernetes) -> None:
    found = list(plain_yaml.load_all(cluster.kubectl("kustomize", str(ROOT / "deploy"))))
    files = documents("deploy/neonvm.yaml", *WITH_CERTIFICATES, *POLICIES)
    assert sorted(found, key=named) == sorted(files, key=named)
    by_helm = {named(each) for each in objects({"neonvm": {"enabled": False}})}
    added_later = {"groups", "dashboard", "expander"}
    fences = {*(f"autoscaling-{name}" for name in added_later), "neonvm-controller", "neonvm-devices"}
    assert by_helm ^ set(map(named, found)) == {
        ("Pod", "autoscaling-answers"),
        *(("NetworkPolicy", name) for name in fences),
    }


def test_without_certificates_one_scheduler_serves_http() -> None:
    found = {named(each): each for each in objects(ALONE)}
    scheduler = found["Deployment", "autoscaling-scheduler"]["spec"]
    assert (scheduler["replicas"], scheduler["strategy"]) == (1, {"type": "Recreate"})
    assert "https://autoscaling" not in json.dumps(list(found.values()))
    assert "EndpointSlice" not in {kind for kind, _ in found}
    assert {name for kind, name in found if kind == "Secret"} == OF_RUNNERS


def test_controller_without_network_policies_lacks_rights() -> None:
    def about_policies(enabled: bool) -> tuple[bool, bool]:
        found = {named(each): each for each in objects({"neonvm": {"policy": {"enabled": enabled}}})}
        rights = json.dumps(found["ClusterRole", "neonvm-controller"])
        flags = found["Deployment", "neonvm-controller"]["spec"]["template"]["spec"]["containers"][0]["args"]
        return "networkpolicies" in rights, "--no-network-policies" in flags

    assert (about_policies(True), about_policies(False)) == ((True, False), (False, True))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"scheduler": {"enabld": False}}, "enabld"),
        ({"groups": {"replicas": 0}}, "replicas"),
        ({"test": {"image": {"repository": "a", "digest": "latest"}}}, "digest"),
        ({"agent": {"sidecar": {"enabled": True}}}, "two agents would resize the same VM"),
    ],
)
def test_implausible_values_are_rejected(values: dict[str, Any], said: str) -> None:
    done = template(values)
    assert (done.returncode != 0, said in done.stderr) == (True, True), done.stderr


def test_priority_quota_covers_the_charts_pods() -> None:
    values = {**ALL, "priorityQuota": True}
    (found,) = (each for each in objects(values) if each["kind"] == "ResourceQuota")
    (selector,) = found["spec"]["scopeSelector"]["matchExpressions"]
    pods = [each["spec"]["template"]["spec"] for each in objects(values) if "template" in each.get("spec", {})]
    assert found["metadata"]["namespace"] == "ours"
    assert (selector["scopeName"], selector["operator"]) == ("PriorityClass", "In")
    assert set(selector["values"]) == {each["priorityClassName"] for each in pods}
    assert "ResourceQuota" not in {each["kind"] for each in objects(ALL)}


def test_old_kubernetes_is_rejected() -> None:
    done = template({}, "--kube-version=v1.30.0")
    assert (done.returncode != 0, "1.31.0" in done.stderr) == (True, True)


def test_global_registry_applies_to_all_images() -> None:
    found = images({**ALL, "global": {"imageRegistry": "mirror.internal"}, "image": {"tag": "0.2.0"}})
    assert found == {
        "mirror.internal/kube-scheduler:v1.36.3",
        *(f"mirror.internal/autoscale-{name}:0.2.0" for name in ("scheduler", "dashboard", "groups", "injector")),
        *(f"mirror.internal/neonvm-{name}:0.2.0" for name in ("controller", "devices", "network")),
    }
    args = workload({"global": {"imageRegistry": "mirror.internal"}}, "neonvm-controller")["spec"]["containers"][0][
        "args"
    ]
    assert args[0] == "--runner-image=mirror.internal/neonvm-runner:dev"


def test_extra_fields_are_rendered() -> None:
    pod = workload(EXTRAS, "autoscaling-scheduler")
    service, kube_scheduler = pod["spec"]["containers"]
    assert pod["metadata"]["labels"].items() >= {"team": "db", "x": "y", "app.kubernetes.io/version": "1.2.3"}.items()
    assert pod["metadata"]["annotations"]["owner"] == "db"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert (pod["spec"]["tolerations"], pod["spec"]["nodeSelector"]) == (OWN_TOLERATIONS, {"zone": "a"})
    assert service["image"] == f"registry.example:5000/neon/autoscale-scheduler:1.2.3@sha256:{'0' * 64}"
    assert (service["env"][-1], service["args"][-1]) == ({"name": "A", "value": "b"}, "--log-level=debug")
    assert kube_scheduler["image"] == "registry.k8s.io/kube-scheduler:v1.36.3"


def test_settings_are_merged_into_the_shipped_ones() -> None:
    (found,) = (each for each in objects(EXTRAS) if each["metadata"]["name"] == "autoscaling-scheduler-config")
    settings = plain_yaml.load(found["data"]["config.yaml"])
    assert settings["nodeDefaults"]["computeUnit"] == {"vCPUs": "1", "mem": "128Mi"}
    assert settings["agents"]["nodeAgents"] == ["ours:autoscaling-agent"]


def test_existing_config_maps_are_used() -> None:
    values = {"scheduler": {"existingConfigMap": "mine"}}
    assert not [each for each in objects(values) if each["metadata"]["name"] == "autoscaling-scheduler-config"]
    assert {"name": "config", "configMap": {"name": "mine"}} in workload(values, "autoscaling-scheduler")["spec"][
        "volumes"
    ]


def test_certificates_enable_tls_and_leader_services() -> None:
    found = objects({})
    assert "http://autoscaling" not in json.dumps(found)
    services = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "Service"}
    slices = {each["metadata"]["name"]: each for each in found if each["kind"] == "EndpointSlice"}
    assert set(slices) == {"autoscaling-scheduler", "autoscaling-scheduler-extender"}
    for name, each in slices.items():
        assert "endpoints" not in each
        assert [port["name"] for port in services[name]["ports"]] == [port["name"] for port in each["ports"]]
    secrets = [each for each in found if each["kind"] == "Secret"]
    assert (len(secrets), [each for each in secrets if "data" in each]) == (4 + len(OF_RUNNERS), [])
    assert "MutatingWebhookConfiguration" not in {each["kind"] for each in found}, "the agents of nodes have all VMs"


def test_policies_match_the_releases_accounts() -> None:
    policies = (each for each in objects(ALL) if each["kind"] == "ValidatingAdmissionPolicy")
    found = {each["metadata"]["name"]: json.dumps(each) for each in policies}
    assert [name for name, text in found.items() if "serviceaccount:kube-system" in text] == []
    assert "request.namespace == 'ours'" in found["autoscaling-leases"]
    assert "!(request.namespace in ['kube-system', 'ours'])" in found["neonvm-controller-pods"]
    binds, displaces = found["autoscaling-scheduler-pods"].split("!variables.displaces ||")
    assert "!variables.binds || ((request.namespace != 'kube-system' || request.name == 'autoscaling-answers')" in binds
    assert "!(request.namespace in ['kube-system', 'ours'])" in displaces


def test_permit_policies_can_be_disabled() -> None:
    def names(values: dict[str, Any]) -> set[str]:
        return {each["metadata"]["name"] for each in objects(values) if "Policy" in each["kind"]}

    left_out = {**ALL, "policies": {"enabled": True, "permits": False, "network": False}}
    ours = {f"autoscaling-{name}" for name in ("scheduler", "groups", "dashboard")}
    of_network = {*ours, "neonvm-controller", "neonvm-devices"}
    assert names(ALL) - names(left_out) == {"autoscaling-permits", "autoscaling-permit-writers", *of_network}


def test_monitoring_selects_the_releases_namespace() -> None:
    found = objects({"monitoring": {"enabled": True, "labels": {"release": "prometheus"}}})
    monitoring = [each for each in found if each["apiVersion"].startswith("monitoring.coreos.com")]
    assert {each["metadata"]["labels"]["release"] for each in monitoring} <= {"prometheus"}
    assert {each["metadata"]["namespace"] for each in monitoring} <= {"ours"}


def test_foreign_crds_change_only_if_adopted(
    cluster: RealKubernetes,
) -> None:
    """The cluster of these tests has them as ``autoscale local up`` applies them."""
    release = Release(cluster)
    rehearsed = ("--dry-run=server", "--create-namespace", "--output=json")
    left = json.loads(release.helm("install", *rehearsed))
    assert "CustomResourceDefinition" not in left["manifest"]
    assert "installed by something else and are left unchanged" in left["info"]["notes"]
    taken = json.loads(release.helm("install", *rehearsed, "--take-ownership", "--set=definitions.adopt=true"))
    assert taken["manifest"].count("kind: CustomResourceDefinition\n") == 2


def in_cluster(cluster: RealKubernetes, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """The objects rendered by Helm with access to the cluster."""
    given = (f"--set-json={name}={json.dumps(value)}" for name, value in values.items())
    return Release(cluster).try_helm("template", "--dry-run=server", KUBE_VERSION, *given)


@contextmanager
def applied(cluster: RealKubernetes, **found: Any) -> Iterator[None]:
    """An object in the namespace of the release, for the time being."""
    typed = json.dumps({"apiVersion": "v1", **found})
    cluster.try_kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("apply", f"--namespace={NAMESPACE}", "--filename=-", typed=typed)
    try:
        yield
    finally:
        cluster.kubectl("delete", f"--namespace={NAMESPACE}", "--filename=-", typed=typed)


@pytest.mark.parametrize(("argument", "replicas"), [("--config=a", 1), ("--lease=a/b", 2)])
def test_scheduler_without_lease_is_never_doubled(cluster: RealKubernetes, argument: str, replicas: int) -> None:
    """A Deployment that is given more replicas and another pod at once makes more of the old pods first."""
    found, about = {"app": "old"}, {"name": "autoscaling-scheduler"}
    pod = {"metadata": {"labels": found}, "spec": {"containers": [{"name": "a", "image": "a", "args": [argument]}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": found}, "template": pod}
    with applied(cluster, kind="Deployment", apiVersion="apps/v1", metadata=about, spec=spec):
        rendered_now = [each for each in plain_yaml.load_all(in_cluster(cluster, {}).stdout) if each]
        injecting = in_cluster(cluster, {"agent.node.enabled": False, "agent.sidecar.enabled": True})
    assert ("leaveHttpAgents=true continues" in injecting.stderr) == (replicas == 1)
    (made,) = (each for each in rendered_now if named(each) == ("Deployment", "autoscaling-scheduler"))
    assert made["spec"]["replicas"] == replicas


def test_kept_injector_settings_follow_image_and_url(cluster: RealKubernetes) -> None:
    edited = {
        "agent": {"image": "old/agent:1", "schedulerUrl": "https://old", "resources": {"requests": {"cpu": "77m"}}},
        "certificates": {"provider": "files", "life": "30d"},
    }
    about = {"name": "autoscaling-injector-config", "annotations": {"autoscaling.neon.tech/settings-written": "other"}}
    with applied(cluster, kind="ConfigMap", metadata=about, data={"settings.yaml": json.dumps(edited)}):
        rendered_now = [each for each in plain_yaml.load_all(in_cluster(cluster, {}).stdout) if each]
    (found,) = (each for each in rendered_now if each["metadata"]["name"] == about["name"])
    assert plain_yaml.load(found["data"]["settings.yaml"]) == {
        "agent": {
            "image": "localhost:5001/autoscaler-agent:dev",
            "schedulerUrl": f"https://autoscaling-scheduler.{NAMESPACE}.svc:10299",
            "resources": {"requests": {"cpu": "77m"}},
        },
        "certificates": {"provider": "self", "life": "30d"},
    }


def test_crds_are_kept_and_objects_are_namespaced() -> None:
    found = objects(VALUES["all components"])
    kinds = [each for each in found if each["kind"] == "CustomResourceDefinition"]
    assert len(kinds) == 5
    assert {each["metadata"]["annotations"]["helm.sh/resource-policy"] for each in kinds} == {"keep"}
    elsewhere = {
        (each["kind"], each["metadata"]["namespace"])
        for each in found
        if each["metadata"].get("namespace", "ours") != "ours"
    }
    of_vms = {(kind, name) for kind in ("ConfigMap", "ServiceAccount", "Role", "RoleBinding") for name in ("a", "b")}
    assert elsewhere == {*of_vms, ("NetworkPolicy", "a"), ("RoleBinding", "kube-system")}
    meant = [f"autoscaling-scheduler-{each}" for each in ("as-authentication-reader", "pods")]
    named = [each["metadata"]["name"] for each in found if "kube-system" in json.dumps(each)]
    assert sorted(named) == ["autoscaling-injector", *meant, "neonvm-controller-pods"]
