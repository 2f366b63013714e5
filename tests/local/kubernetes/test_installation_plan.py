"""Contents of an installation on a real cluster, when it is up, and when it never will be."""

from __future__ import annotations

import pytest

from deploy.images.catalogue import IMAGES
from deploy.local.kubernetes.plan.installation_plan import (
    FOR_PODS,
    FOR_VMS,
    NAMESPACE,
    POSTGRES,
    REFERENCE,
    Installation,
    kube_scheduler_image,
    not_rolled_out,
    startup_failure,
    with_kube_scheduler,
    with_short_delays,
)
from protocol.kubernetes.objects import Json
from scripts.manifests.rendering import PLAIN
from tests import plain_yaml
from tests.deploy.manifests import FILES, ROOT


def documents(of: Installation) -> list[Json]:
    return [each for name in of.manifests for each in plain_yaml.load_all((ROOT / name).read_text()) if each]


def workload(kind: str, name: str, spec: Json, status: Json) -> Json:
    return {"kind": kind, "metadata": {"name": name, "generation": 2}, "spec": spec, "status": status}


def pod(*statuses: Json, phase: str = "Pending", labels: Json | None = None, **metadata: object) -> Json:
    found = [{"name": "agent", "image": "localhost:5001/agent:dev", "restartCount": 0, **each} for each in statuses]
    status = {"phase": phase, "message": "out of memory", "initContainerStatuses": found}
    return {"metadata": {"namespace": "default", "name": "db", "labels": labels or {}, **metadata}, "status": status}


def waiting(reason: str, message: str = "", **more: object) -> Json:
    return {"state": {"waiting": {"reason": reason, "message": message}}, **more}


BOTH = pytest.mark.parametrize("of", [FOR_VMS, FOR_PODS], ids=["VMs", "pods"])


@BOTH
def test_installation_waits_for_all_workloads(of: Installation) -> None:
    assert {(ROOT / each).resolve() for each in of.manifests} <= {(ROOT / each).resolve() for each in (*FILES, *PLAIN)}
    found = [each for each in documents(of) if each["kind"] in {"Deployment", "DaemonSet"}]
    names = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in found}  # type: ignore[index]
    assert names == {(NAMESPACE, name) for name in of.workloads}


@BOTH
def test_every_image_that_they_name_is_built(of: Installation) -> None:
    text = "".join(with_kube_scheduler((ROOT / name).read_text(), "v1.36.3") for name in of.manifests)
    built = {REFERENCE.format(name=name) for name in of.images} | {kube_scheduler_image("v1.36.3")}
    named = {line.split("image: ")[1].split(" ")[0] for line in text.splitlines() if "image: " in line}
    assert named <= built
    assert set(of.images) <= {*IMAGES, POSTGRES}


def test_kube_scheduler_has_the_version_of_the_cluster() -> None:
    line = "image: registry.k8s.io/kube-scheduler:v1.36.0 # never newer"
    assert with_kube_scheduler(line, "v1.35.9") == "image: registry.k8s.io/kube-scheduler:v1.35.9 # never newer"


def test_installed_scheduler_moves_vms_within_seconds() -> None:
    installed = with_short_delays((ROOT / "deploy/scheduler-deploy.yaml").read_text())
    settings = [line.split("#")[0].strip() for line in installed.splitlines() if "settle" in line.split("#")[0]]
    assert settings == ["settleSeconds: 3", "settleDeniedSeconds: 3"]


def test_installed_means_all_rolled_out() -> None:
    done = [
        workload("Deployment", "neonvm-controller", {"replicas": 2}, {"observedGeneration": 2, "availableReplicas": 2}),
        workload("DaemonSet", "neonvm-devices", {}, {"observedGeneration": 2, **_on(2, 2)}),
        workload("DaemonSet", "neonvm-network", {}, {"observedGeneration": 2, **_on(2, 2)}),
        workload("Deployment", "autoscaling-scheduler", {"replicas": 1}, {"observedGeneration": 1}),
    ]
    assert not_rolled_out(done) == ["autoscaling-scheduler"]
    assert not_rolled_out([]) == sorted(FOR_VMS.workloads)
    assert not_rolled_out(done, FOR_PODS) == ["autoscaling-agent", "autoscaling-injector", "autoscaling-scheduler"]


def _on(nodes: int, available: int) -> Json:
    return {"desiredNumberScheduled": nodes, "numberAvailable": available}


@pytest.mark.parametrize(
    ("kind", "spec", "status", "is_done"),
    [
        ("Deployment", {"replicas": 2}, {"observedGeneration": 2, "availableReplicas": 1}, False),
        ("Deployment", {"replicas": 2}, {"observedGeneration": 2, "availableReplicas": 2}, True),
        ("Deployment", {"replicas": 2}, {}, False),
        ("DaemonSet", {}, {"observedGeneration": 2, **_on(0, 0)}, False),
        ("DaemonSet", {}, {"observedGeneration": 2, **_on(2, 1)}, False),
        ("DaemonSet", {}, {"observedGeneration": 2, **_on(2, 2)}, True),
    ],
)
def test_rollout_needs_all_replicas_available(kind: str, spec: Json, status: Json, is_done: bool) -> None:
    found = not_rolled_out([workload(kind, "neonvm-network", spec, status)])
    assert ("neonvm-network" not in found) == is_done


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (pod(waiting("ContainerCreating")), ""),
        (pod({"state": {"running": {}}}, phase="Running"), ""),
        (
            pod(waiting("ErrImagePull")),
            "container agent of pod db: image localhost:5001/agent:dev is missing, "
            "and there is no registry: ErrImagePull",
        ),
        (
            pod(waiting("CreateContainerConfigError", 'configmap "x" not found')),
            'container agent of pod db cannot start: configmap "x" not found',
        ),
        (pod(waiting("RunContainerError")), "container agent of pod db cannot start: RunContainerError"),
        (pod(waiting("CrashLoopBackOff", restartCount=2)), ""),
        (
            pod(waiting("CrashLoopBackOff", restartCount=3, lastState={"terminated": {"message": "a\nno token\n"}})),
            "container agent of pod db restarted 3 times: no token",
        ),
        (
            pod(waiting("CrashLoopBackOff", restartCount=3, lastState={"terminated": {"reason": "Error"}})),
            "container agent of pod db restarted 3 times: Error, exit code 0",
        ),
        (pod(phase="Failed"), "pod db has failed: out of memory"),
        (pod(phase="Failed", labels={"vm.neon.tech/name": "db"}), ""),
        (pod(waiting("ErrImagePull"), deletionTimestamp="2026-01-01T00:00:00Z"), ""),
    ],
)
def test_hopeless_pod_is_recognised(found: Json, message: str) -> None:
    assert startup_failure([pod({"state": {}}), found]) == message
