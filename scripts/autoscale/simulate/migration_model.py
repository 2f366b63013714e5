"""Simulated migrations: the real planner decides, a model of the controller carries them out (S4.8, S4.9, S4.12)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Final

from protocol.messages import ObjectName
from protocol.ranking.config import RankingConfig
from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.ledger.events import (
    MigrationCreateEnded,
    MigrationGone,
    MigrationSeen,
    MoveRequested,
    PodGone,
    WriteOutcome,
)
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.placement.verdict import FITS
from scheduler_plugin.planner.cost import HasTarget, RoomGoal, Selection, least_cost, ordered_by
from scheduler_plugin.planner.plan import MigrationPolicy, MovePlan
from scheduler_plugin.planner.planner import Planner, run_steps
from scheduler_plugin.planner.victims import Now, Victim
from scripts.autoscale.simulate.fleet import SimulationSettings
from scripts.autoscale.simulate.simulated_cluster import SimulatedCluster
from scripts.autoscale.simulate.simulated_vm import NAMESPACE, NEVER, SimulatedVm

NO_MIGRATION: Final = "none"
Loads = tuple[list[float], list[float]]
"""The demand in vCPUs and the memory in use in bytes of every VM."""

REPEAT_WINDOW: Final = Seconds(3600.0)

LOAD_STEP: Final = 0.5
"""Loads within this many vCPUs count as equal if the least loaded go first."""


def least_loaded_first(victim: Victim, excess: Resources | None) -> tuple[float, ...]:
    """The least loaded; then the size of which the fewest VMs relieve the node; then the least to copy."""
    return victim.load // LOAD_STEP, _how_many(victim.size, excess), float(victim.to_copy)


def _how_many(size: Resources, excess: Resources | None) -> float:
    """The number of VMs of that size that would have to go; infinite if they free nothing that is short."""
    if excess is None:
        return 1.0
    pairs = ((excess.cpu.value, size.cpu.value), (excess.mem.value, size.mem.value))
    # Floor division of the negative rounds up.
    return max((float(-(-much // one)) if one else inf for much, one in pairs if much), default=1.0)


def oldest_first(victim: Victim, _: Resources | None) -> tuple[float, ...]:
    """The original's rule: the VM that has been on the node longest goes first."""
    return (float(victim.index),)


LEAST_COST: Final = "least-cost"

ORDERS: Final[dict[str, Callable[[Random], Selection]]] = {
    LEAST_COST: lambda _: least_cost,
    "least-loaded": lambda _: ordered_by(least_loaded_first),
    "random": lambda random: ordered_by(lambda _, __: (random.random(),)),
    "oldest-first": lambda _: ordered_by(oldest_first),
    NO_MIGRATION: lambda _: least_cost,
}
"""How victims are chosen, by name: the scheduler's rule, and others to compare. ``none`` disables migration."""


@dataclass(frozen=True, slots=True, order=True)
class InFlightMove:
    """A migration that ends at ``ends``; ``number`` orders those that end at the same time."""

    ends: float
    number: int
    vm: SimulatedVm = field(compare=False)
    facts: MigrationFacts = field(compare=False)
    in_time: bool = field(compare=False)


class SimulatedMigrations:
    """All migrations of one run.

    ``repeated`` counts migrations of VMs that had started one within the hour before, ``copied`` is bytes, and
    ``disturbed`` the load of migrating VMs integrated over time (vCPU-seconds).
    """

    def __init__(self, cluster: SimulatedCluster, settings: SimulationSettings, order: str) -> None:
        self.started = self.failed = self.repeated = 0
        self.copied = self.disturbed = 0.0
        self._last: dict[ObjectName, Instant] = {}
        self._policy = MigrationPolicy(enabled=order != NO_MIGRATION)
        self._cluster, self._settings = cluster, settings
        # Each order has a stream of its own, so that adding one changes no other.
        self._random = Random(f"{settings.seed} {order}")
        self._select = ORDERS[order](self._random)
        self._loads: Loads = ([], [])
        self._planner = Planner(self._by_last_reports)
        self._ranking = RankingConfig()
        # A heap by the time at which each ends.
        self._in_flight: list[InFlightMove] = []

    @property
    def active(self) -> int:
        """The number of migrations in flight."""
        return len(self._in_flight)

    def arrive(self, now: Instant) -> list[SimulatedVm]:
        """Ends the migrations that are due by ``now``; returns their VMs."""
        arrived = []
        while self._in_flight and self._in_flight[0].ends <= now:
            move = heappop(self._in_flight)
            if move.in_time:
                self._succeed(move, now)
            else:
                self._fail(move, now)
            arrived.append(move.vm)
        return arrived

    def reconcile(self, now: Instant, loads: Loads) -> tuple[list[SimulatedVm], MovePlan]:
        """Carries out the planner's plan under these loads; returns the VMs that started to move, and the plan."""
        # The planner's callback needs the loads, and only gets victims.
        ledger, self._loads = self._cluster.ledger, loads
        look = self._planner.plan(ledger, self._policy, self._ranking, Now(now, now), self._random.randint)
        plan = run_steps(look)
        for name in plan.forget:
            ledger.apply(MigrationGone(name), now)
        for move in plan.moves:
            self._start(move, now)
        return [self._cluster.vms[move.vm] for move in plan.moves], plan

    def _load_of(self, vm: SimulatedVm) -> tuple[float, int]:
        """The VM's load in vCPUs, and its memory in use in bytes."""
        cores, mem = self._loads
        return cores[vm.index], min(int(mem[vm.index]), vm.use.mem.value)

    def _by_last_reports(
        self, victims: Sequence[Victim], need: RoomGoal | None, has_place: HasTarget
    ) -> Iterable[Victim]:
        return self._select([self._reported(victim) for victim in victims], need, has_place)

    def _reported(self, victim: Victim) -> Victim:
        # The planner compares the loads that the agents would have reported last.
        load, mem = self._load_of(self._cluster.vms[victim.vm])
        return replace(victim, load=load, to_copy=mem)

    def _start(self, move: Move, now: Instant) -> None:
        vm, ledger, number = self._cluster.vms[move.vm], self._cluster.ledger, self.started
        name, target = _named(f"{vm.name.name}-{number}"), _named(f"{vm.name.name}-on-{number}")
        answer = ledger.apply(MoveRequested(move, name), now)
        # Nothing lies between plan and reservation here, so a refusal is a bug.
        if answer.verdict is not FITS:
            raise RuntimeError(f"the planner's own move {move} is refused: {answer}")
        ledger.apply(MigrationCreateEnded(name, WriteOutcome.DONE), now)
        facts = MigrationFacts(
            name,
            name.name,
            1,
            vm.name,
            MigrationPhase.PENDING,
            move.target,
            _named(vm.pod),
            target,
            is_ours=True,
            created_at=now,
        )
        ledger.apply(MigrationSeen(facts), now)
        # The VM keeps its size from the order to the end.
        vm.is_migrating, vm.moved_for_room = True, vm.is_denied
        self._cluster.changed(vm, now)
        # Both nodes are reserved from here until the migration ends.
        if not self._cluster.bind(self._cluster.pod(vm, target.name, name), move.target, now):
            raise RuntimeError(f"the reserved node {move.target} has no room for {target}")
        ledger.apply(MigrationSeen(replace(facts, version=2, phase=MigrationPhase.RUNNING)), now)
        self._track(vm, facts, now)

    def _track(self, vm: SimulatedVm, facts: MigrationFacts, now: Instant) -> None:
        cores, mem = self._load_of(vm)
        wanted = self._settings.setup + mem / self._settings.bandwidth.value
        # A migration that takes longer than the policy's timeout fails; nothing else fails.
        takes = min(wanted, self._policy.timeout)
        heappush(self._in_flight, InFlightMove(now + takes, self.started, vm, facts, in_time=wanted <= takes))
        self.started += 1
        self.repeated += now - self._last.get(vm.name, NEVER) < REPEAT_WINDOW
        self.copied += mem
        self.disturbed += min(cores, vm.use.cpu.as_cores) * takes
        self._last[vm.name] = now

    def _succeed(self, move: InFlightMove, now: Instant) -> None:
        vm, source, cluster = move.vm, move.vm.pod, self._cluster
        # The source's node loses the pod, so it is checked, too. `changed` touches the target only.
        cluster.touched.add(vm.node)
        vm.is_migrating, vm.node = False, move.facts.target or ""
        # A new agent starts in the target pod, without any history.
        vm.start_agent(f"{vm.name.name}-on-{move.number}", now)
        cluster.changed(vm, now)
        cluster.adopt(vm, now)
        self._end(move, MigrationPhase.SUCCEEDED, now)
        cluster.ledger.apply(PodGone(source), now)

    def _fail(self, move: InFlightMove, now: Instant) -> None:
        move.vm.is_migrating = move.vm.moved_for_room = False
        self._cluster.changed(move.vm, now)
        self._end(move, MigrationPhase.FAILED, now)
        self._cluster.ledger.apply(PodGone(f"{move.vm.name.name}-on-{move.number}"), now)
        self.failed += 1

    def _end(self, move: InFlightMove, phase: MigrationPhase, now: Instant) -> None:
        facts = replace(move.facts, version=3, phase=phase, ended_at=now)
        self._cluster.ledger.apply(MigrationSeen(facts), now)


def _named(name: str) -> ObjectName:
    return ObjectName(NAMESPACE, name)
