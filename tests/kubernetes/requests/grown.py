"""VMs whose pods follow them, as the stories of this folder need them."""

from __future__ import annotations

from typing import Any

from protocol.units import Resources
from tests.kubernetes.real_kubernetes import eventually
from tests.kubernetes.scheduling.agents import Agent
from tests.kubernetes.scheduling.books import PODS, requests_of
from tests.kubernetes.scheduling.stage import Stage


def requested(stage: Stage, pod: str) -> Resources:
    """Requests of the pod's containers."""
    return requests_of(stage.get(PODS, pod))


def until_requested(stage: Stage, pod: str, size: Resources) -> None:
    """Returns once the pod requests just that."""
    eventually(lambda: requested(stage, pod) == size, f"{pod} requests {size}", 20.0)


def started(stage: Stage, name: str, **spec: Any) -> Agent:
    """The agent of a VM of 1 CPU and 2 GiB that has a node; its pod was made with 100m."""
    pod = stage.vm_pod(stage.vm(name), name, **spec)
    stage.until_placed(name)
    return Agent.of(stage, pod)


def explained(stage: Stage, vm: str) -> Any:
    """The explanation of the VM, which has one pod."""
    status, said = stage.programs.get(f"/explain/{stage.name}/{vm}")
    assert status == 200, said
    return said["pods"][0]
