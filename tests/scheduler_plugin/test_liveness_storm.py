"""After a storm, nothing waits that could proceed, although calls, wake-ups and responses were lost and processes
restarted.

kube-scheduler is as strict here as it may be: a pod that it found no node for is looked at again only when a node is
touched.
"""

from __future__ import annotations

import copy
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

from protocol.names import ANNOTATION_ROOM_FREED
from protocol.units import ZERO, Resources
from tests.examples import examples
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.objects import Obj, node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.running import Running, running

SIZE = Resources.parse("10", "40Gi")
FAULTS = (to("PATCH", "/api/v1/nodes/"), to("PATCH", "/api/v1/nodes/"), to("POST", "/binding"), to("GET", "/pods/"))


class KubeScheduler:
    """Tries pods one by one; those that fit no node wait for a change of a node."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.waiting: set[str] = set()
        self._touches: dict[str, str] = {}

    async def cycle(self, scheduler: Running) -> None:
        """Attempt every pod that is due once."""
        if self._is_touched():
            self.waiting.clear()
        for (_, name), found in sorted(self.cluster.collections[PODS].objects.items()):
            if name not in self.waiting and "nodeName" not in found["spec"]:
                await self._try(scheduler, copy.deepcopy(found))

    def _is_touched(self) -> bool:
        before, nodes = self._touches, self.cluster.collections[NODES].objects
        self._touches = {name: _annotation(obj) for (_, name), obj in nodes.items()}
        return any(before.get(name) != touch for name, touch in self._touches.items() if touch)

    async def _try(self, scheduler: Running, pod: Obj) -> None:
        names = [name for _, name in self.cluster.collections[NODES].objects]
        answer = await scheduler.verb("filter", {"Pod": pod, "Nodes": None, "NodeNames": names})
        if answer["Error"]:
            return  # tried again soon
        if answer["NodeNames"]:
            await scheduler.bind(pod, answer["NodeNames"][0])
            return
        self.waiting.add(pod["metadata"]["name"])
        why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}
        self.cluster.put(PODS, {**pod, "status": {"phase": "Pending", "conditions": [why]}})


class Storm:
    """Pods and VMs are created, deleted and resized on three nodes, while writes fail and the scheduler restarts."""

    def __init__(self, seed: int) -> None:
        self.chance, self.clock, self.cluster = random.Random(seed), FakeClock(), FakeCluster()
        for name in ("n1", "n2", "n3"):
            self.cluster.put(NODES, node(name))
        self.kube = KubeScheduler(self.cluster)
        self.made, self.stack = 0, AsyncExitStack()
        self.scheduler: Running

    async def restart(self) -> None:
        """Start a process that knows only the API objects."""
        await self.stack.aclose()
        self.scheduler = await self.stack.enter_async_context(
            running(self.cluster, self.clock, identity=str(self.made))
        )

    async def step(self) -> None:
        doings: tuple[Any, ...] = (self.create, self.create, self.create, self.delete, self.delete, self.shrink)
        happens = self.chance.choice((*doings, self.cordon, self.fault, self.fault, self.news, self.restart))
        done = happens()
        if done is not None:
            await done
        await self.pass_time(self.chance.choice((0, 1, 1, 5)))

    async def pass_time(self, seconds: float) -> None:
        await self.kube.cycle(self.scheduler)
        await self.clock.advance(seconds)

    def create(self) -> None:
        self.made += 1
        cpu = self.chance.randint(1, 9)
        if self.chance.random() < 0.5:
            self.cluster.put(PODS, plain_pod(f"p{self.made}", str(cpu)))
        else:
            self.cluster.put(VMS, vm(f"v{self.made}", min(cpu, 8), 1))
            self.cluster.put(PODS, vm_pod(f"v{self.made}"))

    def delete(self) -> None:
        for namespace, name in self._some(PODS):
            self.cluster.remove(PODS, namespace, name)
            self.kube.waiting.discard(name)
            if (namespace, name.removesuffix("-pod")) in self.cluster.collections[VMS].objects:
                self.cluster.remove(VMS, namespace, name.removesuffix("-pod"))

    def shrink(self) -> None:
        for key in self._some(VMS):
            found = copy.deepcopy(self.cluster.get(VMS, *key))
            found["spec"]["guest"]["cpus"]["use"] = 1
            self.cluster.put(VMS, found)

    def cordon(self) -> None:
        """Or uncordon."""
        for _, name in self._some(NODES):
            found = copy.deepcopy(self.cluster.get(NODES, "", name))
            found["spec"]["unschedulable"] = not found["spec"].get("unschedulable", False)
            self.cluster.put(NODES, found)

    def fault(self) -> None:
        what, how = self.chance.choice(FAULTS), self.chance.choice((429, 403, 409, None))
        self.cluster.faults.append(Fault(what, refuse=how, times=self.chance.randint(1, 3)))

    def news(self) -> None:
        self.cluster.cut_watches()
        if self.chance.random() < 0.5:
            self.cluster.forget_history()

    def _some(self, path: str) -> list[tuple[str, str]]:
        found = sorted(self.cluster.collections[path].objects)
        return self.chance.sample(found, min(1, len(found)))

    def could_go(self) -> list[str]:
        """The pending pods that fit a node, according to the objects alone."""
        used = dict.fromkeys(("n1", "n2", "n3"), ZERO)
        pods = list(self.cluster.collections[PODS].objects.values())
        for pod in pods:
            if on := pod["spec"].get("nodeName"):
                used[on] += self.needs(pod)
        nodes = self.cluster.collections[NODES].objects
        free = [
            SIZE.minus_or_zero(used[name])
            for (_, name), found in nodes.items()
            if not found["spec"].get("unschedulable")
        ]
        unbound = [pod for pod in pods if "nodeName" not in pod["spec"]]
        return [pod["metadata"]["name"] for pod in unbound if any(self.needs(pod).within(each) for each in free)]

    def needs(self, pod: Obj) -> Resources:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"].removesuffix("-pod")
        if (namespace, name) not in self.cluster.collections[VMS].objects:
            asked = pod["spec"]["containers"][0]["resources"]["requests"]
            return Resources.parse(asked["cpu"], asked["memory"])
        guest = self.cluster.get(VMS, namespace, name)["spec"]["guest"]
        return Resources.parse(guest["cpus"]["use"], f"{guest['memorySlots']['use']}Gi")


def _annotation(obj: Obj) -> str:
    return str(obj["metadata"].get("annotations", {}).get(ANNOTATION_ROOM_FREED, ""))


@pytest.mark.parametrize("seed", range(examples(12, 200)))
async def test_nothing_waits_that_could_go(seed: int) -> None:
    storm = Storm(seed)
    await storm.restart()
    for _ in range(60):
        await storm.step()
    storm.cluster.faults.clear()
    for _ in range(200):
        await storm.pass_time(1)
    assert storm.could_go() == []
    await storm.stack.aclose()
