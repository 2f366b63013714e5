"""kube-scheduler evicts pods of lower priority, and our service is asked whether that helps."""

from __future__ import annotations

import pytest

from protocol.units import Resources
from tests.kubernetes.real_kubernetes import eventually
from tests.kubernetes.scheduling.agents import Agent
from tests.kubernetes.scheduling.stage import Stage

pytestmark = pytest.mark.kubernetes


def grown(stage: Stage, name: str, size: Resources) -> Agent:
    """The agent of a VM that has a node and has grown there: its pod asks for 100m, as at the beginning."""
    agent = Agent.of(stage, stage.vm_pod(stage.vm(name), name))
    stage.until_placed(name)
    assert agent.go_to(size)
    return agent


def test_urgent_pod_preempts_one_pod(stage: Stage) -> None:
    urgent = stage.priority()
    node = stage.node("n")
    for number in range(4):
        stage.pod(f"pod-{number}")
    stage.until_placed(*(f"pod-{number}" for number in range(4)))
    stage.pod("urgent", priorityClassName=urgent)
    assert stage.until_placed("urgent") == {"urgent": node}
    assert len(stage.pod_names()) == 4
    stage.until_books_agree()


def test_urgent_vm_waits_for_its_victim(stage: Stage) -> None:
    urgent = stage.priority()
    node = stage.node("n")
    for number in range(4):
        stage.pod(f"pod-{number}", terminationGracePeriodSeconds=600)
    stage.until_placed(*(f"pod-{number}" for number in range(4)))
    stage.pod("rival")
    stage.until_refused("rival")
    stage.pod("urgent", priorityClassName=urgent)
    leaving: list[str] = []

    def is_terminating() -> bool:
        leaving[:] = [p["metadata"]["name"] for p in stage.pods() if "deletionTimestamp" in p["metadata"]]
        return bool(leaving)

    eventually(is_terminating, "a victim is chosen", 30.0)
    stage.until_books_agree()
    stage.delete_pods(*leaving)
    assert (len(leaving), stage.until_placed("urgent")) == (1, {"urgent": node})
    assert stage.until_refused("rival")
    assert len(stage.pod_names()) == 5
    stage.until_books_agree()


def test_preempted_room_is_kept_for_urgent_pod(stage: Stage) -> None:
    """kube-scheduler sees such small requests of the VMs' pods that they fit next to the urgent one."""
    urgent = stage.priority()
    node, low = stage.node("n"), [f"pod-{number}" for number in range(4)]
    for name in low:
        stage.pod(name)
    stage.until_placed(*low)
    rivals = [f"rival-{number}" for number in range(3)]
    for name in rivals:
        stage.vm_pod(stage.vm(name), name)
    stage.until_refused(*rivals)
    stage.pod("urgent", priorityClassName=urgent)
    assert stage.until_placed("urgent") == {"urgent": node}
    assert len(stage.pod_names() & set(low)) == 3
    assert stage.until_refused(*rivals)
    stage.until_books_agree()


def test_insufficient_preemption_evicts_nothing(stage: Stage) -> None:
    """kube-scheduler counts pod requests, by which evicting one pod would be enough."""
    urgent = stage.priority()
    stage.node("n")
    grown(stage, "big", Resources.parse("2500m", "4Gi"))
    stage.pod("small")
    stage.until_placed("small")
    stage.pod("urgent", "3500m", priorityClassName=urgent)
    assert "no candidate node for preemption" in stage.until_refused("urgent")["urgent"]
    assert stage.pod_names() == {"big", "small", "urgent"}
    stage.until_books_agree()


def test_grown_vm_is_not_preempted(stage: Stage) -> None:
    """Here kube-scheduler finds no victim at all, and asks us nothing; the pod is placed once the VM shrinks."""
    urgent = stage.priority()
    node = stage.node("n")
    agent = grown(stage, "big", Resources.parse(3, "4Gi"))
    stage.pod("urgent", "2", priorityClassName=urgent)
    assert "Insufficient cpu" in stage.until_refused("urgent")["urgent"]
    assert stage.pod_names() == {"big", "urgent"}
    assert agent.go_to(Resources.parse(2, "4Gi"))
    assert stage.until_placed("urgent") == {"urgent": node}


def test_urgent_vm_preempts_vm_by_requests(stage: Stage) -> None:
    urgent = stage.priority()
    node = stage.node("n", "2500m")
    stage.vm_pod(stage.vm("first", 2, 4), "first", "2", "4Gi")
    stage.until_placed("first")
    stage.vm_pod(stage.vm("second", 2, 4), "second", "2", "4Gi", priorityClassName=urgent)
    assert stage.until_placed("second") == {"second": node}
    assert stage.pod_names() == {"second"}
    stage.until_books_agree()
