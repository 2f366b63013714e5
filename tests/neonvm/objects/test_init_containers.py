"""A VM's own init containers, and which of their fields reach the pod."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.neonvm.objects.init_containers import init_container
from deploy.neonvm.objects.pod_form import RunnerForm
from deploy.neonvm.objects.pods import runner_pod
from protocol.kubernetes.objects import Json, child, items
from scheduler_plugin.injector.admission.injection import API_ACCESS, IDENTITY
from tests.neonvm.sample_objects import WANTED, virtual_machine

PLAIN: Json = {"name": "mine", "image": "mine:1"}
SAFE: Json = {
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": False,
    "allowPrivilegeEscalation": False,
    "privileged": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def made(**fields: Any) -> dict[str, Any]:
    return init_container({**PLAIN, **fields})


def test_it_runs_what_the_vm_says() -> None:
    wanted = {
        "command": ["sh"],
        "args": ["-c", "true"],
        "workingDir": "/work",
        "resources": {"limits": {"memory": "1Gi"}},
        "restartPolicy": "Always",
        "imagePullPolicy": "Always",
    }
    kept = made(**wanted)
    assert {key: kept[key] for key in ("name", "image", *wanted)} == {**PLAIN, **wanted}


def test_it_takes_no_places_of_the_node() -> None:
    """A pod that took all units would keep other VMs off the node, so the runner gets one of each."""
    much: Json = {"cpu": "1", "autoscaling.neon.tech/flat-network": "1000", "autoscaling.neon.tech/guest-devices": "9"}
    wanted: Json = {"limits": much, "requests": much, "claims": []}
    assert made(resources=wanted)["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}, "claims": []}
    vm = virtual_machine()
    vm["spec"] = {**child(vm, "spec"), "podResources": wanted, "extraNetwork": {"enable": True}}
    pod = RunnerForm("runner:1", "autoscaling.neon.tech/guest-devices")(vm, runner_pod(vm, "db-x", WANTED))
    (runner,) = items(pod, "spec", "containers")
    places = {"autoscaling.neon.tech/flat-network": "1", "autoscaling.neon.tech/guest-devices": "1"}
    assert runner["resources"] == {"limits": {"cpu": "1", **places}, "requests": {"cpu": "1"}, "claims": []}


@pytest.mark.parametrize(
    "security",
    [
        {},
        {"privileged": True, "capabilities": {"add": ["SYS_ADMIN"]}, "allowPrivilegeEscalation": True},
        {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False},
        {"runAsUser": "0", "runAsGroup": -1},
        {"seccompProfile": {"type": "Unconfined"}, "appArmorProfile": {"type": "Unconfined"}},
        {"seLinuxOptions": {"type": "spc_t"}, "procMount": "Unmasked"},
        {"windowsOptions": {"hostProcess": True}, "aFieldOfTomorrow": True},
    ],
    ids=str,
)
def test_no_privilege_reaches_the_pod(security: Json) -> None:
    assert made(securityContext=security)["securityContext"] == SAFE


def test_a_user_other_than_root_may_be_chosen() -> None:
    wanted: Json = {"runAsUser": 1000, "runAsGroup": 1001, "readOnlyRootFilesystem": True}
    assert made(securityContext=wanted)["securityContext"] == {**SAFE, **wanted}


def test_only_the_disk_is_mounted() -> None:
    """A webhook that runs later may add a volume of any other name: ours adds the agent's tokens."""
    names = ("virtualmachineimages", "flat", "run", "autoscale-identity", "kube-api-access", IDENTITY, API_ACCESS, "x")
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in names]
    assert [each["name"] for each in made(volumeMounts=mounts)["volumeMounts"]] == ["virtualmachineimages"]


def test_whether_or_not_the_pod_has_an_agent() -> None:
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in (IDENTITY, API_ACCESS, "kube-api-access", "flat")]
    vm = virtual_machine()
    vm = {**vm, "spec": {**child(vm, "spec"), "extraInitContainers": [{**PLAIN, "volumeMounts": mounts}]}}
    sidecar: Json = {"containers": [{"name": "autoscaler-agent"}], "volumes": [{"name": "autoscale-identity"}]}
    for form in (RunnerForm("runner:1"), RunnerForm("runner:1", sidecar=sidecar)):
        pod: dict[str, Any] = form(vm, runner_pod(vm, "db-1", WANTED))
        (mine,) = (each for each in pod["spec"]["initContainers"] if each["name"] == "mine")
        assert mine["volumeMounts"] == []


def test_no_port_of_the_node_is_taken() -> None:
    ports = [{"name": "x", "containerPort": 80, "protocol": "TCP", "hostPort": 80, "hostIP": "0.0.0.0"}]
    assert made(ports=ports)["ports"] == [{"name": "x", "containerPort": 80, "protocol": "TCP"}]


def test_the_environment_comes_from_the_pod_alone() -> None:
    """Users who may create VMs may lack the right to read Secrets and ConfigMaps."""
    kept = [
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    ]
    dropped = [
        {"name": kind, "valueFrom": {kind: {"name": "x", "key": "k"}}}
        for kind in ("secretKeyRef", "configMapKeyRef", "fileKeyRef", "refOfTomorrow")
    ]
    found = made(env=[*kept, *dropped, {"name": "D", "valueFrom": "x"}], envFrom=[{"configMapRef": {"name": "x"}}])
    assert found["env"] == kept
    assert "envFrom" not in found


def test_no_probe_or_hook_reaches_another_host() -> None:
    """The kubelet sends them from the node, whose network reaches more than the pod's."""
    here, elsewhere = {"httpGet": {"port": 80}}, {"tcpSocket": {"port": 80, "host": "10.0.0.1"}}
    found = made(startupProbe=here, livenessProbe=elsewhere, lifecycle={"postStart": {"httpGet": {"host": "10.0.0.1"}}})
    assert found["startupProbe"] == here
    assert not {"livenessProbe", "lifecycle", "stdin"} & set(found)


def test_guest_ports_use_no_host_ports() -> None:
    vm = virtual_machine()
    guest = {**child(vm, "spec", "guest"), "ports": [{"port": 5432, "hostPort": 5432, "hostIP": "10.0.0.1"}]}
    vm = {**vm, "spec": {**child(vm, "spec"), "guest": guest}}
    pod: dict[str, Any] = RunnerForm("runner:1")(vm, runner_pod(vm, "db-1", WANTED))
    assert all(set(each) <= {"name", "containerPort", "protocol"} for each in pod["spec"]["containers"][0]["ports"])
