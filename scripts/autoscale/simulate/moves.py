"""Migrations: the real planner decides, and each takes its time (S4.8, S4.9, S4.12).

Rules that hold here:

- Every agent reports its load every 15 s. A report that changes nothing else is not played: what the planner compares
  is what the last one would have said.
- Planner, booking, binding and the ledger's view of every phase are the real ones. Only the controller is a model: a
  migration takes its set-up and the time to copy the memory in use, and both nodes are reserved meanwhile.
- A migration that would take longer than the policy's time-out fails there; nothing else fails.
- The VM's size stays as it is from the order to the end. Then an agent begins in the target pod.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random
from typing import Final

from protocol.messages import ObjectName
from protocol.ranking.config import RankingConfig
from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.ledger import MigrationFacts, MigrationPhase, Move
from scheduler_plugin.migration import MigrationPolicy, Moment, Order, Plan, Planner, Victim, least_loaded_first
from scheduler_plugin.placement import FITS
from scripts.autoscale.simulate.cluster import Cluster
from scripts.autoscale.simulate.fleet import Settings
from scripts.autoscale.simulate.vm import NAMESPACE, SimulatedVm

NOBODY: Final = "none"
Loads = tuple[list[float], list[float]]
"""The demand in vCPUs and the memory in use in bytes of every VM."""

AGAIN: Final = Seconds(3600.0)
LONG_AGO: Final = Instant(float("-inf"))


def oldest_first(victim: Victim, _: Resources | None) -> tuple[float, ...]:
    """The original's rule: who has been on the node for longest."""
    return (float(victim.arrived),)


def by_chance(random: Random) -> Order:
    """Anybody."""

    def order(_: Victim, __: Resources | None) -> tuple[float, ...]:
        return (random.random(),)

    return order


ORDERS: Final[dict[str, Callable[[Random], Order]]] = {
    "least-loaded": lambda _: least_loaded_first,
    "random": by_chance,
    "oldest-first": lambda _: oldest_first,
    NOBODY: lambda _: least_loaded_first,
}
"""Every order of victims by name; with ``none`` nobody is moved."""


@dataclass(frozen=True, slots=True, order=True)
class Trip:
    """A VM on its way until ``ends``; the number keeps trips apart that end together."""

    ends: float
    number: int
    vm: SimulatedVm = field(compare=False)
    facts: MigrationFacts = field(compare=False)
    in_time: bool = field(compare=False)


class Moves:
    """All migrations of one run.

    ``again`` counts those of VMs that had set out within the hour before, ``copied`` is bytes, ``disturbed`` the load
    (vCPUs) of VMs while they were on their way, times how long (s).
    """

    def __init__(self, cluster: Cluster, settings: Settings, order: str) -> None:
        self.started = self.failed = self.again = 0
        self.copied = self.disturbed = 0.0
        self._last: dict[ObjectName, Instant] = {}
        self._policy = MigrationPolicy(enabled=order != NOBODY)
        self._cluster, self._settings = cluster, settings
        self._random = Random(f"{settings.seed} {order}")
        self._order = ORDERS[order](self._random)
        self._loads: Loads = ([], [])
        self._planner = Planner(self._by_last_report)
        self._ranking = RankingConfig()
        self._trips: list[Trip] = []

    @property
    def active(self) -> int:
        """How many VMs are on their way."""
        return len(self._trips)

    def arrive(self, now: Instant) -> list[SimulatedVm]:
        """Ends what has arrived by ``now``: the VMs."""
        arrived = []
        while self._trips and self._trips[0].ends <= now:
            trip = heappop(self._trips)
            if trip.in_time:
                self._succeed(trip, now)
            else:
                self._fail(trip, now)
            arrived.append(trip.vm)
        return arrived

    def look(self, now: Instant, loads: Loads) -> tuple[list[SimulatedVm], Plan]:
        """Does what the planner says: the VMs that set out, and the plan. ``loads`` are of every VM."""
        ledger, self._loads = self._cluster.ledger, loads
        plan = self._planner.look(ledger, self._policy, self._ranking, Moment(now, now), self._random.randint)
        for name in plan.forget:
            ledger.lose_migration(name)
        for move in plan.moves:
            self._set_out(move, now)
        return [self._cluster.vms[move.vm] for move in plan.moves], plan

    def _load_of(self, vm: SimulatedVm) -> tuple[float, int]:
        """The VM's load in vCPUs, and its memory in use in bytes."""
        cores, mem = self._loads
        return cores[vm.index], min(int(mem[vm.index]), vm.use.mem.value)

    def _by_last_report(self, victim: Victim, excess: Resources | None) -> tuple[float, ...]:
        load, mem = self._load_of(self._cluster.vms[victim.vm])
        return self._order(replace(victim, load=load, to_copy=mem), excess)

    def _set_out(self, move: Move, now: Instant) -> None:
        vm, ledger, number = self._cluster.vms[move.vm], self._cluster.ledger, self.started
        name, target = _named(f"{vm.name.name}-{number}"), _named(f"{vm.name.name}-on-{number}")
        booked = ledger.book_move(move, name, now)
        if booked.verdict is not FITS:
            raise RuntimeError(f"the planner's own move {move} is refused: {booked}")
        ledger.migration_created(name)
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
        ledger.see_migration(facts, now)
        vm.is_migrating = True
        self._cluster.changed(vm, now)
        if not self._cluster.bind(self._cluster.pod(vm, target.name, name), move.target):
            raise RuntimeError(f"the booked node {move.target} has no room for {target}")
        ledger.see_migration(replace(facts, version=2, phase=MigrationPhase.RUNNING), now)
        self._on_its_way(vm, facts, now)

    def _on_its_way(self, vm: SimulatedVm, facts: MigrationFacts, now: Instant) -> None:
        cores, mem = self._load_of(vm)
        wanted = self._settings.setup + mem / self._settings.bandwidth.value
        takes = min(wanted, self._policy.timeout)
        heappush(self._trips, Trip(now + takes, self.started, vm, facts, in_time=wanted <= takes))
        self.started += 1
        self.again += now - self._last.get(vm.name, LONG_AGO) < AGAIN
        self.copied += mem
        self.disturbed += min(cores, vm.use.cpu.as_cores) * takes
        self._last[vm.name] = now

    def _succeed(self, trip: Trip, now: Instant) -> None:
        vm, source, cluster = trip.vm, trip.vm.pod, self._cluster
        cluster.touched.add(vm.node)
        vm.is_migrating, vm.node = False, trip.facts.target or ""
        vm.start_agent(f"{vm.name.name}-on-{trip.number}", now)
        cluster.changed(vm, now)
        cluster.adopt(vm)
        self._over(trip, MigrationPhase.SUCCEEDED, now)
        cluster.ledger.lose_pod(source)

    def _fail(self, trip: Trip, now: Instant) -> None:
        trip.vm.is_migrating = False
        self._cluster.changed(trip.vm, now)
        self._over(trip, MigrationPhase.FAILED, now)
        self._cluster.ledger.lose_pod(f"{trip.vm.name.name}-on-{trip.number}")
        self.failed += 1

    def _over(self, trip: Trip, phase: MigrationPhase, now: Instant) -> None:
        self._cluster.ledger.see_migration(replace(trip.facts, version=3, phase=phase, ended_at=now), now)


def _named(name: str) -> ObjectName:
    return ObjectName(NAMESPACE, name)
