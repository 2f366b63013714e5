"""The policy for the controller's pods admits every pod that the controller creates, for any VM."""

from __future__ import annotations

from typing import Any

import pytest
from jsonpatch import apply_patch

from deploy.local.apiserver.patch.merge import merge_patch
from deploy.neonvm.objects.pod_form import RunnerForm
from deploy.neonvm.objects.pods import runner_pod
from deploy.neonvm.objects.vm_spec import machine_of
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from scheduler_plugin.injector.admission.injection import judge
from scheduler_plugin.injector.settings import parse_settings
from tests import plain_yaml
from tests.deploy.manifests import SIDECAR, Document, documents, one
from tests.deploy.policies.admission import Write, refusal
from tests.kubernetes.attacks.world import CONTROLLER, MINE, owner
from tests.scheduler_plugin.injector.injecting import SETTINGS

POLICIES = [each for each in documents() if each["kind"] == "ValidatingAdmissionPolicy"]
GREEDY: Document = {
    "name": "mine",
    "image": "mine:1",
    "restartPolicy": "Always",
    "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "root", "key": "a"}}}],
    "envFrom": [{"secretRef": {"name": "root"}}],
    "ports": [{"containerPort": 80, "hostPort": 80}],
    "livenessProbe": {"httpGet": {"port": 80, "host": "169.254.169.254"}},
    "lifecycle": {"preStop": {"httpGet": {"port": 80, "host": "169.254.169.254"}}},
    "securityContext": {
        "privileged": True,
        "allowPrivilegeEscalation": True,
        "runAsUser": 0,
        "runAsNonRoot": False,
        "capabilities": {"add": ["SYS_ADMIN"]},
        "seccompProfile": {"type": "Unconfined"},
        "appArmorProfile": {"type": "Unconfined"},
        "seLinuxOptions": {"type": "spc_t"},
        "procMount": "Unmasked",
    },
    "volumeMounts": [{"name": "autoscaling-agent-api-access", "mountPath": "/a"}, {"name": "flat", "mountPath": "/b"}],
}


def created(form: RunnerForm, **spec: Any) -> Document:
    vm = merge_patch(MINE, {"spec": spec})
    pod: Document = form(vm, runner_pod(vm, "mine-2", machine_of(vm).use))
    pod["metadata"]["ownerReferences"] = owner(VIRTUAL_MACHINES, "mine")
    return pod


def refused(pod: Document) -> str:
    return refusal(POLICIES, Write(CONTROLLER.username, "CREATE", "", "pods", "default", after=pod, name="mine-2"))


PLAIN = RunnerForm("neonvm-runner")
WITH_AGENT = RunnerForm(
    "neonvm-runner", sidecar=plain_yaml.load(one("ConfigMap", SIDECAR[0])["data"][SIDECAR[1]])["spec"]
)
ASKED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "init containers with everything": {"extraInitContainers": [GREEDY]},
    "the flat network": {"extraNetwork": {"enable": True}},
    "an account": {"serviceAccountName": "default"},
    "ports": {"guest": {"ports": [{"port": 5432, "hostPort": 5432}]}},
    "all of it": {"extraInitContainers": [GREEDY], "extraNetwork": {"enable": True}, "serviceAccountName": "db"},
}


@pytest.mark.parametrize("form", [PLAIN, WITH_AGENT], ids=["plain", "with its agent"])
@pytest.mark.parametrize("asked", ASKED)
def test_a_vm_starts_whatever_it_asks_for(form: RunnerForm, asked: str) -> None:
    assert refused(created(form, **ASKED[asked])) == ""


@pytest.mark.parametrize("asked", ASKED)
def test_vm_with_injected_agent_is_admitted(asked: str) -> None:
    """The injector leaves the agent out if the VM has its own service account."""
    pod = created(PLAIN, **ASKED[asked])
    found = judge(pod, parse_settings(SETTINGS).template())
    made = apply_patch(pod, found) if isinstance(found, list) else pod
    assert isinstance(found, list) is ("serviceAccountName" not in ASKED[asked] or asked == "an account")
    assert refused(made) == ""
