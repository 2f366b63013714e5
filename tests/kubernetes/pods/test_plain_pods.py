"""Postgres without an operator: a StatefulSet follows its load, and pods that others scale by requests are refused
(B.7).
"""

from __future__ import annotations

import time
from typing import Final

import pytest

from protocol.units import Resources
from tests.kubernetes.pods.load import load
from tests.kubernetes.pods.plain_pods import applied, pod_of, rests
from tests.kubernetes.pods.pod_stage import Obj, PodStage, actual, container, desired, restarts
from tests.kubernetes.pods.pod_watch import PodWatch
from tests.kubernetes.pods.postgres import FLOOR, quantities, template, workload
from tests.kubernetes.real_kubernetes import eventually

pytestmark = pytest.mark.kubernetes

BACK: Final = 60.0
BY_UTILIZATION: Final[Obj] = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "busy"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"},
        "minReplicas": 1,
        "maxReplicas": 2,
        "metrics": [
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
            }
        ],
    },
}


def test_stateful_set_pod_follows_load(stage: PodStage, watch: PodWatch) -> None:
    """Its CPU limit is half a CPU above its request, its memory limit is its request: it is Burstable."""
    limits = Resources.parse("1", "512Mi")
    with applied(stage, workload("StatefulSet", "alone", template("alone", quantities(FLOOR), quantities(limits)))):
        pod = pod_of(stage, "alone")
        server = stage.server(pod)
        server.prepare(scale=5)
        rests(stage, pod)
        with load(server, "-S") as burst:
            watch.until(pod, lambda each: actual(each).cpu > FLOOR.cpu, burst.began, 30.0)
            time.sleep(3.0)
        ended = time.monotonic()
        grown = [container(each.pod)["resources"] for each in watch.of(pod, burst.began)]
        above = {
            (each["limits"]["memory"] == each["requests"]["memory"], difference(each).cpu.quantity()) for each in grown
        }
        assert above == {(True, "500m")}
        watch.until(pod, lambda each: desired(each) == actual(each) == FLOOR, ended, BACK)
        assert restarts(stage.pod(pod)) == 0


def difference(resources: Obj) -> Resources:
    limits, requests = (
        Resources.parse(each["cpu"], each["memory"]) for each in (resources["limits"], resources["requests"])
    )
    return limits - requests


def test_utilization_hpa_blocks_resizes(stage: PodStage, watch: PodWatch) -> None:
    scaled = workload("Deployment", "scaled", template("scaled", quantities(FLOOR), quantities(FLOOR)))
    with applied(stage, scaled, BY_UTILIZATION):
        pod = pod_of(stage, "scaled")
        eventually(lambda: any("HorizontalPodAutoscaler busy" in each for each in told(stage, pod)), "it is told", 60.0)
        server = stage.server(pod)
        server.prepare(scale=5)
        with load(server, "-S") as burst:
            time.sleep(8.0)
            assert {desired(each.pod) for each in watch.of(pod, burst.began)} <= {FLOOR}
            explained = stage.scheduler_explains(pod)
            assert "HorizontalPodAutoscaler busy" in str(explained), explained
            stage.cluster.kubectl("delete", "horizontalpodautoscaler/busy")
            gone = time.monotonic()
            watch.until(pod, lambda each: actual(each).cpu > FLOOR.cpu, gone, 15.0)


def told(stage: PodStage, pod: str) -> list[str]:
    """Event messages about the pod."""
    events = stage.cluster.get("events", f"--field-selector=involvedObject.name={pod}")["items"]
    return [f"{each['reason']}: {each['message']}" for each in events]
