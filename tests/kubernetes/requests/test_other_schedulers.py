"""The default scheduler, preemption, quotas and admission are right about VMs, unpatched (B.10)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.units import Resources
from tests.conformance.cluster import STRATEGIC_PATCH, done
from tests.kubernetes.real_kubernetes import eventually
from tests.kubernetes.requests.grown import explained, requested, started, until_requested
from tests.kubernetes.scheduling.books import PODS, requests_of
from tests.kubernetes.scheduling.stage import Stage

pytestmark = pytest.mark.kubernetes
SCHEDULER = "system:serviceaccount:kube-system:autoscaling-scheduler"


def test_default_scheduler_respects_permits(stage: Stage) -> None:
    node = stage.node("n")
    agent = started(stage, "db")
    assert requested(stage, "db") == Resources.parse(1, "2Gi")
    assert agent.go_to(Resources.parse(3, "4Gi"))
    assert agent.held == requested(stage, "db") == Resources.parse(3, "4Gi")
    stage.pod("other", "2", schedulerName="default-scheduler")
    assert "Insufficient cpu" in stage.until_refused("other")["other"]
    assert agent.go_to(Resources.parse(1, "2Gi"))
    assert stage.until_placed("other") == {"other": node}
    assert requested(stage, "db") == Resources.parse(1, "2Gi")
    stage.until_books_agree()


def test_preemption_considers_grown_vm(stage: Stage) -> None:
    urgent = stage.priority()
    node = stage.node("n")
    assert started(stage, "big").go_to(Resources.parse(3, "4Gi"))
    stage.pod("urgent", "2", priorityClassName=urgent)
    assert stage.until_placed("urgent") == {"urgent": node}
    assert stage.pod_names() == {"urgent"}
    _, metrics = stage.programs.get("/metrics")
    assert 'autoscale_scheduler_extender_calls_total{outcome="done",verb="preempt"}' in metrics
    stage.until_books_agree()


def test_waiting_vm_preempts_lower_priority_pod(stage: Stage) -> None:
    urgent = stage.priority()
    node = stage.node("n")
    stage.pod("low", "3")
    stage.until_placed("low")
    stage.vm_pod(stage.vm("db", 2, 4), "db", priorityClassName=urgent)
    assert stage.until_placed("db") == {"db": node}
    assert (stage.pod_names(), requested(stage, "db")) == ({"db"}, Resources.parse(2, "4Gi"))


def test_cluster_autoscaler_sees_reservations(
    stage: Stage,
) -> None:
    """It goes by requests alone: those on a node say whether it may go, those of waiting pods which node would help."""
    node = stage.node("n")
    agents = [started(stage, name) for name in ("a", "b")]
    stage.pod("other", "250m")
    stage.until_placed("other")
    for agent, cpu in zip(agents, (2, 1), strict=True):
        assert agent.go_to(Resources.parse(cpu, "4Gi"))

    def is_as_full() -> bool:
        pods = done(stage.http.get(stage.path(PODS)))["items"]
        there = Resources.sum(requests_of(each) for each in pods if each["spec"].get("nodeName") == node)
        return there == stage.their_books()[node] and requested(stage, "a") == agents[0].held == Resources.parse(
            2, "4Gi"
        )

    eventually(is_as_full, "requests are what the book says", 20.0)
    stage.vm_pod(stage.vm("late", 2, 4), "late")
    stage.until_refused("late")
    until_requested(stage, "late", Resources.parse(2, "4Gi"))


def test_full_cpu_quota_blocks_only_cpu(stage: Stage) -> None:
    stage.node("n")
    agent = started(stage, "db")
    quota = {"metadata": {"name": "cpu"}, "spec": {"hard": {"requests.cpu": "2"}}}
    done(stage.http.post(stage.path("resourcequotas"), json=quota))

    def is_counted() -> bool:
        return bool(stage.get("resourcequotas", "cpu").get("status", {}).get("used", {}).get("requests.cpu") == "1")

    eventually(is_counted, "the quota has been counted", 30.0)
    assert agent.go_to(Resources.parse(3, "4Gi"))
    assert (agent.held, requested(stage, "db")) == (Resources.parse(1, "4Gi"), Resources.parse(1, "4Gi"))
    assert "exceeded quota: cpu" in explained(stage, "db")["requestsProblem"]
    assert agent.go_to(Resources.parse(3, "2Gi"))  # within the back-off less is tried
    assert agent.held == Resources.parse(2, "2Gi")
    done(stage.http.delete(stage.path("resourcequotas", "cpu")))
    eventually(lambda: agent.go_to(Resources.parse(3, "4Gi")) and agent.held.cpu.as_cores == 3, "it has grown", 30.0)


def test_requests_never_exceed_the_node(stage: Stage) -> None:
    node = stage.node("n")
    agent = started(stage, "db")
    assert agent.go_to(Resources.parse(16, "64Gi"))
    assert agent.held == requested(stage, "db") == stage.rooms[node]


def test_restarted_scheduler_finds_raised_requests(stage: Stage) -> None:
    stage.node("n")
    agent = started(stage, "db")
    assert agent.go_to(Resources.parse(3, "4Gi"))
    stage.programs.kill_service()
    stage.programs.start_service()
    stage.programs.until_ready()
    assert requested(stage, "db") == Resources.parse(3, "4Gi")
    assert agent.go_to(Resources.parse(3, "5Gi"))
    assert agent.held == requested(stage, "db") == Resources.parse(3, "5Gi")


@pytest.mark.parametrize("what", ["memory limit", "another container", "another's pod"])
def test_scheduler_account_resizes_only_runners(stage: Stage, what: str) -> None:
    stage.node("n")
    resources = {"requests": {"cpu": "100m"}}
    sidecar = {"name": "sidecar", "image": "example.invalid/image", "resources": resources}
    runner = {**sidecar, "name": "neonvm-runner"}
    stage.vm_pod(stage.vm("db"), "db", containers=[runner, sidecar])
    stage.pod("other", containers=[runner])
    more: dict[str, tuple[str, Any]] = {
        "memory limit": ("db", {"name": "neonvm-runner", "resources": {"limits": {"memory": "2Gi"}}}),
        "another container": ("db", {"name": "sidecar", "resources": {"requests": {"cpu": "200m"}}}),
        "another's pod": ("other", {"name": "neonvm-runner", "resources": {"requests": {"cpu": "200m"}}}),
    }
    pod, change = more[what]
    headers = {"Impersonate-User": SCHEDULER, "Content-Type": STRATEGIC_PATCH}
    path = f"{stage.path(PODS, pod)}/resize"
    answer = stage.http.patch(path, json={"spec": {"containers": [change]}}, headers=headers)
    assert answer.status_code == 403
    assert "the scheduler may change only the requests and the CPU limit of the guest's container" in answer.text
