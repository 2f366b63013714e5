"""Differences between pods and their spec: number, template, readiness and size."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.kubernetes.objects import Json, JsonObject
from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.workload import ResourceList, SizedContainer
from scheduler_plugin.groups.objects.targets import TARGET_KINDS, running_pods

DEPLOYMENT = TARGET_KINDS["apps", "Deployment"]
REPLICA_SET = TARGET_KINDS["apps", "ReplicaSet"]
VM = TARGET_KINDS["vm.neon.tech", "VirtualMachine"]
READY = {"type": "Ready", "status": "True"}


def container(name: str = "app", **requests: str) -> Json:
    return {"name": name, "resources": {"requests": requests}}


def target(ordered: object = 2, /, **status: int) -> Json:
    """A Deployment of two pods of half a vCPU that are as they should be, but for ``status``."""
    template = {"spec": {"containers": [container(cpu="500m")]}}
    whole = {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, **status}
    spec = {"replicas": ordered, "template": template}
    return {"metadata": {"name": "web", "namespace": "a", "generation": 3}, "spec": spec, "status": whole}


def pod(
    name: str, *conditions: JsonObject, cpu: str = "500m", memory: str = "", allocated: str = "", **spec: Any
) -> Json:
    requests = {"cpu": cpu, **({"memory": memory} if memory else {})}
    statuses = [{"name": "app", "allocatedResources": {"cpu": allocated}}] if allocated else []
    return {
        "metadata": {"name": name, "namespace": "a"},
        "spec": {"containers": [container(**requests)], **spec},
        "status": {"conditions": [dict(each) for each in conditions], "containerStatuses": statuses},
    }


def sizes(cpu: int, memory: int | None = None) -> tuple[SizedContainer, ...]:
    return (SizedContainer("app", ResourceList(MilliCpu(cpu), None if memory is None else Bytes(memory))),)


PAIR = (pod("web-1", READY), pod("web-2", READY))


def difference(found: Json, *pods: Json) -> str:
    said = running_pods(found, DEPLOYMENT, pods)
    assert said is not None
    return said.difference


def test_pods_as_ordered_differ_in_nothing() -> None:
    found = running_pods(target(), DEPLOYMENT, PAIR)
    assert found is not None
    assert (found.ready, found.sizes, found.difference, found.refused) == (2, sizes(500), "", ())


def test_a_target_without_a_status_is_not_judged() -> None:
    assert running_pods({**target(), "status": {}}, DEPLOYMENT, PAIR) is None
    assert running_pods(target(), VM, ()) is None


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (target(observedGeneration=2), "the Deployment has just been changed"),
        (target(updatedReplicas=1), "1 of 2 pods have the latest template"),
        (target(replicas=3), "3 of 2 pods exist"),
        (target(3, updatedReplicas=3, readyReplicas=3), "2 of 3 pods exist"),
        (target(readyReplicas=1), "1 of 2 pods are ready"),
        (target(None, replicas=1, updatedReplicas=1, readyReplicas=1), ""),
    ],
)
def test_the_controller_says_how_pods_differ(found: Json, said: str) -> None:
    assert difference(found, *PAIR) == said


def test_sizes_are_the_mean_of_ready_pods() -> None:
    """Of each container, sidecars included; a pod that leaves, has ended or is not ready does not count."""
    sidecar = {**container("proxy", cpu="100m"), "restartPolicy": "Always"}
    pods = [
        pod("web-1", READY, cpu="1", initContainers=[sidecar, container("init", cpu="4")]),
        pod("web-2", READY, cpu="500m"),
        pod("web-3", cpu="9"),
        {**pod("web-4", READY, cpu="9"), "metadata": {"name": "web-4", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {**pod("web-5", cpu="9"), "status": {"phase": "Failed"}},
    ]
    found = running_pods(target(), DEPLOYMENT, pods)
    assert found is not None
    assert found.sizes == (*sizes(750), SizedContainer("proxy", ResourceList(MilliCpu(50))))


def test_without_pods_the_template_counts() -> None:
    found = running_pods(target(readyReplicas=0), DEPLOYMENT, ())
    assert found is not None
    assert (found.ready, found.sizes) == (0, sizes(500))


def test_without_a_ready_pod_all_count() -> None:
    found = running_pods(target(readyReplicas=0), DEPLOYMENT, [pod("web-1", cpu="2")])
    assert found is not None
    assert found.sizes == sizes(2000)


@pytest.mark.parametrize(
    "other",
    [
        pod("web-2", READY),
        pod("web-2", READY, {"type": "PodResizeInProgress", "status": "True"}, cpu="1"),
        pod("web-2", READY, {"type": "PodResizePending", "status": "True"}, cpu="1"),
        pod("web-2", READY, cpu="1", allocated="500m"),
    ],
    ids=["not asked yet", "in progress", "pending", "not allocated"],
)
def test_a_pod_without_its_size_in_place_differs(other: Json) -> None:
    pods = (pod("web-1", READY, cpu="1", allocated="1"), other)
    found = running_pods(target(), DEPLOYMENT, pods, sizes(1000))
    assert found is not None
    assert found.difference == "1 of 2 pods have another size: web-2"
    same = running_pods(target(), DEPLOYMENT, (pods[0], pods[0]), sizes(1000))
    assert same is not None
    assert same.difference == ""


def test_more_than_three_pods_are_counted() -> None:
    pods = [pod(f"web-{number}") for number in range(5)]
    found = running_pods(target(), DEPLOYMENT, pods, sizes(1000))
    assert found is not None
    assert found.difference == "5 of 5 pods have another size: web-0, web-1, web-2 and 2 more"


def test_replica_set_keeps_old_pods() -> None:
    """The status of a ReplicaSet does not mention its template, so its pods are compared with the template."""
    found = running_pods(target(updatedReplicas=0), REPLICA_SET, [pod("web-1", READY), pod("web-2", READY, cpu="1")])
    assert found is not None
    assert found.difference == "1 of 2 pods have another size: web-2"


def test_refused_size_is_maximum_of_all_pods() -> None:
    """Of what is asked for and not had; memory is had."""
    asked = (*sizes(4000, 100), SizedContainer("log", ResourceList(MilliCpu(1))))
    pods = [pod("web-1", READY, memory="100"), pod("web-2", READY, cpu="4", memory="100", allocated="1")]
    found = running_pods(target(), DEPLOYMENT, pods, asked, refused=True)
    assert found is not None
    assert found.refused == sizes(1000)
    waits = running_pods(target(), DEPLOYMENT, pods, asked)
    assert waits is not None
    assert waits.refused == ()
