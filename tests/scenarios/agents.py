"""The agents of a scenario: the real core, and a shell that a scenario steps by hand.

Requests lie on ``wire`` until the scenario delivers, doubles or drops them; patches lie on ``patches`` likewise. Both
outlive the agent that sent them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from agent.core.actions import Action, OrderSleep, PatchVm, RequestPermit
from agent.core.advance import advance
from agent.core.events import (
    Event,
    Fault,
    PatchConflicted,
    Patched,
    PatchFailed,
    RequestFailed,
    SchedulerAnswered,
    Scraped,
    SleepNotOrdered,
    SleepOrdered,
    Started,
    VmSeen,
)
from agent.core.guest import CpuSeconds, GuestSample
from agent.core.plan import plan
from agent.core.policy import Policy, SleepPolicy
from agent.core.state import State, begin
from agent.core.vm import Vm, whole_slots
from protocol.codec import PluginResponseView
from protocol.messages import AgentRequest, ObjectName
from protocol.units import ZERO, Bytes, Instant, MilliCpu, Resources, Seconds
from protocol.virtual_machine import Bounds
from tests.agent.core.story import holding
from tests.scenarios.cluster import SLOT, Cluster, VmObject

POLICY = Policy(smoothing=holding(4.0, max_gap=1000.0), sleep=SleepPolicy(Seconds(2.0)))
CPUS = 16
PATIENCE = 4.0
"""After so many seconds an agent gives up waiting for an answer, while its message may live on."""
EXPIRES = 25.0
"""After so many seconds without an answer the agent of a pod gives up what it holds, since nothing is stored for it."""


@dataclass
class Message:
    """A request in transit. ``sent`` identifies the request that it is a copy of; it may be delivered from ``arrives``
    on.
    """

    sent: int
    uid: str
    request: AgentRequest
    at: Instant
    arrives: Instant


@dataclass
class Patch:
    """A resize on its way to the API; ``agent`` is who waits for it."""

    sent: int
    vm: ObjectName
    action: PatchVm


@dataclass
class Agent:
    """One agent process.

    Agents of published versions do not number their requests: ``numbers`` is False. A ``restless`` one keeps what the
    protocol demands of any agent, and otherwise does what the dice say, all the time.
    """

    uid: str
    vm: ObjectName
    state: State
    numbers: bool
    restless: bool
    in_flight: int | None = None
    asked_at: Instant = Instant(0.0)
    patching: int | None = None
    demand: float = 0.3
    mem: float = 0.3
    busy: float = 0.0
    stall: float = 0.0
    scraped_at: Instant = Instant(0.0)
    answered_at: Instant = Instant(0.0)


@dataclass
class Agents:
    cluster: Cluster
    random: Random
    alive: dict[str, Agent] = field(default_factory=dict)
    wire: list[Message] = field(default_factory=list)
    patches: list[Patch] = field(default_factory=list)
    sent: int = 0
    answers: int = 0
    orders: int = 0

    def start(self, vm: VmObject, now: Instant) -> None:
        """An agent process begins in the VM's pod; its clock may have been set back since the last one."""
        if vm.pod is None:
            return
        set_back = 0 if self.random.random() < 0.8 else 40
        sequence = int((now - set_back) * 1e9)
        state = begin(vm.pod.name, POLICY, now, self.random.random(), sequence)
        kind = sum(vm.name.name.encode())
        numbers = vm.is_pod or kind % 3 > 0
        agent = Agent(vm.pod.uid, vm.name, state, numbers, kind % 2 > 0, scraped_at=now, answered_at=now)
        self.alive[vm.pod.uid] = agent

    def delay(self, now: Instant) -> Instant:
        """Delay of a message sent now: short, or much longer than the sender waits."""
        return Instant(now + self.random.random() * (20.0 if self.random.random() < 0.3 else 0.3))

    def expire(self, now: Instant) -> None:
        """Agents of pods that have not been answered for long begin again."""
        for agent in list(self.alive.values()):
            vm = self.cluster.vms.get(agent.vm)
            if vm is not None and vm.is_pod and now - agent.answered_at > EXPIRES:
                self.kill(agent.uid)
                self.patches = [patch for patch in self.patches if patch.vm != agent.vm]

    def kill(self, uid: str) -> None:
        """Kill the process; its messages stay in flight."""
        self.alive.pop(uid, None)

    def step(self, agent: Agent, now: Instant) -> None:
        """Observe the VM and the guest, and start the core's actions."""
        vm = self.cluster.vms[agent.vm]
        if agent.in_flight is not None and now - agent.asked_at > PATIENCE:
            self.answered(agent.in_flight, agent.uid, None, now)
        if self.random.random() < 0.7:
            self._tell(agent, VmSeen(_view(vm)), now)
        if vm.guest is not None:
            self._tell(agent, Scraped(self._sample(agent, vm.guest, now)), now)
        is_restless = agent.restless and not agent.state.sleeps
        for action in self._restless(agent) if is_restless else plan(agent.state, now).actions:
            self._tell(agent, Started(action), now)
            self.sent += 1
            if isinstance(action, PatchVm):
                agent.patching = self.sent
                self.patches.append(Patch(self.sent, agent.vm, action))
            elif isinstance(action, RequestPermit):
                agent.in_flight, agent.asked_at = self.sent, now
                request = action.request if agent.numbers else replace(action.request, sequence=None)
                self.wire.append(Message(self.sent, agent.uid, request, now, self.delay(now)))
            elif isinstance(action, OrderSleep):
                self._order(agent, vm, action, now)

    def _order(self, agent: Agent, vm: VmObject, action: OrderSleep, now: Instant) -> None:
        if vm.version != action.base:
            self._tell(agent, SleepNotOrdered(Fault.VM_API, "conflict"), now)
            return
        self.orders += 1
        self.cluster.order_sleep(vm)
        self._tell(agent, SleepOrdered(_view(vm)), now)

    def answered(self, sent: int, uid: str, response: PluginResponseView | None, now: Instant) -> None:
        """A response or an error for a request; ignored unless the request is still awaited."""
        agent = self.alive.get(uid)
        if agent is None or agent.in_flight != sent:
            return
        agent.in_flight = None
        self.answers += response is not None
        event = RequestFailed(Fault.NETWORK, "no answer") if response is None else SchedulerAnswered(response)
        self._tell(agent, event, now)
        # An answer that the agent rejects renews nothing.
        agent.answered_at = agent.state.scheduler.answered_at or agent.answered_at

    def land(self, patch: Patch, now: Instant, *, reply: bool) -> None:
        """The API takes a patch, or refuses it because the object has changed."""
        vm = self.cluster.vms.get(patch.vm)
        agent = next((a for a in self.alive.values() if a.patching == patch.sent), None)
        landed = vm is not None and vm.version == patch.action.base
        if landed and vm is not None:
            vm.use = patch.action.target
            self.cluster.put_vm(vm)
        if agent is None:
            return
        agent.patching = None
        if not reply or vm is None:
            self._tell(agent, PatchFailed(Fault.VM_API, "time-out", refused=False), now)
        else:
            self._tell(agent, Patched(_view(vm)) if landed else PatchConflicted(), now)

    def lose(self, patch: Patch, now: Instant) -> None:
        """The agent gives up waiting; the patch may still land."""
        agent = next((a for a in self.alive.values() if a.patching == patch.sent), None)
        if agent is not None:
            agent.patching = None
            self._tell(agent, PatchFailed(Fault.VM_API, "time-out", refused=False), now)

    def may_use(self, vm: VmObject) -> Resources:
        """The maximum size that the guest may reach without another request."""
        most = vm.use if vm.status is None else vm.use.at_least(vm.status)
        for patch in self.patches:
            if patch.vm == vm.name and patch.action.base == vm.version:
                most = most.at_least(patch.action.target)
        agent = None if vm.pod is None else self.alive.get(vm.pod.uid)
        if agent is not None and agent.state.scheduler.ceiling is not None:
            most = most.at_least(agent.state.scheduler.ceiling)
        return most

    def _restless(self, agent: Agent) -> list[Action]:
        """Shrink or grow within the ceiling, ask for anything that is not below what the VM has, and order sleep."""
        side, vm, held = agent.state.scheduler, agent.state.vm.observed, agent.state.held
        actions: list[Action] = []
        if vm is None or held is None:
            return actions
        if agent.patching is None and not side.migrate and self.random.random() < 0.4:
            limit = whole_slots(side.ceiling or vm.use, SLOT)
            target = self._any_size().at_most(limit).at_least(vm.bounds.min)
            if target != vm.use and target.within(limit.at_least(vm.use)):
                actions.append(PatchVm(target, vm.version, SLOT))
                held = held.at_least(target)
        if not vm.is_pod and not vm.is_ordered_to_sleep and self.random.random() < 0.1:
            actions.append(OrderSleep(vm.version))
        if agent.in_flight is None and self.random.random() < 0.9:
            wanted = self._any_size().at_least(held)
            actions.append(
                RequestPermit(AgentRequest(agent.state.pod, wanted, side.ceiling, sequence=side.sequence), SLOT)
            )
        return actions

    def _any_size(self) -> Resources:
        return Resources(MilliCpu(250 * self.random.randint(1, 16)), SLOT * self.random.randint(2, 32))

    def _tell(self, agent: Agent, event: Event, now: Instant) -> None:
        advance(agent.state, event, now, self.random.random())

    def _sample(self, agent: Agent, guest: Resources, now: Instant) -> GuestSample:
        """A guest under the agent's demand since the last sample."""
        span, agent.scraped_at = now - agent.scraped_at, now
        cores = guest.cpu.as_cores
        agent.busy += min(agent.demand, cores) * span
        agent.stall += span * max(0.0, 1 - cores / max(agent.demand, 0.01))
        share = CpuSeconds(agent.busy / CPUS)
        return GuestSample(
            cpus={str(cpu): share for cpu in range(CPUS)},
            runnable=agent.demand + 1,
            load1=agent.demand,
            load5=agent.demand,
            mem_total=guest.mem,
            mem_available=guest.mem.minus_or_zero(Bytes(int(agent.mem * 1024**3))),
            cpu_stall=agent.stall,
            mem_stall=0.0,
            quiet=1000.0 if agent.demand < 0.3 else 0.0,
        )


def _view(vm: VmObject) -> Vm:
    return Vm(
        Bounds(vm.minimum, vm.maximum),
        vm.use,
        ZERO if vm.sleeps else vm.status or vm.use,
        SLOT,
        vm.version,
        not vm.sleeps,
        vm.permit,
        is_pod=vm.is_pod,
        phase=vm.phase,
        order=vm.order,
        sleep=vm.report,
        never_sleeps="it is a pod" if vm.is_pod else "",
    )
