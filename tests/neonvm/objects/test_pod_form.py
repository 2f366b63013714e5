"""The runner pod on a real cluster: its content and its restrictions."""

from __future__ import annotations

from typing import Any, cast

import pytest
from kubernetes.client import models

from deploy.neonvm.objects.owners import owner_reference
from deploy.neonvm.objects.pod_form import RunnerForm, is_open
from deploy.neonvm.objects.pods import MOVED, pod_end, runner_pod
from deploy.neonvm.objects.target_pod import target_pod, with_guest_of
from deploy.neonvm.objects.vm_spec import machine_of
from deploy.neonvm.service.__main__ import parser
from deploy.neonvm.texts.runner import MIGRATED_AWAY
from protocol.kubernetes.objects import Json, child
from protocol.kubernetes.resources import MIGRATIONS
from protocol.names import ANNOTATION_SLEEP_IGNORES
from protocol.vm_arguments import decode_dump
from tests.neonvm.sample_objects import virtual_machine

STATUS: Json = {"targetPodName": "db-y", "sourceNode": "n1"}
FORM = RunnerForm("runner:1", "autoscaling.neon.tech/guest", authorities="PEM")


def vm(**spec: object) -> Json:
    found = virtual_machine({"extraNetIP": "10.100.128.7", "phase": "Pending"})
    return {**found, "spec": {**child(found, "spec"), **spec}}


def pod(of: Json, form: RunnerForm = FORM) -> dict[str, Any]:
    return cast("dict[str, Any]", form(of, runner_pod(of, "db-x", machine_of(of).use)))


def test_kubernetes_knows_every_field() -> None:
    models.V1Pod.model_validate(pod(vm(extraNetwork={"enable": True})))


def test_pod_has_no_privilege_or_identity() -> None:
    spec = pod(vm(extraNetwork={"enable": True}))["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["seccompProfile"]) == (
        True,
        {"type": "RuntimeDefault"},
    )
    for each in (*spec["initContainers"], *spec["containers"]):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
    assert [each["name"] for each in spec["volumes"] if "hostPath" in each] == []


def test_flat_network_is_taken_as_a_resource() -> None:
    """Pod Security baseline refuses hostPath volumes; what a device plugin mounts is no volume of the pod."""
    limits = {
        name: pod(vm(**spec), form)["spec"]["containers"][0]["resources"].get("limits")
        for name, spec, form in (
            ("both", {"extraNetwork": {"enable": True}}, RunnerForm("runner:1", "devices")),
            ("network", {"extraNetwork": {"enable": True}, "enableAcceleration": False}, RunnerForm("r", "devices")),
            ("devices", {}, RunnerForm("runner:1", "devices")),
            ("none", {}, RunnerForm("runner:1")),
        )
    }
    network = {"autoscaling.neon.tech/flat-network": "1"}
    assert limits == {
        "both": {**network, "devices": "1"},
        "network": network,
        "devices": {"devices": "1"},
        "none": None,
    }


def test_failure_reason_is_in_pod_status() -> None:
    spec = pod(vm())["spec"]
    said = [each["terminationMessagePolicy"] for each in (*spec["initContainers"], *spec["containers"])]
    assert said == ["FallbackToLogsOnError"] * 2


def test_disk_comes_from_vm_image() -> None:
    spec = pod(vm())["spec"]
    (init,) = spec["initContainers"]
    assert (init["image"], init["command"][-1]) == ("postgres:15", "cp /disk.qcow2 /vm/images/rootdisk.qcow2")
    names = ["virtualmachineimages", "run", "tmp", "postgres", "runner-identity"]
    assert [each["name"] for each in spec["volumes"]] == names


def test_runner_gets_vm_and_address() -> None:
    (runner,) = pod(vm())["spec"]["containers"]
    assert (runner["image"], runner["command"]) == ("runner:1", ["neonvm-runner"])
    assert decode_dump(runner["args"][1]) == child(vm(), "spec")
    assert decode_dump(runner["args"][3]) == {"extraNetIP": "10.100.128.7"}
    values = {each["name"]: each.get("value") for each in runner["env"]}
    assert (values["VM_NAME"], values["VM_NAMESPACE"], "RECEIVE_MIGRATION" in values) == ("db", "default", False)
    assert [(each["name"], each["containerPort"]) for each in runner["ports"]] == [("runner", 25183), ("qmp", 20183)]
    limit = {"resourceFieldRef": {"resource": "limits.ephemeral-storage"}}
    assert {"name": "EPHEMERAL_STORAGE", "valueFrom": limit} in runner["env"]


def test_guest_ports_keep_name_and_protocol() -> None:
    """The API server refuses a pod with two ports of one name, and a Service finds a named port by its protocol."""
    ports: list[Json] = [{"port": 5432}, {"port": 6432}, {"port": 53, "name": "dns", "protocol": "UDP"}]
    (runner,) = pod(vm(guest={**child(vm(), "spec", "guest"), "ports": ports}))["spec"]["containers"]
    assert runner["ports"][2:] == [
        {"containerPort": 5432},
        {"containerPort": 6432},
        {"containerPort": 53, "name": "dns", "protocol": "UDP"},
    ]


def test_pod_carries_its_trusted_callers() -> None:
    """Its CAs cannot be changed there; its token is only for its controller, and the kubelet's probes use TLS."""
    made = pod(vm(extraInitContainers=[{"name": "x", "volumeMounts": [{"name": "runner-identity"}]}]))
    (runner,) = made["spec"]["containers"]
    assert {"name": "RUNNER_AUTHORITIES", "value": "PEM"} in runner["env"]
    assert runner["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    (volume,) = [each for each in made["spec"]["volumes"] if each["name"] == "runner-identity"]
    token = {"path": "token", "audience": "neonvm-runner", "expirationSeconds": 3600}
    assert volume["projected"]["sources"] == [{"serviceAccountToken": token}]
    mounted = [each["name"] for each in runner["volumeMounts"]]
    assert "runner-identity" in mounted
    assert made["spec"]["initContainers"][1]["volumeMounts"] == []


def test_a_pod_that_names_no_authorities_is_open() -> None:
    made = pod(vm())
    assert not is_open(made)
    (runner,) = made["spec"]["containers"]
    env = [each for each in runner["env"] if each["name"] != "RUNNER_AUTHORITIES"]
    beside = {"name": "beside", "env": [{"name": "RUNNER_AUTHORITIES"}]}
    assert is_open({"spec": {"containers": [{**runner, "env": env}, beside]}})
    assert not is_open(pod(vm(), RunnerForm("runner:1"))), "nor is one whose authorities are missing"


def test_devices_are_requested_on_demand() -> None:
    resources: Json = {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}}
    asked = pod(vm(podResources=resources))["spec"]["containers"][0]["resources"]
    assert asked == {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi", "autoscaling.neon.tech/guest": "1"}}
    assert pod(vm(enableAcceleration=False))["spec"]["containers"][0]["resources"] == {}
    assert pod(vm(), RunnerForm("runner:1"))["spec"]["containers"][0]["resources"] == {}


def test_own_service_account_excludes_sidecar() -> None:
    part: Json = {"serviceAccountName": "vm-agent", "containers": [{"name": "autoscaler-agent"}]}
    form = RunnerForm("runner:1", sidecar=part)
    specs = [pod(vm(serviceAccountName=name), form)["spec"] for name in ("", "vm-agent", "db")]
    assert [len(spec["initContainers"]) for spec in specs] == [2, 2, 1]
    assert [spec.get("serviceAccountName") for spec in specs] == ["vm-agent", "vm-agent", "db"]


def test_what_the_vm_says_of_its_pod_holds() -> None:
    said = {
        "runnerImage": "mine:2",
        "terminationGracePeriodSeconds": 5,
        "serviceAccountName": "db",
        "imagePullSecrets": [{"name": "s"}],
        "tolerations": [{"key": "a"}],
    }
    spec = pod(vm(**said))["spec"]
    assert spec["containers"][0]["image"] == "mine:2"
    assert (spec["terminationGracePeriodSeconds"], spec["serviceAccountName"]) == (5, "db")
    assert (spec["imagePullSecrets"], spec["tolerations"][0]) == ([{"name": "s"}], {"key": "a"})
    assert {each["tolerationSeconds"] for each in spec["tolerations"][1:]} == {30}


def test_installation_adds_pull_secrets_and_security() -> None:
    """OpenShift assigns users, and a private registry has the runner's image: both belong to the installation, not to a
    VM.
    """
    form = RunnerForm("runner:1", pod_security={"runAsNonRoot": True}, pull_secrets=["s", "ours"])
    spec = pod(vm(imagePullSecrets=[{"name": "s"}, {"name": "own"}]), form)["spec"]
    assert spec["imagePullSecrets"] == [{"name": "s"}, {"name": "own"}, {"name": "ours"}]
    assert spec["securityContext"] == {"runAsNonRoot": True}


def test_controller_reads_pull_secrets_and_security() -> None:
    found = parser().parse_args(["--pull-secret=a", "--pull-secret=b", '--pod-security={"runAsNonRoot": true}'])
    assert (found.pull_secret, found.pod_security) == (["a", "b"], {"runAsNonRoot": True})
    assert parser().parse_args([]).pod_security["runAsUser"] == 65532


@pytest.mark.parametrize(("typed", "said"), [("{", "invalid JSON"), ("[]", "expected a JSON object")])
def test_unusable_pod_security_is_refused(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([f"--pod-security={typed}"])
    assert said in capsys.readouterr().err


def test_target_pod_waits_for_incoming_guest() -> None:
    migration: Json = {
        "metadata": {"name": "m", "uid": "m1"},
        "spec": {},
        "status": {"targetPodName": "db-y", "sourceNode": "n1"},
    }
    made = FORM(vm(), target_pod(migration, vm(), machine_of(vm()).use))
    (runner,) = cast("list[Any]", child(made, "spec")["containers"])
    assert {"name": "RECEIVE_MIGRATION", "value": "true"} in runner["env"]
    assert cast("Any", made)["metadata"]["ownerReferences"] == [owner_reference(MIGRATIONS, migration)]


@pytest.mark.parametrize(
    ("image_id", "image"),
    [
        (f"registry/postgres@sha256:{'a' * 64}", f"registry/postgres@sha256:{'a' * 64}"),
        (f"docker-pullable://registry/postgres@sha256:{'a' * 64}", f"registry/postgres@sha256:{'a' * 64}"),
        (f"sha256:{'a' * 64}", "postgres:15"),
        ("", "postgres:15"),
    ],
)
def test_target_copies_source_machine_not_spec(image_id: str, image: str) -> None:
    """On another base image its disk would be garbage, and its memory fits no other machine."""
    source = pod(vm())
    source["status"] = {"initContainerStatuses": [{"name": "init", "imageID": image_id}]}
    edited = vm(guest={**child(vm(), "spec", "guest"), "rootDisk": {"image": "postgres:16"}})
    made = cast("dict[str, Any]", with_guest_of(pod(edited), source))["spec"]
    assert [each["image"] for each in made["initContainers"]] == [image]
    assert made["containers"][0]["args"] == source["spec"]["containers"][0]["args"]
    assert made["volumes"] == pod(edited)["spec"]["volumes"]


def test_target_without_source_follows_spec() -> None:
    assert with_guest_of(pod(vm()), {}) == pod(vm())


def test_agent_sidecar_has_own_identity() -> None:
    part: Json = {
        "serviceAccountName": "vm-agent",
        "containers": [{"name": "autoscaler-agent", "env": [{"name": "METRICS_URL", "value": "elsewhere"}]}],
        "volumes": [{"name": "autoscale-identity"}],
    }
    spec = pod(vm(), RunnerForm("runner:1", sidecar=part))["spec"]
    agent = spec["initContainers"][-1]
    assert (agent["restartPolicy"], spec["serviceAccountName"]) == ("Always", "vm-agent")
    assert {each["name"]: each["value"] for each in agent["env"]} == {
        "METRICS_URL": "http://127.0.0.1:9100/metrics",
        "DATABASE_URL": "http://127.0.0.1:25184/database",
        "MONITOR_URL": "ws://127.0.0.1:10301/monitor",
    }
    assert [each["name"] for each in agent["volumeMounts"]] == ["kube-api-access"]
    assert "kube-api-access" not in {each["name"] for each in spec["containers"][0]["volumeMounts"]}
    disabled = {**vm(), "metadata": {**child(vm(), "metadata"), "labels": {}}}
    assert len(pod(disabled, RunnerForm("runner:1", sidecar=part))["spec"]["initContainers"]) == 1


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"reason": "GuestEnded", "message": "it died"}, ("GuestEnded", "it died")),
        ({"message": "evicted"}, ("PodEnded", "evicted")),
        (
            {"containerStatuses": [{"name": "neonvm-runner", "state": {"terminated": {"message": MIGRATED_AWAY}}}]},
            (MOVED, MIGRATED_AWAY),
        ),
        (
            {
                "containerStatuses": [
                    {"name": "x"},
                    {"name": "neonvm-runner", "state": {"terminated": {"reason": "OOMKilled"}}},
                ]
            },
            ("PodEnded", "OOMKilled"),
        ),
    ],
)
def test_end_reason_is_read_from_pod_status(status: Json, expected: tuple[str, str]) -> None:
    assert pod_end({"status": status}) == expected


def test_pod_knows_who_does_not_wake_it() -> None:
    """A tenant's annotation of any length becomes a short environment variable of the runner."""
    plain = {**vm(), "metadata": {**child(vm(), "metadata"), "annotations": {ANNOTATION_SLEEP_IGNORES: "10.1.2.3,"}}}
    assert {"name": "SLEEP_IGNORES", "value": "10.1.2.3/32"} in _environment_of(plain)
    listed = "$(VM_NAME), 10.4.7.7/16," * 10_000
    long = {**vm(), "metadata": {**child(vm(), "metadata"), "annotations": {ANNOTATION_SLEEP_IGNORES: listed}}}
    assert {"name": "SLEEP_IGNORES", "value": ",".join(["10.4.0.0/16"] * 8)} in _environment_of(long)
    assert "SLEEP_IGNORES" not in [variable["name"] for variable in _environment_of(vm())]


def _environment_of(vm_object: Json) -> list[Any]:
    made = FORM(vm_object, runner_pod(vm_object, "db-x", machine_of(vm_object).use))
    (runner,) = cast("list[Any]", child(made, "spec")["containers"])
    return cast("list[Any]", runner["env"])
