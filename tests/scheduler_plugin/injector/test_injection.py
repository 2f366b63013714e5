"""Pods that get the agent, the injected parts, and repeated reviews, which change nothing."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from jsonpatch import apply_patch
from kubernetes.client import models

from agent.settings import read_settings
from deploy.neonvm.objects.pod_form import RunnerForm
from scheduler_plugin.injector.admission.injection import (
    HAS_AGENT,
    NO_VM,
    NOT_ENABLED,
    OPTED_OUT,
    RefusedPod,
    Unchanged,
    judge,
    no_native_sidecars,
)
from scheduler_plugin.injector.settings import parse_settings
from tests import plain_yaml
from tests.deploy.manifests import SIDECAR, one
from tests.scheduler_plugin.injector.injecting import SETTINGS
from tests.scheduler_plugin.injector.pods import original, ours

TEMPLATE = parse_settings(SETTINGS).template()


def injected(pod: Any) -> dict[str, Any]:
    found = judge(pod, TEMPLATE)
    assert isinstance(found, list)
    made: dict[str, Any] = apply_patch(pod, found)
    return made


def with_agent_settings(**more: Any) -> Any:
    """A template with further settings of agents."""
    settings = plain_yaml.load(SETTINGS)
    return parse_settings(json.dumps({"agent": settings["agent"] | more})).template()


def agent_in(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = (each for each in pod["spec"]["initContainers"] if each["name"] == "autoscaler-agent")
    return dict(found)


@pytest.mark.parametrize(
    ("own", "expected"),
    [([], [{"name": "ours"}]), ([{"name": "a"}], [{"name": "a"}, {"name": "ours"}]), ([{"name": "ours"}],) * 2],
)
def test_injected_agents_bring_pull_secrets(own: list[Any], expected: list[Any]) -> None:
    """The admission of service accounts is over when a webhook replaces the account of a pod."""
    pod = original()
    pod["spec"]["imagePullSecrets"] = own
    found = judge(pod, with_agent_settings(imagePullSecrets=[{"name": "ours"}]))
    assert isinstance(found, list)
    assert apply_patch(pod, found)["spec"]["imagePullSecrets"] == expected


def test_injected_agents_run_as_settings_say() -> None:
    """OpenShift refuses users out of the range of the namespace, so that an agent may have to name none."""
    security = {"runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}
    found = judge(original(), with_agent_settings(securityContext=security))
    assert isinstance(found, list)
    assert agent_in(apply_patch(original(), found))["securityContext"] == security
    assert agent_in(injected(original()))["securityContext"]["runAsUser"] == 65532


@pytest.mark.parametrize("pod", [original(), ours()], ids=["NeonVM's", "ours"])
def test_runner_pod_gets_one_native_sidecar(pod: Any) -> None:
    made = injected(pod)
    assert models.V1Pod.model_validate(made).spec
    assert [each["name"] for each in made["spec"]["initContainers"]] == ["init", "autoscaler-agent"]
    assert agent_in(made)["restartPolicy"] == "Always"
    assert made["spec"]["serviceAccountName"] == "vm-agent"
    assert judge(made, TEMPLATE) == HAS_AGENT
    assert made["metadata"] == pod["metadata"]
    assert made["spec"]["containers"] == pod["spec"]["containers"]


@pytest.mark.parametrize(
    ("pod", "at"),
    [
        (original(), "169.254.254.254"),
        (original(5432, 9100), "169.254.254.254"),
        (ours(), "127.0.0.1"),
        (ours(ports=(5432,)), "127.0.0.1"),
    ],
    ids=["NeonVM's", "NeonVM's that names the metrics", "ours", "ours that does not name them"],
)
def test_injected_agent_settings_are_valid(pod: Any, at: str) -> None:
    container = agent_in(injected(pod))
    fields = {"metadata.name": "db-x2k", "metadata.namespace": "default"}
    environment = {
        each["name"]: each.get("value") or fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container["env"]
    }
    settings = read_settings([], environment)
    assert settings.assignment is not None
    assert (str(settings.assignment.vm), str(settings.assignment.pod)) == ("default/db", "default/db-x2k")
    assert settings.metrics_url == f"http://{at}:9100/metrics"
    assert settings.database_url == f"http://{at}:{25184 if at == '127.0.0.1' else 25183}/database"
    assert settings.monitor_url == f"ws://{at}:10301/monitor"
    assert settings.scheduler_url == "https://autoscaling-scheduler.kube-system.svc:10299"
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert mounted[str(settings.scheduler_ca.parent if settings.scheduler_ca else "")] == "autoscaling-agent-identity"
    assert mounted["/var/run/secrets/kubernetes.io/serviceaccount"] == "autoscaling-agent-api-access"


def test_the_agent_passes_pod_security_restricted() -> None:
    security = agent_in(injected(original()))["securityContext"]
    assert (security["runAsNonRoot"], security["allowPrivilegeEscalation"]) == (True, False)
    assert (security["capabilities"], security["seccompProfile"]) == ({"drop": ["ALL"]}, {"type": "RuntimeDefault"})


def test_agent_failure_is_in_pod_status() -> None:
    assert agent_in(injected(original()))["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize("account", ["postgres", "vm-agent-2"])
def test_no_token_of_another_account_is_projected(account: str) -> None:
    """Users who may create VMs choose the service account, but may lack the right to act as it."""
    pod = original()
    pod["spec"]["serviceAccountName"] = account
    left = judge(pod, TEMPLATE)
    assert isinstance(left, Unchanged)
    assert (left.outcome, account in left.why) == ("own_account", True)


@pytest.mark.parametrize("account", ["", "default", "vm-agent"])
def test_the_agent_has_the_account_of_agents(account: str) -> None:
    pod = original()
    pod["spec"]["serviceAccountName"] = account
    assert injected(pod)["spec"]["serviceAccountName"] == "vm-agent"


def test_bare_pod_gets_sidecar_and_volumes() -> None:
    pod = original()
    for name in ("initContainers", "volumes", "serviceAccountName"):
        del pod["spec"][name]
    made = injected(pod)
    assert len(made["spec"]["initContainers"]) == 1
    assert len(made["spec"]["volumes"]) == 2


def mentioning(name: str, part: str, kind: str) -> Any:
    pod = copy.deepcopy(original())
    mention = {"name": name, "mountPath": "/x", "devicePath": "/x"}
    if kind == "volumes":
        pod["spec"]["volumes"].append({"name": name, "emptyDir": {}})
    else:
        pod["spec"].setdefault(kind, [{"name": "debug"}])[0][part] = [mention]
    return pod


@pytest.mark.parametrize("name", ["autoscaling-agent-identity", "autoscaling-agent-api-access"])
@pytest.mark.parametrize("part", ["volumeMounts", "volumeDevices"])
@pytest.mark.parametrize("kind", ["volumes", "containers", "initContainers", "ephemeralContainers"])
def test_pod_naming_agent_volumes_is_refused(name: str, part: str, kind: str) -> None:
    """Its other containers would read the agent's tokens, which are added under these names."""
    refused = judge(mentioning(name, part, kind), TEMPLATE)
    assert isinstance(refused, RefusedPod)
    assert name in refused.why


def test_injected_pod_passes_second_review() -> None:
    """The API server asks again when another webhook has changed the pod."""
    assert judge(injected(original()), TEMPLATE) == HAS_AGENT


def changed(**labels: Any) -> Any:
    pod = original()
    pod["metadata"]["labels"] |= {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
    return pod


def without_runner() -> Any:
    pod = original()
    pod["spec"]["containers"][0]["name"] = "backup"
    return pod


def with_agent(kind: str) -> Any:
    pod = copy.deepcopy(original())
    pod["spec"][kind].append({"name": "autoscaler-agent"})
    return pod


def of_our_controller_with_an_agent() -> Any:
    part = plain_yaml.load(one("ConfigMap", SIDECAR[0])["data"][SIDECAR[1]])["spec"]
    return ours(RunnerForm("example.invalid/runner", sidecar=part))


@pytest.mark.parametrize(
    ("pod", "left"),
    [
        (changed(**{"vm.neon.tech__name": ""}), NO_VM),
        (without_runner(), NO_VM),
        ({}, NO_VM),
        ({"metadata": 1, "spec": []}, NO_VM),
        (changed(**{"autoscaling.neon.tech__enabled": "false"}), NOT_ENABLED),
        (changed(**{"autoscaling.neon.tech__inject_agent": "false"}), OPTED_OUT),
        (with_agent("containers"), HAS_AGENT),
        (with_agent("initContainers"), HAS_AGENT),
        (of_our_controller_with_an_agent(), HAS_AGENT),
    ],
)
def test_other_pods_stay_as_they_are(pod: Any, left: Unchanged) -> None:
    assert judge(pod, TEMPLATE) == left


def test_settings_of_the_agent_are_the_operators() -> None:
    text = SETTINGS + "namespace: autoscale-system\n"
    text = text.replace("{image:", "{env: {AGENT_CONFIG: /x, VM_NAME: other}, imagePullPolicy: Never, image:")
    template = parse_settings(text).template()
    found = judge(original(), template)
    assert isinstance(found, list)
    container = agent_in(apply_patch(original(), found))
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert (values["AGENT_CONFIG"], container["imagePullPolicy"]) == ("/x", "Never")


@pytest.mark.parametrize(
    ("version", "may"),
    [
        ({"major": "1", "minor": "29"}, True),
        ({"major": "1", "minor": "36+"}, True),
        ({"major": "2", "minor": "0"}, True),
        ({"major": "1", "minor": "28+", "gitVersion": "v1.28.3"}, False),
        ({"major": "1", "minor": ""}, False),
        ({}, False),
    ],
    ids=str,
)
def test_native_sidecars_need_a_kubernetes_that_has_them(version: dict[str, object], may: bool) -> None:
    assert (no_native_sidecars(version) == "") is may
