"""A whole fleet under a seeded storm: every party crashes, every message is lost, doubled or late, nothing sleeps.

Rules that hold here:

- One seed gives one story. ``World.step`` does one thing at random and then checks everything that must hold.
- In a *closed* world all reservations go through the ledger, so no node may ever be over its total. In an *open* one
  foreign pods, shrinking nodes and late binds push nodes over; no grant may.
- Messages die within ``MESSAGE_LIFE``, which is below the ledger's ``SETTLE``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from random import Random

from protocol.messages import ObjectName
from protocol.units import ZERO, Bytes, ComputeUnit, Instant, MilliCpu, Resources
from scheduler_plugin.ledger.facts import MigrationPhase, NodeFacts, NodePolicy, PodFacts, ResourcePolicy
from scheduler_plugin.ledger.invariants import VmTruth, violations
from scheduler_plugin.ledger.moves import Move
from tests.scenarios.agents import Agents
from tests.scenarios.cluster import NAMESPACE, Cluster, VmObject
from tests.scenarios.migrations import Controller
from tests.scenarios.scheduler import Scheduler
from tests.scenarios.sleepers import Sleepers, certainly_over

MESSAGE_LIFE = 25.0
CAPACITY = Resources.parse(12, "16Gi")
"""What every node has; only what is allocatable of it changes, by the settings of its kubelet."""
UNITS = (ComputeUnit.parse("250m", "512Mi"), ComputeUnit.parse("500m", "1Gi"), ComputeUnit.parse("300m", "768Mi"))


def policy(unit: Resources, watermark: str = "0.8") -> NodePolicy:
    return NodePolicy(
        ComputeUnit(unit.cpu, unit.mem),
        ResourcePolicy(Fraction(watermark), MilliCpu(500)),
        ResourcePolicy(Fraction(watermark), Bytes.parse("1Gi")),
    )


class World:
    """The parties, the clock and the dice."""

    def __init__(self, seed: int, *, is_open: bool) -> None:
        self.seed, self.is_open = seed, is_open
        self.random = Random(seed)
        self.now = Instant(1000.0)
        self.cluster = Cluster()
        self.agents = Agents(self.cluster, self.random)
        self.controller = Controller(self.cluster)
        self.sleepers = Sleepers(self.cluster, self.random)
        self.scheduler = Scheduler(self.cluster, self.agents, self.random, self.controller)
        self.trace: deque[str] = deque(maxlen=60)
        self.steps = 0
        self.denials = 0
        self.planned = self.moved = 0
        for node in range(4):
            size = Resources.parse(6, "12Gi")
            self.cluster.put_node(NodeFacts(f"node-{node}", size, policy(UNITS[0]), capacity=CAPACITY))
        for number in range(11):
            self.new_vm(is_pod=number % 4 == 3)
        self.scheduler.start(self.now)
        self._moves = self._weights()

    def step(self) -> None:
        """One thing happens; then everything is checked."""
        names = list(self._moves)
        move = self.random.choices(names, [self._moves[name][1] for name in names])[0]
        self.now = Instant(self.now + self.random.random() * 0.2 + (35.0 if self.random.random() < 0.002 else 0.0))
        self.trace.append(f"{self.now:.2f} {move}")
        self.steps += 1
        self._moves[move][0]()
        self.agents.expire(self.now)
        self.check()

    def check(self) -> None:
        """Guest use <= permit held by the agent <= reservation <= node."""
        ledger = self.scheduler.ledger
        truth = {}
        for vm in self.cluster.vms.values():
            if vm.guest is not None and vm.pod is not None:
                truth[vm.pod.uid] = VmTruth(vm.guest, self.agents.may_use(vm))
        if ledger is None:
            broken = [f"{uid}: {vm}" for uid, vm in truth.items() if not vm.guest.within(vm.permit)]
        elif self.is_open:
            broken = violations(ledger, {uid: vm for uid, vm in truth.items() if uid in ledger.claims})
        else:
            broken = violations(ledger, truth) + [f"{name} is over" for name in certainly_over(ledger)]
        if broken:
            story = "\n".join(self.trace)
            raise AssertionError(f"seed {self.seed}, step {self.steps}: {broken}\n{story}")

    # The parties' moves ------------------------------------------------------------------------------------------

    def _weights(self) -> dict[str, tuple[Callable[[], None], float]]:
        moves: dict[str, tuple[Callable[[], None], float]] = {
            "agent": (self.agent, 20),
            "deliver": (self.deliver, 12),
            "give up": (self.give_up, 2),
            "patch": (self.patch, 9),
            "patch lost": (self.patch_lost, 1),
            "runtime": (self.runtime, 12),
            "watch": (self.watch, 20),
            "relist": (self.relist, 0.2),
            "write": (self.write, 10),
            "place": (self.place, 6),
            "bind": (self.bind, 5),
            "read": (self.read, 3),
            "crash": (self.crash, 0.5),
            "agent dies": (self.agent_dies, 0.5),
            "processes start": (self.processes_start, 6),
            "churn": (self.churn, 0.4),
            "policy": (self.new_policy, 0.2),
            "write haunts": (self.scheduler.haunt, 0.5),
            "look": (self.look, 4),
            "move": (self.move, 2),
            "create": (self.create, 4),
            "settle": (self.settle, 2),
            "migrate": (self.migrate, 25),
            "cancel": (self.cancel, 0.3),
            "sleep": (self.sleepers.step, 12),
        }
        if self.is_open:
            moves |= {"foreign": (self.foreign, 0.5), "nodes": (self.nodes, 0.3), "edit": (self.edit, 0.5)}
        return moves

    def agent(self) -> None:
        if not self.agents.alive:
            return
        agent = self.random.choice(list(self.agents.alive.values()))
        if self.random.random() < 0.25:
            agent.demand = self.random.choice((0.1, 0.5, 2.0, 3.0, 4.0))
            agent.mem = self.random.choice((0.1, 0.5, 2.0, 4.0))
        if agent.vm in self.cluster.vms:
            self.agents.step(agent, self.now)

    def deliver(self) -> None:
        wire = self.agents.wire
        for message in [message for message in wire if self.now - message.at > MESSAGE_LIFE]:
            wire.remove(message)
            self.agents.answered(message.sent, message.uid, None, self.now)
        here = [message for message in wire if message.arrives <= self.now]
        if not here:
            return
        message = self.random.choice(here)
        if self.random.random() < 0.8:
            wire.remove(message)
        else:
            message.arrives = self.agents.delay(self.now)
        if self.random.random() < 0.93:
            self.trace.append(f"  {message.uid} asks {message.request.resources} #{message.request.sequence}")
            self.scheduler.deliver(message, self.now)
        else:
            self.agents.answered(message.sent, message.uid, None, self.now)

    def give_up(self) -> None:
        """An agent's time-out: the message stays on the wire."""
        if self.agents.wire:
            message = self.random.choice(self.agents.wire)
            self.agents.answered(message.sent, message.uid, None, self.now)

    def patch(self) -> None:
        if self.agents.patches:
            patch = self.agents.patches.pop(self.random.randrange(len(self.agents.patches)))
            self.trace.append(f"  {patch.vm.name} to {patch.action.target}")
            self.agents.land(patch, self.now, reply=self.random.random() < 0.85)

    def patch_lost(self) -> None:
        if self.agents.patches:
            patch = self.random.choice(self.agents.patches)
            self.agents.lose(patch, self.now)
            if self.random.random() < 0.5:
                self.agents.patches.remove(patch)

    def runtime(self) -> None:
        if self.cluster.vms:
            vm = self.random.choice(list(self.cluster.vms.values()))
            self.cluster.run(vm, self.random.randrange(3))

    def watch(self) -> None:
        if self.scheduler.ledger is not None:
            self.scheduler.hear(self.random.choice(("node", "pod", "vm", "vm", "migration")), self.now)

    def relist(self) -> None:
        if self.scheduler.ledger is not None:
            self.scheduler.relist(self.now)

    def write(self) -> None:
        if self.scheduler.ledger is not None and self.scheduler.writes:
            vm = self.random.choice(list(self.scheduler.writes))
            outcome = self.random.choices(("answered", "lost", "failed", "late"), (12, 1, 1, 1))[0]
            self.trace.append(f"  {self.scheduler.writes[vm]} {outcome}")
            self.scheduler.write(vm, outcome, self.now)

    def place(self) -> None:
        pending = [pod for pod in self.cluster.pods.values() if not pod.finished]
        if self.scheduler.ledger is not None and pending and self.cluster.nodes:
            unbound = [pod for pod in pending if pod.node is None]
            self.scheduler.place(self.random.choice(unbound or pending), self.now)

    def bind(self) -> None:
        if self.scheduler.binds:
            late = 1 if self.is_open else 0
            outcome = self.random.choices(("answered", "lost", "failed", "refused", "late"), (8, 1, 1, 1, late))[0]
            self.scheduler.bind(self.random.choice(self.scheduler.binds), outcome, self.now)

    def read(self) -> None:
        if self.scheduler.ledger is not None:
            self.scheduler.read(self.now)

    def crash(self) -> None:
        if self.scheduler.ledger is not None:
            self.scheduler.crash(self.now)

    def agent_dies(self) -> None:
        if self.agents.alive:
            self.agents.kill(self.random.choice(list(self.agents.alive)))

    def processes_start(self) -> None:
        """Start everything that is missing: the scheduler, VM pods, agents of running pods."""
        if self.scheduler.ledger is None:
            if self.random.random() < 0.5:
                self.scheduler.start(self.now)
            return
        for uid in [uid for uid in self.agents.alive if uid not in self._running()]:
            self.agents.kill(uid)
        for vm in self.cluster.vms.values():
            if vm.pod is None:
                self.cluster.start_pod(vm)
            elif vm.has_booted and vm.pod.uid not in self.agents.alive:
                self.agents.start(vm, self.now)

    def churn(self) -> None:
        """A pod dies or finishes, or a VM comes or goes."""
        what = self.random.randrange(4)
        if what == 0 and len(self.cluster.vms) < 13:
            self.new_vm(is_pod=self.random.random() < 0.3)
        elif what == 1 and len(self.cluster.vms) > 5:
            self.cluster.drop_vm(self.random.choice(list(self.cluster.vms)))
        elif self.cluster.pods:
            uid = self.random.choice(list(self.cluster.pods))
            if what == 2 and not self.cluster.pods[uid].finished:
                self.cluster.finish_pod(uid)
            else:
                self.cluster.drop_pod(uid)

    def new_policy(self) -> None:
        if self.cluster.nodes:
            node = self.random.choice(list(self.cluster.nodes.values()))
            unit, watermark = self.random.choice(UNITS), self.random.choice(("0.5", "0.8", "1"))
            self.cluster.put_node(replace(node, policy=policy(unit, watermark), is_open=self.random.random() < 0.8))

    # Migrations --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        if self.scheduler.ledger is not None:
            self.planned += self.scheduler.look(self.now)

    def move(self) -> None:
        """A move is ordered at random; now and then by a person, past the scheduler."""
        vms = [vm for vm in self.cluster.vms.values() if not vm.is_pod]
        running = [(vm, vm.pod) for vm in vms if vm.pod is not None and vm.status is not None]
        if not running or not self.cluster.nodes:
            return
        (vm, pod), to = self.random.choice(running), self.random.choice(list(self.cluster.nodes))
        if self.random.random() < 0.3:
            name = ObjectName(NAMESPACE, f"person-{self.cluster.next_name()}")
            self.controller.create(name, vm.name, self.random.choice((None, to)), is_ours=False)
        elif self.scheduler.ledger is not None:
            self.scheduler.order(Move(vm.name, pod.uid, pod.node or "", to, "at random"), self.now)

    def create(self) -> None:
        if self.scheduler.ledger is not None and self.scheduler.creations:
            late = 1 if self.is_open else 0
            outcome = self.random.choices(("answered", "lost", "failed", "refused", "late"), (8, 1, 1, 1, late))[0]
            self.scheduler.create(outcome, self.now)

    def settle(self) -> None:
        if self.scheduler.ledger is not None and self.scheduler.doubts:
            self.scheduler.settle(self.now)

    def migrate(self) -> None:
        """The controller takes a step with one migration; the agent that is left behind ends with its pod's role."""
        if self.cluster.migrations:
            found = self.random.choice(list(self.cluster.migrations.values()))
            self.controller.step(found, self.now, fails=self.random.random() < 0.03)
            self.moved += found.has_moved and found.facts.phase is MigrationPhase.RUNNING
            for uid in [uid for uid in self.agents.alive if found.has_moved and uid not in self._running()]:
                self.agents.kill(uid)

    def cancel(self) -> None:
        if self.cluster.migrations:
            self.controller.cancel(self.random.choice(list(self.cluster.migrations)))

    # What others do in an open world -----------------------------------------------------------------------------

    def foreign(self) -> None:
        """A pod of another scheduler is bound, or one goes."""
        others = [pod for pod in self.cluster.pods.values() if pod.vm is None]
        if len(others) > 4:
            self.cluster.drop_pod(self.random.choice(others).uid)
        elif self.cluster.nodes:
            name = ObjectName(NAMESPACE, f"foreign-{self.cluster.next_name()}")
            needs = Resources.parse(self.random.choice(("250m", 2, 5)), self.random.choice(("256Mi", "6Gi")))
            node = self.random.choice((None, *self.cluster.nodes))
            self.cluster.put_pod(PodFacts(f"uid-{name.name}", name, needs, node=node))

    def edit(self) -> None:
        """A person, or an operator, changes what a pod requests."""
        databases = [vm for vm in self.cluster.vms.values() if vm.is_pod]
        if databases:
            vm = self.random.choice(databases)
            vm.use = Resources.parse(self.random.randint(1, 6), f"{self.random.randint(1, 8)}Gi")
            self.cluster.put_vm(vm)
            # Nobody can know of it before.
            while self.scheduler.ledger is not None and self.cluster.streams["pod"]:
                self.scheduler.hear("pod", self.now)

    def nodes(self) -> None:
        """Shrink, grow, delete or recreate a node."""
        what = self.random.randrange(3)
        if what == 0 and len(self.cluster.nodes) > 1:
            self.cluster.drop_node(self.random.choice(list(self.cluster.nodes)))
            return
        name = f"node-{self.random.randrange(4)}"
        size = Resources.parse(self.random.choice((2, 8, 12)), self.random.choice(("4Gi", "16Gi")))
        self.cluster.put_node(NodeFacts(name, size, policy(self.random.choice(UNITS)), capacity=CAPACITY))

    # Helpers -----------------------------------------------------------------------------------------------------

    def new_vm(self, *, is_pod: bool = False) -> None:
        name = ObjectName(NAMESPACE, f"vm-{self.cluster.next_name()}")
        minimum, maximum = Resources.parse("250m", "512Mi"), Resources.parse(4, "8Gi")
        use = Resources.parse(self.random.choice(("250m", 1)), self.random.choice(("512Mi", "2Gi")))
        if is_pod:
            self.cluster.make_database(minimum, maximum, use)
        else:
            self.cluster.put_vm(VmObject(name, f"uid-{name.name}", minimum, maximum, use))

    def _running(self) -> set[str]:
        return {vm.pod.uid for vm in self.cluster.vms.values() if vm.pod is not None and vm.has_booted}

    @property
    def unmet(self) -> bool:
        """True if a VM is denied something now."""
        ledger = self.scheduler.ledger
        return ledger is not None and any(book.unmet != ZERO for book in ledger.nodes.values())
