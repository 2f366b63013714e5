"""A VM without a guest whose pod a real kubelet runs, next to other pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import httpx2 as httpx

from deploy.local.kubernetes.plan.cluster_plan import BUSYBOX_IMAGE
from protocol.units import MilliCpu, Resources
from tests.conformance.cluster import MERGE_PATCH, STRATEGIC_PATCH, done
from tests.kubernetes.real_kubernetes import RealKubernetes, busybox_pod, eventually
from tests.kubernetes.requests.following import NODE, FollowingPrograms
from tests.kubernetes.requests.grown import until_requested
from tests.kubernetes.scheduling.agents import Agent
from tests.kubernetes.scheduling.books import PODS, requests_of
from tests.kubernetes.scheduling.stage import Stage

SMALL: Final = Resources.parse("500m", "1Gi")


@dataclass(frozen=True, slots=True)
class RealPod:
    """The VM ``db`` of half a CPU and 1 GiB on a real node, none of which is kept back, with its agent."""

    stage: Stage
    cluster: RealKubernetes
    programs: FollowingPrograms
    agent: Agent

    @property
    def reserved(self) -> MilliCpu:
        """The node's reserved CPU in our scheduler's ledger."""
        _, said = self.stage.programs.get("/nodes")
        return next(MilliCpu.parse(each["reserved"]["cpu"]) for each in said["nodes"] if each["name"] == NODE)

    @property
    def allocatable(self) -> MilliCpu:
        """The node's allocatable CPU."""
        return MilliCpu.parse(self.cluster.get("node", NODE)["status"]["allocatable"]["cpu"])

    @property
    def free(self) -> MilliCpu:
        """CPU of the node that no pod requests."""
        there = [each for each in self.cluster.get("pods", "--all-namespaces")["items"] if is_there(each)]
        return self.allocatable - Resources.sum(map(requests_of, there)).cpu

    def overstate(self, cpu: MilliCpu) -> None:
        """The node's object says that it has so much, until its kubelet puts that right within ten seconds.

        So it is after a kubelet was started again with more kept back, and in versions whose API server does not look.
        """
        more = {"status": {"allocatable": {"cpu": cpu.quantity()}}}
        headers = {"Content-Type": MERGE_PATCH}
        done(self.stage.http.patch(f"/api/v1/nodes/{NODE}/status", json=more, headers=headers))

    def told(self, reason: str) -> list[str]:
        """Messages of the VM's events with this reason."""
        events = done(self.stage.http.get(self.stage.path("events")))["items"]
        return [each["message"] for each in events if each["reason"] == reason]

    def withdrawn(self, verdict: str) -> float:
        """Number of resizes that our scheduler has reverted because of the kubelet."""
        _, said = self.stage.programs.get("/metrics")
        start = f'autoscale_scheduler_pod_requests_withdrawn_total{{verdict="{verdict}"}} '
        return sum(float(each.removeprefix(start)) for each in said.splitlines() if each.startswith(start))

    def beside(self, name: str, cpu: MilliCpu) -> None:
        """A pod of others on the node, which runs."""
        resources = {"requests": {"cpu": cpu.quantity(), "memory": "16Mi"}}
        pod = busybox_pod(name, "sleep", "600", node=NODE, resources=resources)
        pod["metadata"]["namespace"] = self.stage.name
        self.cluster.apply(pod)
        self.cluster.wait("condition=Ready", f"pod/{name}", namespace=self.stage.name)

    def resize(self, pod: str, container: str, cpu: MilliCpu, *, by: str = "") -> None:
        """A person, or who ``by`` says, changes what the container requests."""
        done(self.try_resize(pod, container, cpu, by=by))

    def try_resize(self, pod: str, container: str, cpu: MilliCpu, *, by: str = "") -> httpx.Response:
        """The same, which may be refused."""
        larger = {"spec": {"containers": [{"name": container, "resources": {"requests": {"cpu": cpu.quantity()}}}]}}
        headers = {"Content-Type": STRATEGIC_PATCH, **({"Impersonate-User": by} if by else {})}
        return self.stage.http.patch(f"{self.stage.path(PODS, pod)}/resize", json=larger, headers=headers)

    def pending(self, pod: str) -> list[str]:
        """Reasons why the pod's resize is pending."""
        said = self.stage.get(PODS, pod)["status"].get("conditions", [])
        return [each["reason"] for each in said if each["type"] == "PodResizePending"]

    def until_pending(self, pod: str, why: str) -> None:
        """Returns once the kubelet has said so."""
        eventually(lambda: self.pending(pod) == [why], f"the kubelet says {why} of {pod}", 30.0)

    def allocated(self) -> Resources | None:
        """Resources that the kubelet has allocated to the guest."""
        statuses: list[Any] = self.stage.get(PODS, "db")["status"].get("containerStatuses") or [{}]
        found = statuses[0].get("allocatedResources")
        return None if found is None else Resources.parse(found["cpu"], found["memory"])

    def grows_to(self, size: Resources) -> None:
        """Returns once the agent has been permitted that."""
        eventually(lambda: self.agent.go_to(size) and self.agent.held == size, f"it has {size}", 90.0)

    def until_small(self) -> None:
        """Returns once the pod requests what the small VM has, and no more is set aside."""
        until_requested(self.stage, "db", SMALL)
        eventually(lambda: self.allocated() == SMALL, "the kubelet has set that aside", 30.0)


def is_there(pod: dict[str, Any]) -> bool:
    """True if the pod takes room on the node."""
    return pod["spec"].get("nodeName") == NODE and pod["status"].get("phase") not in {"Succeeded", "Failed"}


def real_pod(stage: Stage, cluster: RealKubernetes, programs: FollowingPrograms) -> RealPod:
    """Once its pod runs, with requests that are the VM's."""
    runner = {
        "name": "neonvm-runner",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}},
    }
    vm = stage.vm("db", "500m", 1)
    first = {"spec": {"podResources": {"requests": runner["resources"]["requests"]}}}  # type: ignore[index]
    stage.patch(stage.path("virtualmachines", "db"), first)
    pod = stage.vm_pod(vm, "db", containers=[runner], nodeSelector={"kubernetes.io/hostname": NODE})
    stage.until_placed("db")
    found = RealPod(stage, cluster, programs, Agent.of(stage, pod))
    eventually(lambda: found.allocated() == SMALL, "the pod runs with what its VM has", 60.0)
    return found
