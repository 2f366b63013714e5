"""Kubelets and the default scheduler over the fake cluster: what pods request, what they are given, and who is first.

Rules that hold here:

- A kubelet sets aside what fits beside what it has set aside for others. It puts off the rest, or calls it infeasible.
- The default scheduler knows requests and nothing of ledgers. A pod whose kubelet has no room for it fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from protocol.units import ZERO, Resources
from tests.scheduler_plugin.fake_cluster import PODS, FakeCluster
from tests.scheduler_plugin.objects import Obj, plain_pod, vm, vm_pod

FIRST: Final[Obj] = {"cpu": "100m", "memory": "128Mi"}
"""What pods of VMs are made with."""


def following_vm(name: str, cpu: int, slots: int) -> Obj:
    """A VM whose pods may follow it."""
    made = vm(name, cpu, slots)
    made["spec"]["podResources"] = {"requests": FIRST}
    return made


def following_pod(name: str) -> Obj:
    """Its pod."""
    pod = vm_pod(name)
    pod["status"]["qosClass"] = "Burstable"
    return pod


@dataclass(slots=True)
class FakeKubelets:
    """The kubelets of nodes that all have ``size``. ``swap``: nodes where memory cannot be resized."""

    cluster: FakeCluster
    size: Resources
    nodes: tuple[str, ...]
    swap: frozenset[str] = frozenset()
    made: int = 0
    starts: dict[str, Resources] = field(default_factory=dict)

    # What happens -----------------------------------------------------------------------------------------------

    def look(self) -> list[str]:
        """Each kubelet answers every pod of its node. The names of pods that found no room when they came."""
        return [pod["metadata"]["name"] for node in self.nodes for pod in self._on(node) if not self.answer(pod)]

    def answer(self, pod: Obj) -> bool:
        """Let the kubelet handle one pod. Returns False if the pod is new and does not fit."""
        node, asked, held = pod["spec"].get("nodeName"), requested(pod), allocated(pod)
        if node is None or held == asked:
            return True
        others = Resources.sum(allocated(each) or ZERO for each in self._on(node) if _name(each) != _name(pod))
        is_fixed = held is not None and held.mem != asked.mem and node in self.swap
        if (others + asked).within(self.size) and not is_fixed:
            self._say(pod, asked, [])
        elif held is None:
            return False
        else:
            reason = "Deferred" if asked.within(self.size) and not is_fixed else "Infeasible"
            condition = {"type": "PodResizePending", "status": "True", "reason": reason, "message": "no room"}
            if pod["status"].get("conditions") != [condition]:
                self._say(pod, held, [condition])
        return True

    def other_comes(self, size: Resources) -> None:
        """The default scheduler binds another pod where requests leave room, and its kubelet takes it at once."""
        for node in self.nodes:
            if (Resources.sum(counted(each) for each in self._on(node)) + size).within(self.size):
                self.made += 1
                pod = plain_pod(f"other-{self.made}", size.cpu.quantity(), size.mem.quantity(), node)
                assert self.answer(self.cluster.put(PODS, pod))
                return

    def other_goes(self) -> None:
        """The oldest other pod ends."""
        for name in self._others()[:1]:
            self.cluster.remove(PODS, "default", name)

    def others_go(self) -> None:
        """All of them end."""
        for name in self._others():
            self.cluster.remove(PODS, "default", name)

    def made_afresh(self, pod: Obj) -> None:
        """A target pod is made as its VM says, not as its source is by now."""
        pod["spec"]["containers"][0]["resources"] = {"requests": FIRST}
        pod["status"] = {"phase": "Pending", "qosClass": "Burstable"}
        pod["metadata"].pop("managedFields", None)
        self.cluster.put(PODS, pod)

    # What must hold ---------------------------------------------------------------------------------------------

    def check(self, name: str, held: Resources) -> None:
        """An agent holds no more than its pod's kubelet has set aside; a start is not refused for that."""
        pod = self.cluster.get(PODS, "default", name)
        asked, secured = requested(pod), (allocated(pod) or requested(pod)).at_most(requested(pod))
        start = self.starts.setdefault(pod["metadata"]["uid"], held)
        if start.within(secured):
            start = self.starts[pod["metadata"]["uid"]] = ZERO
        assert held.within(secured.at_least(start)), (name, held, secured, start)
        assert asked.within(self.size), (name, asked)

    # ------------------------------------------------------------------------------------------------------------

    def _on(self, node: str) -> Iterator[Obj]:
        pods = list(self.cluster.collections[PODS].objects.values())
        return (pod for pod in pods if pod["spec"].get("nodeName") == node)

    def _others(self) -> list[str]:
        return [name for _, name in self.cluster.collections[PODS].objects if name.startswith("other-")]

    def _say(self, pod: Obj, held: Resources, conditions: list[Obj]) -> None:
        container = pod["spec"]["containers"][0]["name"]
        status = {"name": container, "allocatedResources": _amounts(held)}
        changed = pod["status"] | {"phase": "Running", "containerStatuses": [status], "conditions": conditions}
        self.cluster.put(PODS, {**pod, "status": changed})


def requested(pod: Obj) -> Resources:
    """Requests of the pod's container."""
    return _resources(pod["spec"]["containers"][0]["resources"]["requests"])


def allocated(pod: Obj) -> Resources | None:
    """Resources that the kubelet has allocated to it; None before the kubelet has seen the pod."""
    for status in pod["status"].get("containerStatuses", []):
        return _resources(status["allocatedResources"])
    return None


def counted(pod: Obj) -> Resources:
    """Requests that kube-scheduler counts for it."""
    return requested(pod).at_least(allocated(pod) or ZERO)


def _resources(given: Any) -> Resources:
    return Resources.parse(given["cpu"], given["memory"])


def _amounts(size: Resources) -> Obj:
    return {"cpu": size.cpu.quantity(), "memory": size.mem.quantity()}


def _name(pod: Obj) -> str:
    return str(pod["metadata"]["name"])
