"""The stage of a story: the dice, the clock, the API, schedulers, VMs, and what has happened so far."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Final

from protocol.guest.sleep import SLEEPING
from protocol.messages import ObjectName
from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.web.hot_paths import HotResponse
from tests.fake_clock import FakeClock
from tests.oracle.fleet import Agent, Fleet, Machine
from tests.oracle.judge import SIZE, Judge
from tests.oracle.late_api import LateApi
from tests.oracle.schedulers import Schedulers
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, Obj
from tests.scheduler_plugin.objects import has, node, plain_pod, postgres_pod, token_of, vm, vm_pod

NAMES: Final = ("n1", "n2")
MOST_VMS: Final = 6


@dataclass(slots=True, eq=False)
class Message:
    """A request on its way, and who waits for its answer. ``stored`` and ``had`` are what was stored, and what the
    VM had, when it arrived.
    """

    number: int
    machine: Machine
    agent: Agent
    body: bytes
    at: Instant
    stored: Resources = ZERO
    had: Resources = ZERO


class BrokenError(AssertionError):
    """A property does not hold."""


class Stage:
    """Everybody's place, and the VMs on it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.clock = FakeClock()
        self.api = LateApi(self.chance, self.clock)
        self.fleet = Fleet(self.api)
        self.judge = Judge(self.fleet, self.clock.now)
        self.wire: list[Message] = []
        self.asking: dict[asyncio.Task[HotResponse], Message] = {}
        self.schedulers = Schedulers(self.api, self.clock, self.chance, has_lease=seed % 4 == 3)
        self.known: Ledger | None = None
        self.trace: deque[str] = deque(maxlen=40)
        self.steps = self.made = self.messages = self.granted = 0
        self.broken: BrokenError | None = None
        self.agents_of_nodes: dict[str, Obj] = {}
        for name in NAMES:
            self.api.put(NODES, node(name, "10", "40Gi"))
            self.roll_node_agent(name)

    @property
    def ledger(self) -> Ledger | None:
        """The ledger at work, if it has read the cluster."""
        return self.schedulers.ledger

    def require(self, broken: list[str]) -> None:
        """Fail with the story so far if something is wrong, now or in an earlier callback."""
        if broken and self.broken is None:
            story = "\n".join(self.trace)
            self.broken = BrokenError(f"seed {self.seed}, step {self.steps}: {'; '.join(broken)}\n{story}")
        if self.broken is not None:
            raise self.broken

    def note(self, words: str) -> None:
        self.trace.append(f"{self.steps:>6} {self.clock.now():9.2f} {words}")

    # VMs ----------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        if len(self.fleet.machines) >= MOST_VMS:
            return
        if self.chance.random() < 0.3:
            self._create_database()
            return
        self.made += 1
        free = [f"v{number}" for number in range(MOST_VMS) if f"v{number}" not in self.fleet.machines]
        name, cpu, slots = self.chance.choice(free), self.chance.randint(1, 2), self.chance.randint(1, 4)
        made = vm(name, cpu, slots, uid=f"vm-{name}-{self.made}")
        machine = Machine(name, made["metadata"]["uid"], "", Resources.parse(cpu, f"{slots}Gi"), [])
        self.fleet.machines[name] = machine
        self._new_pod(machine, made)

    def _create_database(self) -> None:
        """Create a pod whose postgres is resized in place."""
        name = self.chance.choice(
            [f"p{number}" for number in range(MOST_VMS) if f"p{number}" not in self.fleet.machines]
        )
        size = Resources.parse(self.chance.randint(1, 2), f"{self.chance.randint(1, 4)}Gi")
        self.fleet.machines[name] = machine = Machine(name, "", name, size, [], is_pod=True)
        self._new_database(machine, size)

    def _new_database(self, machine: Machine, size: Resources) -> None:
        self.made += 1
        pod = postgres_pod(machine.name, size.cpu.quantity(), size.mem.quantity())
        pod["spec"]["containers"] = pod["spec"]["containers"][1:]
        pod["metadata"]["uid"] = f"uid-{machine.name}-{self.made}"
        machine.agents = []
        self.api.put(PODS, pod)

    def _new_pod(self, machine: Machine, obj: Obj) -> None:
        """Create the VM's pod, with a sidecar or, if its node's agent serves it, without."""
        self.made += 1
        machine.pod = f"{machine.name}-pod-{self.made}"
        obj["status"] = {"podName": machine.pod, "phase": "Running"}
        self.api.put(VMS, obj)
        pod = vm_pod(machine.name, uid=f"uid-{machine.pod}", vm_uid=machine.uid)
        pod["metadata"]["name"] = machine.pod
        self.api.put(PODS, pod)
        self.api.tokens[machine.pod] = token_of(pod)
        self.new_agents(machine, pod)

    def new_agents(self, machine: Machine, pod: Obj) -> None:
        """The agents of a VM that runs in this pod from now on."""
        machine.agents = []
        if self.chance.random() < 0.8:
            numbers = self.chance.random() < 0.7
            machine.agents = [Agent(machine.pod, pod["metadata"]["uid"], numbers, self._sequence())]

    def _sequence(self) -> int:
        """The first number of an agent that starts now; its clock may have been set back since the last one."""
        set_back = 0 if self.chance.random() < 0.8 else 40
        return int((self.clock.now() + 1000 - set_back) * 1e9)

    async def bind(self) -> None:
        """kube-scheduler binds a waiting pod."""
        waiting = [each for each in self.fleet.machines.values() if self.fleet.node(each) is None]
        if self.ledger is None or not waiting:
            return
        await self.bind_to(self.chance.choice(waiting), self.chance.choice(NAMES))

    async def bind_to(self, machine: Machine, where: str) -> str:
        """Request the bind of the VM's pod. Return an empty text if the pod was bound, the reason otherwise."""
        why = await self.bind_pod(self.pod_of(machine), where)
        if self.fleet.node(machine) is not None:
            self.require(self.judge.added(machine, ZERO))
            self.join(machine, where)
        return why

    async def bind_pod(self, pod: Obj, where: str) -> str:
        """kube-scheduler requests a binding. Returns an empty text, or the reason why it failed."""
        service, meta = self.schedulers.service, pod["metadata"]
        if service is None:
            return "no scheduler answers"
        why = await service.bind(ObjectName("default", meta["name"]), meta["uid"], where)
        self.note(f"bind {meta['name']} to {where}: {why or 'done'}")
        return why

    def is_moving(self, vm: str, phase: str | None = None) -> bool:
        """True if there is a migration of the VM that has not ended."""
        raise NotImplementedError

    def pod_of(self, machine: Machine) -> Obj:
        return self.api.get(PODS, "default", machine.pod)

    def join(self, machine: Machine, where: str) -> None:
        """The node's agent finds the VM if it has no sidecar, or by mistake."""
        if not machine.agents or (not machine.is_pod and self.chance.random() < 0.25):
            pod = self.agents_of_nodes[where]
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            numbers = machine.is_pod or self.chance.random() < 0.7
            machine.agents.append(Agent(name, uid, numbers, self._sequence()))

    def delete(self) -> None:
        machine = self.any_machine()
        if machine is None or self.is_moving(machine.name):
            return
        self.note(f"{machine.name} is deleted")
        del self.fleet.machines[machine.name]
        self.wire = [each for each in self.wire if each.machine is not machine]
        self.api.remove(PODS, "default", machine.pod)
        if not machine.is_pod:
            self.api.remove(VMS, "default", machine.name)

    def restart_pod(self) -> None:
        machine = self.any_machine()
        if machine is None or self.is_moving(machine.name):
            return
        self.note(f"the pod of {machine.name} is replaced")
        if machine.is_pod:
            size = machine.own = machine.own.at_most(self.fleet.use(machine))
            self.api.remove(PODS, "default", machine.pod)
            self._new_database(machine, size)
            return
        self.api.remove(PODS, "default", machine.pod)
        machine.agents = []
        # One that sleeps boots again.
        size = self.fleet.size(machine)
        machine.own = size if self.fleet.sleeps(machine) else machine.own.at_most(size)
        self._new_pod(machine, self._copied(machine))

    def any_machine(self) -> Machine | None:
        return (
            self.chance.choice(sorted(self.fleet.machines.values(), key=lambda each: each.name))
            if (self.fleet.machines)
            else None
        )

    def _copied(self, machine: Machine) -> Obj:
        return json.loads(json.dumps(self.fleet.object_of(machine)))  # type: ignore[no-any-return]  # JSON in, JSON out

    def put(self, machine: Machine, obj: Obj) -> None:
        self.api.put(PODS if machine.is_pod else VMS, obj)

    def resize(self, machine: Machine, size: Resources) -> None:
        obj = self._copied(machine)
        if machine.is_pod:
            requests = {"cpu": size.cpu.quantity(), "memory": size.mem.quantity()}
            obj["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": {"memory": requests["memory"]}}
            self.put(machine, obj)
            return
        obj["spec"]["guest"]["cpus"]["use"] = size.cpu.quantity()
        obj["spec"]["guest"]["memorySlots"]["use"] = int(size.mem.as_gib)
        if self.api.webhook is not None:
            self.api.webhook(obj)
        self.api.put(VMS, obj)

    def report(self) -> None:
        """The controller reports the size in the object as the guest's."""
        machine = self.any_machine()
        if machine is not None and self.fleet.node(machine) is not None:
            self.report_of(machine)

    def report_of(self, machine: Machine) -> None:
        obj, use = self._copied(machine), self.fleet.use(machine)
        if obj["status"].get("phase") in SLEEPING:
            return
        if machine.is_pod:
            self._report_of_kubelet(machine, obj, use)
            return
        obj["status"] |= {"cpus": use.cpu.quantity(), "memorySize": use.mem.quantity()}
        machine.own = machine.own.at_most(use)
        self.api.put(VMS, obj)

    def _report_of_kubelet(self, machine: Machine, obj: Obj, use: Resources) -> None:
        """A kubelet resizes the container, or defers that until there is room."""
        others = (each for each in self.fleet.on(obj["spec"]["nodeName"]) if each.is_pod and each is not machine)
        taken = Resources.sum(self.fleet.use(each) for each in others) + self.fleet.foreign(obj["spec"]["nodeName"])
        fits = (taken + use).within(SIZE)
        size = use if fits else use.at_most(self.fleet.reported(machine))
        obj["status"] |= {
            "phase": "Running",
            "containerStatuses": [has({"cpu": size.cpu.quantity(), "memory": size.mem.quantity()})] if size.any else [],
            "conditions": [] if fits else [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}],
        }
        self.put(machine, obj)

    def size(self) -> Resources:
        """Any size that a VM may have."""
        return Resources.parse(self.chance.randint(1, 8), f"{self.chance.randint(1, 16)}Gi")

    def roll_node_agent(self, where: str) -> None:
        """The pod of a node's agent is replaced."""
        old = self.agents_of_nodes.get(where)
        if old is not None:
            self.api.remove(PODS, "kube-system", old["metadata"]["name"])
        self.made += 1
        pod = plain_pod(f"agent-{where}-{self.made}", "0", "0", where, namespace="kube-system")
        self.agents_of_nodes[where] = self.api.put(PODS, pod)
        self.api.tokens[pod["metadata"]["name"]] = token = token_of(pod, node=where)
        token["user"]["username"] = "system:serviceaccount:kube-system:autoscaling-agent"
        gone = None if old is None else old["metadata"]["uid"]
        for machine in self.fleet.machines.values():
            for agent in [each for each in machine.agents if each.uid == gone]:
                machine.agents.remove(agent)
                machine.agents.append(
                    Agent(pod["metadata"]["name"], pod["metadata"]["uid"], agent.numbers, self._sequence())
                )
