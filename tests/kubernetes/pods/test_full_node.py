"""Pods of postgres on a node that is nearly full: who gets its room, and that it is never given twice (B.7)."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from protocol.names import ANNOTATION_CONFIG
from protocol.units import ZERO, MilliCpu, Resources
from tests.kubernetes.pods.plain_pods import applied, pod_of, rests
from tests.kubernetes.pods.pod_stage import Obj, PodStage, actual, desired
from tests.kubernetes.pods.pod_watch import PodWatch
from tests.kubernetes.pods.postgres import CEILING, FLOOR, quantities, template, workload
from tests.kubernetes.postgres_session import password_of
from tests.kubernetes.real_kubernetes import busybox_pod, eventually
from tests.kubernetes.scheduling.books import requests_of
from tests.kubernetes.vms import VM, status

pytestmark = pytest.mark.kubernetes

NODE: Final = "node-1"
RACES: Final = int(os.environ.get("AUTOSCALE_RACES", "5"))
MAKES_ROOM: Final = 15.0
"""Seconds until a VM has moved away, and who waits for its room has it."""

GIVES_BACK: Final = 45.0
"""The same of a neighbour that has only just become idle: it has to prove that it needs less."""

LARGER: Final = Resources(FLOOR.cpu * 2, FLOOR.mem)
KEPT_BACK: Final = MilliCpu(500)
"""Of each node, by our scheduler; the default one gives it away."""


def alone(name: str, node: str = NODE) -> Obj:
    pods = template(name, quantities(FLOOR), quantities(FLOOR))
    pods["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return workload("StatefulSet", name, pods)


def filler(name: str, cpu: MilliCpu, node: str = NODE) -> Obj:
    sizes = {"cpu": cpu.quantity(), "memory": "16Mi"}
    return busybox_pod(name, "sleep", "100000", node=node, resources={"requests": sizes, "limits": sizes})


def free(stage: PodStage, node: str = NODE) -> MilliCpu:
    """CPU of the node that our scheduler can still grant."""
    allocatable = MilliCpu.parse(stage.cluster.get("node", node)["status"]["allocatable"]["cpu"])
    return allocatable - KEPT_BACK - stage.reserved(node).cpu


@pytest.fixture
def vm(stage: PodStage) -> Iterator[str]:
    """The node of a VM of one CPU, which may move."""
    labels = {**VM["metadata"]["labels"], "autoscaling.neon.tech/auto-migration-enabled": "true"}
    stage.cluster.apply(password_of("db"), {**VM, "metadata": {**VM["metadata"], "labels": labels}})
    try:
        stage.cluster.wait("condition=Available", "neonvm/db")
        yield str(status(stage.cluster)["node"])
    finally:
        stage.cluster.kubectl("delete", "neonvm/db", "--timeout=120s")


def waits_for(stage: PodStage, watch: PodWatch, pod: str) -> float:
    """Seconds until the pod has the CPU that it wants from now on."""
    began = time.monotonic()
    stage.bound(pod, CEILING, LARGER)
    return watch.until(pod, lambda each: actual(each).cpu == LARGER.cpu, began, 4 * MAKES_ROOM).at - began


def test_vm_migrates_to_make_room_for_pod(stage: PodStage, watch: PodWatch, vm: str) -> None:
    with applied(stage, alone("stays", vm)):
        pod = pod_of(stage, "stays")
        rests(stage, pod)
        with applied(stage, filler("filler", free(stage, vm), vm)):
            stage.cluster.wait("condition=Ready", "pod/filler")
            seconds = waits_for(stage, watch, pod)
            print(f"a VM has made room after {seconds:.1f} s")
            eventually(lambda: status(stage.cluster)["node"] != vm, "it is on the other node")
            assert seconds <= MAKES_ROOM


def test_denied_pod_grows_after_neighbour_shrinks(stage: PodStage, watch: PodWatch) -> None:
    with applied(stage, alone("idle"), alone("waits")):
        idle, waits = pod_of(stage, "idle"), pod_of(stage, "waits")
        rests(stage, idle, waits)
        # By the default policy it would keep what it had for minutes.
        stage.cluster.kubectl("annotate", f"pod/{idle}", f"{ANNOTATION_CONFIG}-")
        waits_for(stage, watch, idle)
        stage.bound(idle, CEILING)
        with applied(stage, filler("filler", free(stage))):
            stage.cluster.wait("condition=Ready", "pod/filler")
            seconds = waits_for(stage, watch, waits)
            print(f"a neighbour has made room after {seconds:.1f} s")
            assert seconds <= GIVES_BACK


def test_pending_and_growing_pods_never_overcommit(stage: PodStage, watch: PodWatch) -> None:
    """Both want the last room at about the same time; our scheduler does not place the pending one."""
    large = Resources(CEILING.cpu + FLOOR.cpu, FLOOR.mem)
    with applied(stage, alone("grows")):
        pod = pod_of(stage, "grows")
        rests(stage, pod)
        stage.bound(pod, large, FLOOR)
        outcomes = Counter[str]()
        with applied(stage, filler("filler", free(stage) - CEILING.cpu)):
            stage.cluster.wait("condition=Ready", "pod/filler")
            others = stage.requested(NODE) - requests_of(stage.pod(pod)) - requests_of(stage.pod("filler"))
            for number in range(RACES):
                outcomes[race(stage, watch, pod, large, f"race-{number}")] += 1
        print(f"{RACES} races: {dict(outcomes)}")
        room = MilliCpu.parse(stage.cluster.get("node", NODE)["status"]["allocatable"]["cpu"])
        assert most_allocated(watch) + others.cpu <= room
        assert not any("OutOf" in outcome for outcome in outcomes)


def race(stage: PodStage, watch: PodWatch, pod: str, large: Resources, rival: str) -> str:
    """Let both request the room; afterwards neither has it."""
    lag = random.uniform(-0.5, 0.5)
    wants = threading.Timer(max(0.0, lag), stage.bound, (pod, large, large))
    began = time.monotonic()
    wants.start()
    time.sleep(max(0.0, -lag))
    with applied(stage, filler(rival, CEILING.cpu)):
        wants.join()
        eventually(lambda: is_judged(stage.pod(rival)), "the default scheduler has judged it", 30.0)
        time.sleep(2.0)  # for the agent to ask, and for the kubelet
        place, size = stage.pod(rival), actual(stage.pod(pod))
        won = "placed" if "nodeName" in place["spec"] else "waits"
        outcome = f"rival {won} {place['status'].get('reason', '')}, postgres has {size.cpu} CPU"
    # Its room is free again, and nobody else wants it.
    watch.until(pod, lambda each: actual(each).cpu == large.cpu, began, 4 * MAKES_ROOM)
    small = time.monotonic()
    stage.bound(pod, large, FLOOR)
    watch.until(pod, lambda each: desired(each) == actual(each) == FLOOR, small, 60.0)
    return outcome


def is_judged(pod: Obj) -> bool:
    """The default scheduler has placed it, or said why not."""
    return any(each["type"] == "PodScheduled" for each in pod["status"].get("conditions", []))


def most_allocated(watch: PodWatch) -> MilliCpu:
    """The most CPU that the kubelet had set aside for the watched pods of the node at any time."""
    now, most = dict[str, MilliCpu](), ZERO.cpu
    for each in watch.moments:
        metadata, told = each.pod["metadata"], each.pod["status"]
        is_here = each.pod["spec"].get("nodeName") == NODE and not each.is_gone
        is_there = is_here and told.get("phase") in {"Pending", "Running"}
        held = [state.get("allocatedResources", {}).get("cpu", "0") for state in told.get("containerStatuses", [])]
        now[metadata["uid"]] = sum(map(MilliCpu.parse, held), ZERO.cpu) if is_there else ZERO.cpu
        most = max(most, sum(now.values(), ZERO.cpu))
    return most
