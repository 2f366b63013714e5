"""A pod like those of NeonVM's own controller gets the agent once, and its VM grows, all over TLS."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from deploy.images.building.image_build import build, native_platform
from deploy.images.building.layers import LayerMaker
from deploy.images.catalogue import IMAGES
from deploy.images.inputs.checkout import Checkout
from deploy.local.kubernetes.machine.installation import load_image
from deploy.local.kubernetes.plan.cluster_plan import BUSYBOX_IMAGE, CONTROL_HOST
from protocol.floors import decode_floor
from protocol.kubernetes.objects import annotations_of
from protocol.units import Resources
from tests.conformance.cluster import done
from tests.kubernetes.injector.secured import Secured, running
from tests.kubernetes.injector.vm_pods import runner_pod, small_vm, want
from tests.kubernetes.real_kubernetes import RealKubernetes, eventually
from tests.kubernetes.scheduling.agents import Agent
from tests.kubernetes.scheduling.books import PODS, VMS, Obj
from tests.kubernetes.scheduling.programs import AGENTS
from tests.kubernetes.scheduling.stage import Stage
from vm_image.recipe import Origin

pytestmark = pytest.mark.kubernetes

SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "autoscaling-scheduler", "namespace": "kube-system"},
    "spec": {"ports": [{"name": "agents", "port": AGENTS}]},
}
"""Leads agents to the process in the control plane's network."""

SLICE = {
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "metadata": {
        "name": "autoscaling-scheduler",
        "namespace": "kube-system",
        "labels": {"kubernetes.io/service-name": "autoscaling-scheduler"},
    },
    "addressType": "IPv4",
    "ports": [{"name": "agents", "port": AGENTS, "protocol": "TCP"}],
    "endpoints": [{"addresses": [CONTROL_HOST], "conditions": {"ready": True}}],
}


@pytest.fixture(scope="module")
def programs(real_kubernetes: RealKubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """All programs, with certificates that live as long as in the manifest; the agent's image is on the nodes."""
    folder = tmp_path_factory.mktemp("injector")
    platform = native_platform()
    maker = LayerMaker(Checkout(), platform, platform, Origin(), print)
    archive = build(IMAGES["autoscaler-agent"], maker, "localhost:5001/autoscaler-agent:dev", folder).path
    asyncio.run(load_image(real_kubernetes.folder / "kubernetes" / "nodes", Path(archive)))
    real_kubernetes.apply(SERVICE, SLICE)
    try:
        with running(real_kubernetes, folder, "{}") as (found, _):
            yield found
    finally:
        real_kubernetes.kubectl(
            *("delete", "service/autoscaling-scheduler", "endpointslice/autoscaling-scheduler"),
            *("--namespace=kube-system", "--ignore-not-found"),
        )


@pytest.fixture
def stage(programs: Secured, staged: Callable[[Secured], Stage]) -> Stage:
    return staged(programs)


def agents_in(pod: Obj) -> list[Any]:
    return [each for each in pod["spec"].get("initContainers", []) if each["name"] == "autoscaler-agent"]


def rehearsed(stage: Stage, pod: Obj) -> httpx.Response:
    """The result of a dry run for a pod; its name may be taken."""
    renamed = {**pod, "metadata": {**pod["metadata"], "name": "rehearsal"}}
    return stage.http.post(stage.path(PODS), json=renamed, params={"dryRun": "All"})


def test_vm_grows_with_injected_agent(stage: Stage, programs: Secured) -> None:
    """kube-scheduler shows the extender its certificate, and the agent its token to the service; labels and annotations
    that the VM lacks are cleaned up.
    """
    vm = small_vm(stage, "db")
    pod = done(stage.http.post(stage.path(PODS), json=runner_pod(stage, vm)))
    assert len(agents_in(pod)) == 1
    assert pod["spec"]["serviceAccountName"] == "vm-agent"
    assert len(agents_in(done(rehearsed(stage, runner_pod(stage, vm) | {"spec": pod["spec"]})))) == 1
    stage.until_placed("db")
    said = {"podName": "db", "node": stage.get(PODS, "db")["spec"]["nodeName"]}
    stage.patch(f"{stage.path(VMS, 'db')}/status", {"status": said})
    cleaned = {"metadata": {"annotations": None, "labels": {"app.kubernetes.io/name": None}}}
    stage.patch(stage.path(PODS, "db"), cleaned)
    want(stage, "db", "1", "768Mi")
    try:
        eventually(lambda: in_use(stage) == (1, 6), "the VM has grown")
    finally:
        log = programs.cluster.try_kubectl("logs", "db", "--container=autoscaler-agent", f"--namespace={stage.name}")
        (programs.folder / "agent.log").write_text(log.stdout + log.stderr)


def in_use(stage: Stage) -> tuple[object, object]:
    """CPUs and memory slots that the VM's agent has set."""
    guest = stage.get(VMS, "db")["spec"]["guest"]
    return guest["cpus"]["use"], guest["memorySlots"]["use"]


def agent_process(namespace: str) -> int:
    """The machine's number of the agent's process that runs in a pod there; 0 if none does."""
    wanted = {f"POD_NAMESPACE={namespace}".encode(), b"AGENT_MODE=sidecar"}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if wanted <= set((each / "environ").read_bytes().split(b"\0")):
                return int(each.name)
        except OSError:
            continue  # it has just ended
    return 0


def test_agent_restarts_and_ended_guest_ends_pod(stage: Stage, programs: Secured) -> None:
    """The pods of VMs are not restarted, whichever controller made them: a pod that an agent kept running would keep
    its VM from being started again.
    """
    vm = small_vm(stage, "db")
    pod = runner_pod(stage, vm)
    pod["spec"]["containers"][0]["command"] = [
        *("sh", "-c", "httpd -p 9100 -h /guest; until test -e /end; do sleep 1; done; exit 1"),
    ]
    assert done(stage.http.post(stage.path(PODS), json=pod))["spec"]["restartPolicy"] == "Never"
    stage.until_placed("db")

    def runs_again(times: int) -> bool:
        statuses = stage.get(PODS, "db").get("status", {}).get("initContainerStatuses", [])
        found = [each for each in statuses if each["name"] == "autoscaler-agent" and "running" in each["state"]]
        return [each["restartCount"] for each in found] == [times]

    eventually(lambda: runs_again(0) and agent_process(stage.name) > 0, "the agent runs", 60.0)
    os.kill(agent_process(stage.name), signal.SIGKILL)
    eventually(lambda: runs_again(1), "it is back", 60.0)
    inside = ("exec", "db", "--container=neonvm-runner", f"--namespace={stage.name}", "--")
    programs.cluster.kubectl(*inside, "sh", "-c", ": >/end")
    eventually(lambda: stage.get(PODS, "db")["status"]["phase"] == "Failed", "the pod has ended", 60.0)


def test_opted_out_and_equipped_pods_stay_unchanged(stage: Stage) -> None:
    vm = small_vm(stage, "db")
    plain = runner_pod(stage, vm)
    plain["metadata"]["labels"]["autoscaling.neon.tech/inject-agent"] = "false"
    assert agents_in(done(rehearsed(stage, plain))) == []
    brings = runner_pod(stage, vm)
    brings["spec"]["initContainers"].append({"name": "autoscaler-agent", "image": "own", "restartPolicy": "Always"})
    assert [each["image"] for each in agents_in(done(rehearsed(stage, brings)))] == ["own"]
    no_runner = runner_pod(stage, vm)
    no_runner["spec"]["containers"][0]["name"] = "backup"
    assert agents_in(done(rehearsed(stage, no_runner))) == []


def test_missing_service_account_only_warns(stage: Stage) -> None:
    vm = small_vm(stage, "db")
    done(stage.http.delete(stage.path("serviceaccounts", "vm-agent")))
    answer = rehearsed(stage, runner_pod(stage, vm))
    assert agents_in(done(answer)) == []
    assert "has no service account vm-agent" in answer.headers["Warning"]


def test_recreated_postgres_gets_its_size(stage: Stage) -> None:
    """By its name, as in a StatefulSet: it was resized in place, and starts at the size of its template."""
    pod = postgres("pg-0")
    made = done(stage.http.post(stage.path(PODS), json=pod))
    assert annotations_of(made)["autoscaling.neon.tech/first-requests"] == '{"cpu":"100m","mem":"64Mi"}'
    assert "autoscaling.neon.tech/floor" not in annotations_of(made)
    container = {"name": "postgres", "resources": {"requests": {"cpu": "300m", "memory": "64Mi"}}}
    resize = json.dumps({"spec": {"containers": [container]}})
    merge = {"Content-Type": "application/strategic-merge-patch+json"}
    done(stage.http.patch(f"{stage.path(PODS, 'pg-0')}/resize", content=resize, headers=merge))
    stage.delete_pods("pg-0")
    eventually(lambda: stage.http.get(stage.path(PODS, "pg-0")).status_code == 404, "it is gone", 60.0)
    again = done(stage.http.post(stage.path(PODS), json=pod))
    floor = decode_floor(annotations_of(again)["autoscaling.neon.tech/floor"])
    assert (floor.size, again["spec"]["containers"][0]["resources"]) == (
        Resources.parse("300m", "64Mi"),
        made["spec"]["containers"][0]["resources"],
    )
    others = [postgres("other"), postgres("bad")]
    others[0]["metadata"]["labels"] = {"app": "other"}
    del others[1]["metadata"]["annotations"]
    answers = [rehearsed(stage, each) for each in others]
    assert [
        done(each)["metadata"].get("annotations", {}).keys() & {"autoscaling.neon.tech/first-requests"}
        for each in answers
    ] == [
        set(),
        set(),
    ]
    assert "postgres is not resized" in answers[1].headers["Warning"]


def postgres(name: str) -> Obj:
    """A pod that may have up to 1 CPU and 256Mi."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"autoscaling.neon.tech/enabled": "true"},
            "annotations": {"autoscaling.neon.tech/bounds": '{"max": {"cpu": 1, "mem": "256Mi"}}'},
        },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "postgres",
                    "image": BUSYBOX_IMAGE,
                    "command": ["sleep", "600"],
                    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}},
                }
            ],
        },
    }


def test_extender_requires_client_certificate(programs: Secured) -> None:
    """The server's certificate is valid, but the server does not read requests without a client certificate."""
    with pytest.raises(OSError, match=r"(?i)certificate required|reset|closed|EOF|violation"):
        programs.ask_with_tls("POST", 10298, "/bind", {})


def test_token_of_deleted_pod_is_rejected(stage: Stage) -> None:
    vm = small_vm(stage, "db")
    done(stage.http.post(stage.path(PODS), json=runner_pod(stage, vm, serviceAccountName="agent")))
    stage.until_placed("db")
    agent = Agent.of(stage, stage.get(PODS, "db"))
    eventually(lambda: agent.ask(1, 2)[0] == 200, "its agent is heard", 10.0)
    stage.delete_pods("db")
    eventually(lambda: agent.ask(1, 2)[0] in {401, 403, 404}, "it is not any more", 2.0)
