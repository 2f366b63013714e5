"""One seeded story: a scheduler with its web layer, service and ledger, agents, people, webhooks and a late API.

Rules that hold here:

- One step does one thing, lets time pass, and is judged. The same seed gives the same story.
- Messages live for less than ``SETTLE``; everything else may be as late as it likes.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Final

from protocol.messages import ObjectName
from protocol.names import ANNOTATION_PERMIT, LABEL_ENABLED
from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.app import Parts, SchedulerPorts, assemble
from scheduler_plugin.cluster.api import ApiCall
from scheduler_plugin.cluster.token_reviews import TokenReviews
from scheduler_plugin.telemetry import Telemetry
from scheduler_plugin.web.agents import AgentRoutes
from scheduler_plugin.web.http.hot_paths import HotRequest, HotResponse
from tests.fake_clock import FakeClock, settle
from tests.oracle.fleet import Agent, Fleet, Machine, Patch
from tests.oracle.judge import Judge
from tests.oracle.late_api import LateApi
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, Obj
from tests.scheduler_plugin.objects import node, plain_pod, token_of, token_text, vm, vm_pod
from tests.scheduler_plugin.running import usual_settings

NAMES: Final = ("n1", "n2")
MOST_VMS: Final = 6
LIFE: Final = 24.0
"""Seconds that a message lives; below the scheduler's ``SETTLE``."""

PATIENCE: Final = 5.0
"""Seconds that an agent waits for an answer."""

Doing = Callable[[], Awaitable[None] | None]


@dataclass(slots=True, eq=False)
class Message:
    """A request on its way, and who waits for its answer. ``stored`` is what was when it arrived."""

    number: int
    machine: Machine
    agent: Agent
    body: bytes
    at: Instant
    stored: Resources = ZERO


class BrokenError(AssertionError):
    """A property does not hold."""


class Story:
    """The dice, the clock and everybody."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.clock = FakeClock()
        self.api = LateApi(self.chance, self.clock)
        self.fleet = Fleet(self.api)
        self.judge = Judge(self.fleet, self.clock.now)
        self.wire: list[Message] = []
        self.asking: dict[asyncio.Task[HotResponse], Message] = {}
        self.parts: Parts | None = None
        self.routes: AgentRoutes | None = None
        self.background: asyncio.Task[None] | None = None
        self.trace: deque[str] = deque(maxlen=40)
        self.steps = self.made = self.messages = self.started = self.granted = 0
        self.broken: BrokenError | None = None
        self.agents_of_nodes: dict[str, Obj] = {}
        for name in NAMES:
            self.api.put(NODES, node(name, "10", "40Gi"))
            self.roll_node_agent(name)
        self.doings, self.weights = zip(*self._doings(), strict=True)

    def _doings(self) -> list[tuple[Doing, float]]:
        return [
            (self.create, 3),
            (self.bind, 5),
            (self.look, 22),
            (self.ask, 30),
            (self.deliver, 12),
            (self.patch, 18),
            (self.land_patch, 8),
            (self.land_write, 4),
            (self.restart_agent, 0.7),
            (self.hide_agent, 1.2),
            (self.delete, 0.8),
            (self.restart_pod, 0.7),
            (self.switch, 1.6),
            (self.edit_permit, 1.2),
            (self.edit_use, 0.8),
            (self.webhook, 0.6),
            (self.foreign_pod, 0.6),
            (self.roll, 0.4),
            (self.kill, 0.6),
            (self.start, 3),
            (self.cut, 0.8),
        ]

    # Steps --------------------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """One thing happens, then everything must hold."""
        doing = self.chance.choices(self.doings, self.weights)[0]
        self.steps += 1
        happened = doing()
        if happened is not None:
            await happened
        pause = self.chance.choices((0.0, 0.05, 0.5, 4.0, 20.0), (60, 20, 14, 5, 0.6))[0]
        await (self.clock.advance(pause) if pause else settle())
        self.require(self.judge.look(self.ledger))

    @property
    def ledger(self) -> Any:
        """The ledger at work, if it has read the cluster."""
        found = None if self.parts is None else self.parts.context.ledger
        return found if found is not None and found.is_ready else None

    def require(self, broken: list[str]) -> None:
        """Ends the story with what led to it if something is broken, now or in a callback before."""
        if broken and self.broken is None:
            story = "\n".join(self.trace)
            self.broken = BrokenError(f"seed {self.seed}, step {self.steps}: {'; '.join(broken)}\n{story}")
        if self.broken is not None:
            raise self.broken

    def note(self, words: str) -> None:
        self.trace.append(f"{self.steps:>6} {self.clock.now():9.2f} {words}")

    # The scheduler ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """A scheduler starts if none runs."""
        if self.parts is not None:
            return
        self.started += 1
        for machine in self.fleet.machines.values():
            machine.is_excused = machine.is_excused or machine.is_tainted
        ports = SchedulerPorts(
            self.api, TokenReviews(self.api), self.clock, telemetry(self.clock), f"process-{self.started}"
        )
        self.parts = assemble(ports, usual_settings())
        self.routes = AgentRoutes(self.parts.service)
        self.background = asyncio.create_task(self.parts.run(self.api))
        self.note(f"process-{self.started} starts")
        await settle()

    async def kill(self) -> None:
        """The scheduler dies; what it has sent may land all the same."""
        if self.background is None:
            return
        self.note("the scheduler dies")
        tasks = [self.background, *self.asking]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self.parts = self.routes = self.background = None
        self.asking.clear()

    def cut(self) -> None:
        self.note("watches are cut")
        self.api.cut_watches()
        if self.chance.random() < 0.4:
            self.api.forget_history()

    def webhook(self) -> None:
        """A webhook begins or ends to drop or lower permits."""
        kinds = (None, None, None, self.drop_permit, self.lower_permit)
        self.api.webhook = self.chance.choice(kinds)
        self.note(f"webhook: {getattr(self.api.webhook, '__name__', 'none')}")
        for machine in self.fleet.machines.values():
            machine.is_tainted = machine.is_tainted or self.api.webhook is not None

    @staticmethod
    def drop_permit(obj: Obj) -> None:
        obj["metadata"].get("annotations", {}).pop(ANNOTATION_PERMIT, None)

    @staticmethod
    def lower_permit(obj: Obj) -> None:
        if ANNOTATION_PERMIT in obj["metadata"].get("annotations", {}):
            obj["metadata"]["annotations"][ANNOTATION_PERMIT] = '{"vCPUs":1,"mem":"2Gi"}'

    def land_write(self) -> None:
        """A write of a permit that its sender believes lost lands."""
        landed = self.api.land()
        if landed is not None:
            self.note(f"a late write lands: {landed.body}")

    # VMs ----------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        if len(self.fleet.machines) >= MOST_VMS:
            return
        self.made += 1
        free = [f"v{number}" for number in range(MOST_VMS) if f"v{number}" not in self.fleet.machines]
        name, cpu, slots = self.chance.choice(free), self.chance.randint(1, 2), self.chance.randint(1, 4)
        made = vm(name, cpu, slots, uid=f"vm-{name}-{self.made}")
        machine = Machine(name, made["metadata"]["uid"], "", Resources.parse(cpu, f"{slots}Gi"), [])
        self.fleet.machines[name] = machine
        self._new_pod(machine, made)

    def _new_pod(self, machine: Machine, obj: Obj) -> None:
        """The VM gets a pod with a sidecar of its own, or is served by the agents of nodes alone."""
        self.made += 1
        machine.pod = f"{machine.name}-pod-{self.made}"
        obj["status"]["podName"] = machine.pod
        self.api.put(VMS, obj)
        pod = vm_pod(machine.name, uid=f"uid-{machine.pod}", vm_uid=machine.uid)
        pod["metadata"]["name"] = machine.pod
        self.api.put(PODS, pod)
        self.api.tokens[machine.pod] = token_of(pod)
        machine.agents = []
        if self.chance.random() < 0.8:
            numbers = self.chance.random() < 0.7
            machine.agents = [Agent(machine.pod, pod["metadata"]["uid"], numbers, self._sequence())]

    def _sequence(self) -> int:
        return int(self.clock.now() * 1e6)

    async def bind(self) -> None:
        """kube-scheduler binds a pod that waits."""
        waiting = [each for each in self.fleet.machines.values() if self.fleet.node(each) is None]
        if self.parts is None or not waiting:
            return
        await self.bind_to(self.chance.choice(waiting), self.chance.choice(NAMES))

    async def bind_to(self, machine: Machine, where: str) -> str:
        """The scheduler is told to bind the VM's pod. Empty if it did, otherwise why not."""
        assert self.parts is not None
        pod = self.pod_of(machine)["metadata"]
        why = await self.parts.service.bind(ObjectName("default", machine.pod), pod["uid"], where)
        self.note(f"bind {machine.pod} to {where}: {why or 'done'}")
        if self.fleet.node(machine) is not None:
            self.require(self.judge.added(machine, ZERO))
            self._join(machine, where)
        return why

    def pod_of(self, machine: Machine) -> Obj:
        return self.api.get(PODS, "default", machine.pod)

    def _join(self, machine: Machine, where: str) -> None:
        """The agent of the node finds the VM, if it has no sidecar, or by a mistake."""
        if not machine.agents or self.chance.random() < 0.25:
            pod = self.agents_of_nodes[where]
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            machine.agents.append(Agent(name, uid, self.chance.random() < 0.7, self._sequence()))

    def delete(self) -> None:
        machine = self._any()
        if machine is None:
            return
        self.note(f"{machine.name} is deleted")
        del self.fleet.machines[machine.name]
        self.wire = [each for each in self.wire if each.machine is not machine]
        self.api.remove(PODS, "default", machine.pod)
        self.api.remove(VMS, "default", machine.name)

    def restart_pod(self) -> None:
        machine = self._any()
        if machine is None:
            return
        self.note(f"the pod of {machine.name} is replaced")
        self.api.remove(PODS, "default", machine.pod)
        machine.agents = []
        machine.own = machine.own.at_most(self.fleet.use(machine))
        self._new_pod(machine, self._copied(machine))

    def _any(self) -> Machine | None:
        return (
            self.chance.choice(sorted(self.fleet.machines.values(), key=lambda each: each.name))
            if (self.fleet.machines)
            else None
        )

    def _copied(self, machine: Machine) -> Obj:
        return json.loads(json.dumps(self.fleet.object_of(machine)))  # type: ignore[no-any-return]  # JSON in, JSON out

    # People -------------------------------------------------------------------------------------------------------

    def switch(self) -> None:
        """Autoscaling of a VM is switched off or on."""
        machine = self._any()
        if machine is None:
            return
        obj = self._copied(machine)
        is_on = self.fleet.is_enabled(machine)
        obj["metadata"]["labels"][LABEL_ENABLED] = "false" if is_on else "true"
        self.note(f"autoscaling of {machine.name} is switched {'off' if is_on else 'on'}")
        self.api.put(VMS, obj)

    def edit_permit(self) -> None:
        """Somebody edits the annotation."""
        machine = self._any()
        if machine is None:
            return
        obj, kind = self._copied(machine), self.chance.choice(("high", "high", "low", "none", "garbage"))
        texts = {"high": '{"vCPUs":8,"mem":"16Gi"}', "low": '{"vCPUs":1,"mem":"1Gi"}', "garbage": "{"}
        annotations = obj["metadata"].setdefault("annotations", {})
        if kind == "none":
            annotations.pop(ANNOTATION_PERMIT, None)
        else:
            annotations[ANNOTATION_PERMIT] = texts[kind]
        machine.is_tainted = True
        self.note(f"somebody edits the permit of {machine.name}: {kind}")
        self.api.put(VMS, obj)

    def edit_use(self) -> None:
        """Somebody resizes a VM."""
        machine = self._any()
        if machine is None:
            return
        size = self._size()
        self.note(f"somebody resizes {machine.name} to {size}")
        if not size.within(self.fleet.use(machine)):
            self.judge.outsider(self.fleet.node(machine))
        self.resize(machine, size)
        machine.own = machine.own.at_most(size)

    def foreign_pod(self) -> None:
        """A pod of another scheduler comes or goes."""
        keys = [key for key in self.api.collections[PODS].objects if key[0] == "foreign"]
        if len(keys) > 2 or (keys and self.chance.random() < 0.6):
            self.api.remove(PODS, *self.chance.choice(sorted(keys)))
            return
        self.made += 1
        where = self.chance.choice(NAMES)
        pod = plain_pod(f"f{self.made}", str(self.chance.randint(1, 3)), "4Gi", where, namespace="foreign")
        self.judge.outsider(where)
        self.note(f"a foreign pod comes to {where}")
        self.api.put(PODS, pod)

    def roll(self) -> None:
        self.roll_node_agent(self.chance.choice(NAMES))

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

    # Agents -------------------------------------------------------------------------------------------------------

    def _some_agent(self) -> tuple[Machine, Agent] | None:
        bound = [each for each in self.fleet.machines.values() if each.agents and self.fleet.node(each) is not None]
        if not bound:
            return None
        machine = self.chance.choice(bound)
        return machine, self.chance.choice(machine.agents)

    def look(self) -> None:
        """An agent reads its VM."""
        found = self._some_agent()
        if found is None:
            return
        machine, agent = found
        if self.clock.now() < agent.blind_until:
            return
        agent.view = self.fleet.view(machine)
        agent.patches = [each for each in agent.patches if each.base >= agent.view.version]
        if not agent.view.enabled:
            agent.hold, agent.waits = None, 0

    def ask(self) -> None:
        found = self._some_agent()
        if found is None:
            return
        machine, agent = found
        if self.clock.now() - agent.asked_at > PATIENCE:
            agent.waits = 0
        if agent.view is None or agent.waits or self.clock.now() < agent.quiet_until:
            return
        message = self.ask_for(machine, agent, self._size())
        if self.chance.random() < 0.85:
            self._arrive(message)

    def ask_for(self, machine: Machine, agent: Agent, wanted: Resources) -> Message:
        """Sends a request; it lies on the wire until it arrives. What is not asked for is given up now."""
        wanted, last = wanted.at_least(agent.floor()), agent.hold
        agent.hold = agent.hold and agent.hold.at_most(wanted)
        agent.sequence += 1
        self.messages += 1
        body: Obj = {
            "protoVersion": 4,
            "pod": {"name": machine.pod, "namespace": "default"},
            "resources": amounts(wanted),
            "lastPermit": None if agent.hold is None else amounts(agent.hold),
            "metrics": None,
        }
        if agent.numbers:
            body["sequence"] = agent.sequence
        agent.waits, agent.asked_at = self.messages, self.clock.now()
        message = Message(self.messages, machine, agent, json.dumps(body).encode(), self.clock.now())
        self.note(f"{agent.token} asks {wanted} for {machine.name}, holds {last} (#{message.number})")
        self.wire.append(message)
        return message

    def deliver_now(self, message: Message) -> None:
        """The request arrives, once, and its answer is heard."""
        self.wire.remove(message)
        self._post(message)

    def deliver(self) -> None:
        """A message that was late, or a double, arrives."""
        self.wire = [each for each in self.wire if self.clock.now() - each.at < LIFE]
        if self.wire:
            self._arrive(self.chance.choice(self.wire))

    def _arrive(self, message: Message) -> None:
        if self.chance.random() < 0.9:
            self.wire.remove(message)
        self._post(message)

    def _post(self, message: Message) -> None:
        if self.routes is None:
            return
        message.stored = self.fleet.stored(message.machine) or ZERO
        before = self.fleet.has(message.machine)
        shown = f"Bearer {token_text(message.agent.token)}"
        answer = self.routes.request(HotRequest(message.body, shown, "10.0.0.1"))
        if isinstance(answer, HotResponse):
            self._answered(message, answer, before)
        else:
            task = asyncio.ensure_future(answer)
            self.asking[task] = message
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[HotResponse]) -> None:
        message = self.asking.pop(task, None)
        if message is not None and not task.cancelled():
            with suppress(BrokenError):  # the step that is under way ends the story
                self._written(message, task)

    def _written(self, message: Message, task: asyncio.Task[HotResponse]) -> None:
        """An answer that has waited for something."""
        held = message.agent.hold
        self._answered(message, task.result(), self.fleet.has(message.machine))
        if message.agent.hold is not held and message.machine.name in self.fleet.machines:
            self.require(self.judge.written(message.machine, message.agent, message.stored))

    def _answered(self, message: Message, answer: HotResponse, before: Resources) -> None:
        machine, agent, body = message.machine, message.agent, json.loads(answer.body)
        if answer.status >= 500 and answer.status != 503:
            self.require([f"{answer.status} {body}"])
        if answer.status != 200:
            self.note(f"#{message.number}: {answer.status} {body['error']}")
            agent.waits = 0 if agent.waits == message.number else agent.waits
            return
        permit = Resources.parse(body["permit"]["vCPUs"], f"{body['permit']['mem']}Gi")
        is_heard = (
            (self.api.calm or self.chance.random() < 0.93) and agent.waits == message.number and agent in machine.agents
        )
        self.note(f"#{message.number}: permit {permit}{'' if is_heard else ', which nobody hears'}")
        if not is_heard or self.fleet.machines.get(machine.name) is not machine:
            return
        agent.waits = 0
        if not agent.floor().within(permit):
            return
        self.granted += 1
        agent.hold = permit if self.fleet.is_enabled(machine) else None
        agent.answered_version = 0 if agent.view is None else agent.view.version
        self.require(self.judge.added(machine, before))

    def patch(self) -> None:
        """An agent resizes its VM within what it holds."""
        found = self._some_agent()
        if found is None or found[1].view is None or not found[1].view.enabled or len(found[1].patches) > 1:
            return
        machine, agent = found
        assert agent.view is not None
        target = self._size().at_most(agent.limit()).at_least(Resources.parse(1, "1Gi"))
        if target == agent.view.use:
            return
        patch = Patch(agent.view.version, target, target.at_most(machine.own.at_least(agent.hold or ZERO)))
        agent.patches.append(patch)
        if self.chance.random() < 0.8:
            self._land(machine, agent, patch)

    def land_patch(self) -> None:
        """A resize that was late lands, also of an agent that is gone."""
        flights = [
            (each, agent, patch)
            for each in self.fleet.machines.values()
            for agent in each.agents
            for patch in agent.patches
        ]
        if flights:
            self._land(*self.chance.choice(flights))

    def _land(self, machine: Machine, agent: Agent, patch: Patch) -> None:
        agent.patches.remove(patch)
        if patch.base != self.fleet.version(machine):
            return
        self.note(f"{agent.token} resizes {machine.name} to {patch.target}")
        self.resize(machine, patch.target)
        machine.own = patch.due
        if self.clock.now() >= agent.blind_until and self.chance.random() < 0.8:
            agent.view = self.fleet.view(machine)

    def resize(self, machine: Machine, size: Resources) -> None:
        obj = self._copied(machine)
        obj["spec"]["guest"]["cpus"]["use"] = size.cpu.quantity()
        obj["spec"]["guest"]["memorySlots"]["use"] = int(size.mem.as_gib)
        if self.api.webhook is not None:
            self.api.webhook(obj)
        self.api.put(VMS, obj)

    def restart_agent(self) -> None:
        found = self._some_agent()
        if found is not None:
            machine, agent = found
            self.note(f"the agent {agent.token} of {machine.name} is restarted")
            fresh = Agent(agent.token, agent.uid, agent.numbers, self._sequence(), patches=agent.patches)
            machine.agents[machine.agents.index(agent)] = fresh

    def hide_agent(self) -> None:
        """An agent is cut off from the API server, or from the scheduler."""
        found = self._some_agent()
        if found is not None:
            until = Instant(self.clock.now() + self.chance.choice((5.0, 40.0, 120.0)))
            if self.chance.random() < 0.5:
                found[1].blind_until = until
            else:
                found[1].quiet_until = until

    def _size(self) -> Resources:
        return Resources.parse(self.chance.randint(1, 8), f"{self.chance.randint(1, 16)}Gi")

    async def end(self) -> None:
        with suppress(asyncio.CancelledError):
            await self.kill()


def amounts(size: Resources) -> Obj:
    """As v2.1 writes them: memory in slots of 1Gi."""
    return {"vCPUs": size.cpu.quantity(), "mem": int(size.mem.as_gib)}


@cache
def _registry() -> dict[int, Telemetry]:
    return {}


def telemetry(clock: FakeClock) -> Telemetry:
    """One for all processes of a story: to make one costs as much as a hundred steps."""
    known = _registry()
    if id(clock) not in known:
        known.clear()
        known[id(clock)] = Telemetry(clock.now)
    return known[id(clock)]


__all__ = ["ApiCall", "BrokenError", "Story"]
