"""Kubelets answer for their nodes: what they have set aside is permitted (B.10)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Final

import pytest

from deploy.local.kubernetes.plan.image_names import BUSYBOX_IMAGE
from protocol.units import Resources
from tests.kubernetes.real_kubernetes import eventually
from tests.kubernetes.requests.grown import until_requested
from tests.kubernetes.scheduling.agents import Agent
from tests.kubernetes.scheduling.books import PODS
from tests.kubernetes.scheduling.stage import Stage

pytestmark = pytest.mark.kubernetes
NODE: Final = "node-1"
SMALL: Final = Resources.parse("500m", "1Gi")


@pytest.fixture
def agent(stage: Stage) -> Iterator[Agent]:
    """The agent of a VM of half a CPU and 1 GiB whose pod runs on a real node, none of which is kept back."""
    nothing = {"nodes": [NODE], "cpu": {"system": "0"}, "memory": {"system": "0"}}
    stage.programs.set_overrides(nothing)
    runner = {
        "name": "neonvm-runner",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}},
    }
    pod = stage.vm_pod(
        stage.vm("db", "500m", 1), "db", containers=[runner], nodeSelector={"kubernetes.io/hostname": NODE}
    )
    stage.until_placed("db")
    eventually(lambda: allocated(stage) == SMALL, "the pod runs with what its VM has", 60.0)
    yield Agent.of(stage, pod)
    stage.programs.set_overrides()


def allocated(stage: Stage) -> Resources | None:
    statuses = stage.get(PODS, "db")["status"].get("containerStatuses") or [{}]
    found = statuses[0].get("allocatedResources")
    return None if found is None else Resources.parse(found["cpu"], found["memory"])


def test_an_agent_hears_of_its_permit_once_the_kubelet_has_set_it_aside(stage: Stage, agent: Agent) -> None:
    waits = []
    for step in range(6):
        wanted = Resources.parse(f"{600 + 50 * step}m", "1Gi")
        began = time.monotonic()
        eventually(lambda wanted=wanted: agent.go_to(wanted) and agent.held == wanted, "it has grown", 20.0)  # type: ignore[misc]
        waits.append(time.monotonic() - began)
        held = allocated(stage)
        assert held is not None
        assert agent.held.within(held)
    print(f"growth with requests: median {statistics.median(waits):.3f} s, most {max(waits):.3f} s")
    assert agent.go_to(SMALL)
    until_requested(stage, "db", SMALL)
    eventually(lambda: allocated(stage) == SMALL, "the kubelet has let go of it", 20.0)
