"""The scheduler of a scenario: the real ledger, and the service's duties stepped by hand.

It answers an increase only after its write is confirmed, carries out one write per VM at a time over the version that
it knows, binds through the API, and forgets everything when it crashes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from protocol.codec import PluginResponseView
from protocol.messages import ObjectName
from protocol.ranking.config import RankingConfig
from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.ledger.events import (
    BindEnded,
    BindRequested,
    Listed,
    MigrationCreateEnded,
    MigrationGone,
    MigrationSeen,
    MoveRequested,
    NodeGone,
    NodeSeen,
    PermitRequested,
    PermitWritten,
    PodGone,
    PodRead,
    PodSeen,
    VmGone,
    VmSeen,
    WriteOutcome,
)
from scheduler_plugin.ledger.facts import MigrationFacts, NodeFacts, PodFacts, VmFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.ledger.outcomes import (
    CreateMigration,
    Effect,
    LedgerError,
    PermitDecision,
    PersistPermit,
    ReadMigration,
    ReadPod,
    RoomFreed,
)
from scheduler_plugin.placement.verdict import FITS
from scheduler_plugin.planner.plan import MigrationPolicy
from scheduler_plugin.planner.planner import Planner, run_steps
from scheduler_plugin.planner.victims import MoveDelays, PlanningTime
from tests.scenarios.agents import Agents, Message
from tests.scenarios.cluster import Cluster, Database, Event, Gone
from tests.scenarios.migrations import Controller
from tests.scheduler_plugin.ledger.fleet import permit_stored

RANKING = RankingConfig()
POLICY = MigrationPolicy(
    settle=Seconds(1.0),
    settle_denied=Seconds(0.5),
    delays=MoveDelays(cooldown=Seconds(5.0), backoff=Seconds(2.0), max_backoff=Seconds(8.0)),
    out_per_node=2,
    per_cluster=10,
    timeout=Seconds(60.0),
)


@dataclass
class Bind:
    uid: str
    node: str


@dataclass
class Ghost:
    """A permit's write whose sender has given up, and which may still land."""

    vm: ObjectName
    permit: Resources
    base: int


@dataclass
class Scheduler:
    cluster: Cluster
    agents: Agents
    random: Random
    controller: Controller
    ledger: Ledger | None = None
    writes: dict[ObjectName, PersistPermit] = field(default_factory=dict)
    waiting: list[tuple[PersistPermit, Message, PermitDecision]] = field(default_factory=list)
    binds: list[Bind] = field(default_factory=list)
    late_binds: list[Bind] = field(default_factory=list)
    reads: list[ReadPod] = field(default_factory=list)
    creations: list[CreateMigration] = field(default_factory=list)
    late_creations: list[CreateMigration] = field(default_factory=list)
    doubts: list[ReadMigration] = field(default_factory=list)
    planner: Planner = field(default_factory=Planner)
    ghosts: list[Ghost] = field(default_factory=list)
    old_events: list[Event] = field(default_factory=list)
    woken: int = 0

    def start(self, now: Instant) -> None:
        """A new process reads the cluster and is ready."""
        self.ledger, self.planner = Ledger(), Planner()
        self.relist(now)

    def relist(self, now: Instant) -> None:
        """List everything; the list contains all pending events."""
        assert self.ledger is not None
        for stream in self.cluster.streams.values():
            stream.clear()
        vms = [vm.facts() for vm in self.cluster.vms.values()]
        moving = [each.facts for each in self.cluster.migrations.values()]
        self._do(self.ledger.apply(Listed(self.cluster.nodes.values(), self.cluster.pods.values(), vms, moving), now))

    def crash(self, now: Instant) -> None:
        """The process dies: connections break, and each call in flight has landed or never will."""
        for effect in list(self.writes.values()):
            if self.random.random() < 0.5:
                self._land(effect.vm, effect.permit)
        for bind in self.binds:
            if self.random.random() < 0.5:
                self.cluster.bind(bind.uid, bind.node)
        for order in self.creations:
            if self.random.random() < 0.5:
                self._make(order)
        for _, message, _ in self.waiting:
            self.agents.answered(message.sent, message.uid, None, now)
        # Nothing is stored for pods, so a message that outlived the process would hide what its agent holds by now.
        for message in [message for message in self.agents.wire if self._is_of_pod(message)]:
            self.agents.wire.remove(message)
            self.agents.answered(message.sent, message.uid, None, now)
        self.ledger = None
        self.ghosts.clear()
        for pile in (self.late_binds, self.creations, self.late_creations, self.doubts):
            pile.clear()
        self.writes.clear()
        self.waiting.clear()
        self.binds.clear()
        self.reads.clear()
        self.old_events.clear()

    def _is_of_pod(self, message: Message) -> bool:
        pod = self.cluster.pods.get(message.uid)
        return pod is not None and pod.vm in self.cluster.vms and self.cluster.vms[pod.vm].is_pod

    # The watch ---------------------------------------------------------------------------------------------------

    def hear(self, kind: str, now: Instant) -> None:
        """Deliver the next event of one kind; sometimes an earlier one is repeated."""
        stream = self.cluster.streams[kind]
        if stream:
            event = stream.popleft()
            self.take(event, now)
            if isinstance(event, VmFacts | PodFacts | MigrationFacts):
                self.old_events = [*self.old_events[-20:], event]
        elif self.old_events:
            self.take(self.random.choice(self.old_events), now)

    def take(self, event: Event, now: Instant) -> None:
        assert self.ledger is not None
        match event:
            case NodeFacts():
                self._do(self.ledger.apply(NodeSeen(event), now))
            case PodFacts():
                self._do(self.ledger.apply(PodSeen(event), now))
            case VmFacts():
                self._do(self.ledger.apply(VmSeen(event), now))
            case Database(vm, pod):
                self._do(self.ledger.apply(VmSeen(vm), now))
                self._do(self.ledger.apply(PodSeen(pod), now))
            case MigrationFacts():
                self._do(self.ledger.apply(MigrationSeen(event), now))
            case Gone("migration", ObjectName() as name):
                self._do(self.ledger.apply(MigrationGone(name), now))
            case Gone("node", str(name)):
                self._do(self.ledger.apply(NodeGone(name), now))
            case Gone("pod", str(uid)):
                self._do(self.ledger.apply(PodGone(uid), now))
            case Gone(_, ObjectName() as name):
                self._do(self.ledger.apply(VmGone(name), now))

    # Binds -------------------------------------------------------------------------------------------------------

    def place(self, pod: PodFacts, now: Instant) -> None:
        """One cycle of kube-scheduler: filter, then bind on one of the nodes, though others may bind in between."""
        assert self.ledger is not None
        try:
            fits = self.ledger.filter(pod, list(self.cluster.nodes)).fits
            if fits and self.random.random() < 0.9:
                node = self.random.choice(fits)
            else:
                node = self.random.choice(list(self.cluster.nodes))
            reservation = self.ledger.apply(BindRequested(pod, node), now)
        except LedgerError:
            return
        if fits == [node]:
            assert reservation.verdict is FITS
        if reservation.verdict is FITS and reservation.needs_bind:
            self.binds.append(Bind(pod.uid, node))

    def bind(self, bind: Bind, outcome: str, now: Instant) -> None:
        """The API call of a bind ends: answered, its answer lost, failed with doubt, or late."""
        assert self.ledger is not None
        self.binds.remove(bind)
        if outcome == "late":
            self.late_binds.append(bind)
        landed = outcome in ("answered", "lost") and self.cluster.bind(bind.uid, bind.node)
        if outcome == "refused":
            self._do(self.ledger.apply(BindEnded(bind.uid, bind.node, WriteOutcome.REFUSED), now))
        elif landed and outcome == "answered":
            self._do(self.ledger.apply(BindEnded(bind.uid, bind.node, WriteOutcome.DONE), now))
        else:
            self._do(self.ledger.apply(BindEnded(bind.uid, bind.node, WriteOutcome.UNKNOWN), now))

    def read(self, now: Instant) -> None:
        """Reads one pod whose bind is in doubt."""
        assert self.ledger is not None
        if self.reads:
            order = self.reads.pop(self.random.randrange(len(self.reads)))
            self._do(self.ledger.apply(PodRead(order.uid, self.cluster.pods.get(order.uid)), now))

    # Migrations --------------------------------------------------------------------------------------------------

    def order(self, move: Move, now: Instant) -> bool:
        """Reserves room for a move and takes the order to create its migration."""
        assert self.ledger is not None
        name = ObjectName(move.vm.namespace, f"{move.vm.name}-{self.cluster.next_name()}")
        reservation = self.ledger.apply(MoveRequested(move, name), now)
        self._do(reservation.effects)
        return reservation.verdict is FITS

    def look(self, now: Instant) -> int:
        """Run the planner and start its migrations. Returns the number of VMs to move."""
        assert self.ledger is not None
        plan = run_steps(self.planner.plan(self.ledger, POLICY, RANKING, PlanningTime(now, now), self.random.randint))
        for move in plan.moves:
            assert self.order(move, now), f"the planner says {move}, the ledger refuses"
        for name in [*(cancel.migration for cancel in plan.cancels), *plan.forget]:
            self.controller.cancel(name)
        return len(plan.moves)

    def create(self, outcome: str, now: Instant) -> None:
        """The creation of a migration ends: answered, its answer lost, failed with doubt, refused, or late."""
        assert self.ledger is not None
        order = self.creations.pop(self.random.randrange(len(self.creations)))
        if outcome in ("answered", "lost"):
            self._make(order)
        elif outcome == "late":
            self.late_creations.append(order)
        if outcome == "answered":
            self._do(self.ledger.apply(MigrationCreateEnded(order.migration, WriteOutcome.DONE), now))
        elif outcome == "refused":
            self._do(self.ledger.apply(MigrationCreateEnded(order.migration, WriteOutcome.REFUSED), now))
        else:
            self._do(self.ledger.apply(MigrationCreateEnded(order.migration, WriteOutcome.UNKNOWN), now))

    def settle(self, now: Instant) -> None:
        """Reads a migration whose creation is in doubt; that there is none is believed once none can come any more."""
        assert self.ledger is not None
        doubt = self.doubts.pop(self.random.randrange(len(self.doubts)))
        found = self.cluster.migrations.get(doubt.migration)
        if found is not None:
            self._do(self.ledger.apply(MigrationSeen(found.facts), now))
        elif any(order.migration == doubt.migration for order in self.late_creations):
            self.doubts.append(doubt)
        else:
            self._do(self.ledger.apply(MigrationCreateEnded(doubt.migration, WriteOutcome.REFUSED), now))

    def _make(self, order: CreateMigration) -> None:
        self.controller.create(order.migration, order.move.vm, order.move.target, is_ours=True)

    # Permits -----------------------------------------------------------------------------------------------------

    def deliver(self, message: Message, now: Instant) -> None:
        """One copy of a request arrives."""
        if self.ledger is None:
            self.agents.answered(message.sent, message.uid, None, now)
            return
        try:
            decision = self.ledger.apply(PermitRequested(message.uid, message.request), now)
        except LedgerError:
            self.agents.answered(message.sent, message.uid, None, now)
            return
        self._do(decision.effects)
        if decision.persist is not None:
            self.writes[decision.persist.vm] = decision.persist
            if decision.persist.before_answer:
                self.waiting.append((decision.persist, message, decision))
                return
        self._answer(message, decision, now)

    def write(self, vm: ObjectName, outcome: str, now: Instant) -> None:
        """The newest write for a VM ends: answered, its answer lost, failed, or late."""
        assert self.ledger is not None
        effect = self.writes.pop(vm)
        found = self.cluster.vms.get(vm)
        base = 0 if found is None else found.version
        if found is None:
            outcome = "failed"
        elif outcome == "late":
            self.ghosts.append(Ghost(vm, effect.permit, found.version))
        elif outcome in ("answered", "lost"):
            self._land(vm, effect.permit)
        if outcome == "answered" and found is not None:
            self._do(self.ledger.apply(permit_stored(effect.revision, found.facts()), now))
        else:
            self._do(self.ledger.apply(PermitWritten(vm, effect.revision, WriteOutcome.UNKNOWN, version=base), now))
        for entry in [entry for entry in self.waiting if entry[0].vm == vm]:
            self.waiting.remove(entry)
            stored = outcome == "answered" and entry[0].revision == effect.revision
            self._answer(entry[1], entry[2] if stored else None, now)

    def haunt(self) -> None:
        """A late write, bind or creation lands after all, unless its object has changed since."""
        if self.ghosts:
            ghost = self.ghosts.pop()
            found = self.cluster.vms.get(ghost.vm)
            if found is not None and found.version == ghost.base:
                self._land(ghost.vm, ghost.permit)
        if self.late_creations:
            self._make(self.late_creations.pop())
        if self.late_binds:
            bind = self.late_binds.pop()
            self.cluster.bind(bind.uid, bind.node)

    def _land(self, vm: ObjectName, permit: Resources) -> None:
        found = self.cluster.vms.get(vm)
        if found is not None:
            found.permit = permit
            self.cluster.put_vm(found)

    def _answer(self, message: Message, decision: PermitDecision | None, now: Instant) -> None:
        view = None
        if decision is not None:
            view = PluginResponseView(decision.permit, decision.compute_unit, decision.migrate)
        if self.random.random() < 0.9:
            self.agents.answered(message.sent, message.uid, view, now)

    def _do(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, ReadPod):
                self.reads.append(effect)
            elif isinstance(effect, CreateMigration):
                self.creations.append(effect)
            elif isinstance(effect, ReadMigration):
                self.doubts.append(effect)
            elif isinstance(effect, RoomFreed):
                self.woken += 1
