"""Simulated migrations: the real planner plans, a model of the controller executes (S4.8, S4.9, S4.12)."""

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
    HeadroomSeen,
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
from scheduler_plugin.planner.victims import PlanningTime, Victim
from scripts.autoscale.simulate.fleet import SimulationSettings
from scripts.autoscale.simulate.simulated_cluster import SimulatedCluster
from scripts.autoscale.simulate.simulated_vm import NAMESPACE, NEVER, SimulatedVm

NO_MIGRATION: Final = "none"
Loads = tuple[list[float], list[float]]
"""Demand in vCPUs and used memory in bytes, per VM."""

REPEAT_WINDOW: Final = Seconds(3600.0)
"""A VM that migrates twice within this time counts as moved again."""

LOAD_STEP: Final = 0.5
"""``least-loaded`` treats loads within this many vCPUs as equal."""


def least_loaded_first(victim: Victim, excess: Resources | None) -> tuple[float, ...]:
    """Sort key: load, then the number of such VMs that would have to leave, then the bytes to copy."""
    return victim.load // LOAD_STEP, _vms_to_move(victim.size, excess), float(victim.to_copy)


def _vms_to_move(size: Resources, excess: Resources | None) -> float:
    """Number of VMs of ``size`` that cover ``excess``; infinite if they free nothing that is short."""
    if excess is None:
        return 1.0
    pairs = ((excess.cpu.value, size.cpu.value), (excess.mem.value, size.mem.value))
    # -(-a // b) rounds up.
    return max((float(-(-needed // freed)) if freed else inf for needed, freed in pairs if needed), default=1.0)


def oldest_first(victim: Victim, _: Resources | None) -> tuple[float, ...]:
    """Sort key of the original autoscaler: the VM that has been on the node longest."""
    return (float(victim.index),)


LEAST_COST: Final = "least-cost"

ORDERS: Final[dict[str, Callable[[Random], Selection]]] = {
    LEAST_COST: lambda _: least_cost,
    "least-loaded": lambda _: ordered_by(least_loaded_first),
    "random": lambda random: ordered_by(lambda _, __: (random.random(),)),
    "oldest-first": lambda _: ordered_by(oldest_first),
    NO_MIGRATION: lambda _: least_cost,
}
"""Victim orders by name: the scheduler's own, and others to compare. ``none`` disables migration."""


@dataclass(frozen=True, slots=True, order=True)
class InFlightMove:
    """A migration in flight. ``number`` is unique and breaks ties of ``ends``."""

    ends: float
    number: int
    vm: SimulatedVm = field(compare=False)
    facts: MigrationFacts = field(compare=False)
    will_succeed: bool = field(compare=False)


class SimulatedMigrations:
    """Plans and executes the migrations of one run.

    ``repeated`` counts migrations of VMs that started another one within ``REPEAT_WINDOW``. ``copied`` is in bytes.
    ``disturbed`` is the load of migrating VMs over time, in vCPU-seconds.
    """

    def __init__(self, cluster: SimulatedCluster, settings: SimulationSettings, order: str) -> None:
        self.started = self.failed = self.repeated = 0
        self.copied = self.disturbed = 0.0
        self._last_started: dict[ObjectName, Instant] = {}
        self._policy = MigrationPolicy(enabled=order != NO_MIGRATION)
        self._cluster, self._settings = cluster, settings
        # A separate random stream per order, so that orders do not affect each other.
        self._random = Random(f"{settings.seed} {order}")
        self._select = ORDERS[order](self._random)
        self._loads: Loads = ([], [])
        self._planner = Planner(self._select_victims)
        self._ranking = RankingConfig()
        # A heap, ordered by end.
        self._in_flight: list[InFlightMove] = []

    @property
    def active(self) -> int:
        """Number of migrations in flight."""
        return len(self._in_flight)

    def complete_due(self, now: Instant) -> list[SimulatedVm]:
        """End the migrations that are due; return their VMs."""
        ended = []
        while self._in_flight and self._in_flight[0].ends <= now:
            move = heappop(self._in_flight)
            if move.will_succeed:
                self._succeed(move, now)
            else:
                self._fail(move, now)
            ended.append(move.vm)
        return ended

    def reconcile(self, now: Instant, loads: Loads) -> tuple[list[SimulatedVm], MovePlan]:
        """Plan with these loads and start the moves; return the VMs that started to move, and the plan."""
        # For `_select_victims`: the planner passes no loads.
        ledger, self._loads = self._cluster.ledger, loads
        steps = self._planner.plan(ledger, self._policy, self._ranking, PlanningTime(now, now), self._random.randint)
        plan = run_steps(steps)
        ledger.apply(HeadroomSeen(self._planner.lacks_headroom(now)), now)
        for name in plan.forget:
            ledger.apply(MigrationGone(name), now)
        for move in plan.moves:
            self._start(move, now)
        return [self._cluster.vms[move.vm] for move in plan.moves], plan

    def _load_of(self, vm: SimulatedVm) -> tuple[float, int]:
        """Load in vCPUs and used memory in bytes."""
        cores, mem = self._loads
        return cores[vm.index], min(int(mem[vm.index]), vm.use.mem.value)

    def _select_victims(
        self, victims: Sequence[Victim], need: RoomGoal | None, has_target: HasTarget
    ) -> Iterable[Victim]:
        return self._select([self._with_load(victim) for victim in victims], need, has_target)

    def _with_load(self, victim: Victim) -> Victim:
        # As if every agent had just reported its load.
        load, mem = self._load_of(self._cluster.vms[victim.vm])
        return replace(victim, load=load, to_copy=mem)

    def _start(self, move: Move, now: Instant) -> None:
        vm, ledger, number = self._cluster.vms[move.vm], self._cluster.ledger, self.started
        name, target = _object_name(f"{vm.name.name}-{number}"), _object_name(f"{vm.name.name}-on-{number}")
        decision = ledger.apply(MoveRequested(move, name), now)
        # Nothing happens between plan and reservation, so a refusal is a bug.
        if decision.verdict is not FITS:
            raise RuntimeError(f"the ledger refuses the planner's move {move}: {decision}")
        ledger.apply(MigrationCreateEnded(name, WriteOutcome.DONE), now)
        facts = MigrationFacts(
            name,
            name.name,
            1,
            vm.name,
            MigrationPhase.PENDING,
            move.target,
            _object_name(vm.pod),
            target,
            is_ours=True,
            created_at=now,
        )
        ledger.apply(MigrationSeen(facts), now)
        # The VM keeps its size until the migration ends.
        vm.is_migrating, vm.moved_for_room = True, vm.is_denied
        self._cluster.publish(vm, now)
        # Both nodes reserve room until the migration ends.
        if not self._cluster.bind(self._cluster.pod(vm, target.name, name), move.target, now):
            raise RuntimeError(f"node {move.target} has no room for {target}, despite its reservation")
        ledger.apply(MigrationSeen(replace(facts, version=2, phase=MigrationPhase.RUNNING)), now)
        self._track(vm, facts, now)

    def _track(self, vm: SimulatedVm, facts: MigrationFacts, now: Instant) -> None:
        cores, mem = self._load_of(vm)
        needed = self._settings.setup + mem / self._settings.bandwidth.value
        # Only migrations that exceed the policy's timeout fail.
        duration = min(needed, self._policy.timeout)
        heappush(
            self._in_flight, InFlightMove(now + duration, self.started, vm, facts, will_succeed=needed <= duration)
        )
        self.started += 1
        self.repeated += now - self._last_started.get(vm.name, NEVER) < REPEAT_WINDOW
        self.copied += mem
        self.disturbed += min(cores, vm.use.cpu.as_cores) * duration
        self._last_started[vm.name] = now

    def _succeed(self, move: InFlightMove, now: Instant) -> None:
        vm, source, cluster = move.vm, move.vm.pod, self._cluster
        # `publish` marks only the target node as touched.
        cluster.touched.add(vm.node)
        vm.is_migrating, vm.node = False, move.facts.target or ""
        # The target pod has a new agent, without history.
        vm.start_agent(f"{vm.name.name}-on-{move.number}", now)
        cluster.publish(vm, now)
        cluster.adopt_pod(vm, now)
        self._record_end(move, MigrationPhase.SUCCEEDED, now)
        cluster.ledger.apply(PodGone(source), now)

    def _fail(self, move: InFlightMove, now: Instant) -> None:
        move.vm.is_migrating = move.vm.moved_for_room = False
        self._cluster.publish(move.vm, now)
        self._record_end(move, MigrationPhase.FAILED, now)
        self._cluster.ledger.apply(PodGone(f"{move.vm.name.name}-on-{move.number}"), now)
        self.failed += 1

    def _record_end(self, move: InFlightMove, phase: MigrationPhase, now: Instant) -> None:
        facts = replace(move.facts, version=3, phase=phase, ended_at=now)
        self._cluster.ledger.apply(MigrationSeen(facts), now)


def _object_name(name: str) -> ObjectName:
    return ObjectName(NAMESPACE, name)
