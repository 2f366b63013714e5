"""A pod that our service refused is tried again as soon as there is room; kube-scheduler alone would wait minutes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from protocol.names import ANNOTATION_PERMIT
from protocol.units import Resources
from tests.conformance.cluster import done
from tests.kubernetes.attacks.world import SCHEDULER
from tests.kubernetes.real_kubernetes import eventually
from tests.kubernetes.scheduling.agents import Agent
from tests.kubernetes.scheduling.books import PODS, VMS
from tests.kubernetes.scheduling.stage import Stage

pytestmark = pytest.mark.kubernetes

SOON: Final = 5.0
"""Seconds: kube-scheduler's back-off after a first failure, and one interval of ours, on a busy machine."""

Freeing = Callable[[Stage, Agent], None]


def the_pod_goes(stage: Stage, big: Agent) -> None:
    stage.delete_pods(big.vm)


def the_pod_finishes(stage: Stage, big: Agent) -> None:
    stage.patch(f"{stage.path('pods', big.vm)}/status", {"status": {"phase": "Succeeded"}})


def the_vm_shrinks(stage: Stage, big: Agent) -> None:
    assert big.go_to(Resources.parse(1, "2Gi"))


def the_node_grows(stage: Stage, big: Agent) -> None:
    node = stage.placed()[big.vm]
    stage.patch(f"/api/v1/nodes/{node}/status", {"status": {"allocatable": {"cpu": "8", "memory": "32Gi"}}})


def the_waiting_vm_wants_less(stage: Stage, big: Agent) -> None:
    guest = {"cpus": {"use": "500m"}, "memorySlots": {"use": 1}}
    stage.patch(stage.path(VMS, "waits"), {"spec": {"guest": guest}, "status": None})
    stage.guest_has("waits", "500m", 1)


@pytest.mark.parametrize(
    "freeing", [the_pod_goes, the_pod_finishes, the_vm_shrinks, the_node_grows, the_waiting_vm_wants_less]
)
def test_waiting_pod_is_placed_when(stage: Stage, freeing: Freeing) -> None:
    node = stage.node("n")
    stage.vm("big")
    waiting = stage.vm("waits", 2, 4)
    big = Agent.of(stage, stage.vm_pod(stage.get(VMS, "big"), "big"))
    stage.until_placed("big")
    assert big.go_to(Resources.parse("3500m", "15Gi"))
    stage.vm_pod(waiting, "waits")
    assert "Insufficient cpu" in stage.until_refused("waits")["waits"]
    freeing(stage, big)
    assert stage.until_placed("waits", seconds=SOON) == {"waits": node}
    stage.until_books_agree()


def test_in_place_shrink_makes_room(stage: Stage) -> None:
    node = stage.node("n")
    stage.pod("big", "3500m")
    stage.until_placed("big")
    stage.pod("waits", "2")
    assert "Insufficient cpu" in stage.until_refused("waits")["waits"]
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}}
    container = {**stage.get(PODS, "big")["spec"]["containers"][0], "resources": resources}
    stage.patch(f"{stage.path(PODS, 'big')}/resize", {"spec": {"containers": [container]}})
    assert stage.until_placed("waits", seconds=SOON) == {"waits": node}
    stage.until_books_agree()


def test_smaller_system_reserve_makes_room(stage: Stage) -> None:
    node = stage.node("n")
    stage.pod("big", "3500m")
    stage.until_placed("big")
    stage.pod("waits")
    assert "Insufficient cpu" in stage.until_refused("waits")["waits"]
    stage.programs.set_overrides({"nodes": [node], "cpu": {"system": "0"}})
    try:
        assert stage.until_placed("waits", seconds=SOON) == {"waits": node}
    finally:
        stage.programs.set_overrides()


def test_deleted_vm_keeps_room_until_pod_is_gone(stage: Stage) -> None:
    node = stage.node("n")
    stage.vm_pod(stage.vm("big", "3500m", 15), "big", terminationGracePeriodSeconds=600)
    stage.until_placed("big")
    stage.vm_pod(stage.vm("waits", 2, 4), "waits")
    stage.until_refused("waits")
    done(stage.http.delete(stage.path(VMS, "big")))
    eventually(lambda: "deletionTimestamp" in stage.get(PODS, "big")["metadata"], "its pod is to go, too", 30.0)
    assert stage.their_books() == {node: Resources.parse("3500m", "15Gi")}
    assert "Insufficient cpu" in stage.until_refused("waits")["waits"]
    stage.delete_pods("big")
    assert stage.until_placed("waits", seconds=SOON) == {"waits": node}
    stage.until_books_agree()


def test_unreadable_permit_reserves_the_maximum(stage: Stage) -> None:
    node = stage.node("n", "8500m")
    odd = stage.vm("odd")
    stage.vm_pod(odd, "odd")
    stage.until_placed("odd")
    stage.patch(
        stage.path(VMS, "odd"), {"metadata": {"annotations": {ANNOTATION_PERMIT: "much"}}}, by=SCHEDULER.username
    )
    stage.pod("waits")
    assert "Insufficient cpu" in stage.until_refused("waits")["waits"]
    stage.patch(stage.path(VMS, "odd"), {"metadata": {"annotations": {ANNOTATION_PERMIT: None}}})
    assert stage.until_placed("waits", seconds=SOON) == {"waits": node}


def test_uncordoned_node_accepts_pods(stage: Stage) -> None:
    node = stage.node("n")
    stage.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    stage.pod("waits")
    assert "unschedulable" in stage.until_refused("waits")["waits"]
    stage.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})
    assert stage.until_placed("waits", seconds=SOON) == {"waits": node}
