"""Plays a fleet step by step, in virtual time: no code here sleeps or reads a clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import Final

import numpy as np

from agent.core.policy import Smoothing
from protocol.smoothing.spec import Duration
from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import Claim
from scheduler_plugin.ledger.accounts.sharing import lacking
from scripts.autoscale.replay.recording import Floats
from scripts.autoscale.simulate.fleet import SimulatedFleet
from scripts.autoscale.simulate.invariant_checks import InvariantChecks
from scripts.autoscale.simulate.migration_model import NO_MIGRATION, Loads, SimulatedMigrations
from scripts.autoscale.simulate.recording_grid import Flags, Ints
from scripts.autoscale.simulate.run_statistics import Figures, RunStatistics
from scripts.autoscale.simulate.simulated_cluster import SimulatedCluster
from scripts.autoscale.simulate.simulated_vm import NEVER, SimulatedVm, agent_policy
from scripts.autoscale.simulate.vm_table import UNIT


def recheck_delays(smoothing: Smoothing, step: Seconds) -> list[int]:
    """The steps after a change at which it leaves a window: each window's length, alone and after the longest one.

    A window shorter than a step has passed by the next step and needs no recheck of its own.
    """
    # While demand and size stay the same, an agent's answer changes only when a sample leaves a window of its policy.
    spans = {
        int(span // step) + 1
        for policy in (smoothing.cpu, smoothing.memory)
        for _, spec in policy.stages
        for span in (getattr(spec, name) for name in spec.__struct_fields__)
        if isinstance(span, Duration) and span >= step
    }
    longest = max(spans, default=1)
    # The delays of consecutive stages add up, so a recheck may be a step or two late, but never early.
    return sorted(spans | {longest + span for span in spans if span != longest})


class WakeSchedule:
    """Agents that run in each step. The caller keeps ``may_shrink`` up to date."""

    def __init__(self, count: int, delays: Iterable[int]) -> None:
        self._delays = list(delays)
        self._rounds = max(self._delays, default=0) + 1
        self._changed = np.zeros((self._rounds, count), dtype=np.bool_)
        # Every agent runs in the first step.
        self._next: set[int] = set(range(count))
        self.may_shrink = np.ones(count, dtype=np.bool_)

    def due(self, step: int, is_new: Flags) -> Ints:
        """The agents that run in this step. ``is_new``: their guests' demand has just changed."""
        # A ring of rows, as old as the longest delay; this step overwrites the oldest.
        changed = self._changed[step % self._rounds]
        changed[:] = is_new
        recheck = np.zeros_like(is_new)
        for delay in self._delays:
            recheck |= self._changed[(step - delay) % self._rounds]
        # A sample that leaves a window can only lower the target, so a VM that cannot shrink skips the recheck.
        due = is_new | (recheck & self.may_shrink)
        due[list(self._next)] = True
        self._next.clear()
        return np.flatnonzero(due)

    def note_change(self, step: int, vm: int) -> None:
        """The VM has another size or another agent since this step: it runs in the next, and is rechecked later."""
        self._changed[step % self._rounds, vm] = True
        self._next.add(vm)

    def wake_next(self, *vms: int) -> None:
        """The agents of these VMs run in the next step in any case."""
        self._next.update(vms)


WARM_UP: Final = Seconds(3600.0)
PLANNER_PERIOD: Final = Seconds(1.0)
ASKS_AGAIN: Final = 3
"""The planner's rounds between two requests of agents on a node that denies VMs: some three seconds, as in fact."""

SIZES: Final = 48
"""A VM starts with its need at one of this many random instants, so that not all VMs start at the same load."""


class Run:
    """One fleet under one order of victims."""

    def __init__(self, fleet: SimulatedFleet, order: str) -> None:
        settings = fleet.settings
        self.order = order
        # The first hour fills the agents' windows and spreads the VMs; it is checked but not counted.
        self.warm_up = round(WARM_UP / settings.step)
        self.steps = self.warm_up + settings.steps
        # The planner runs every second of a step, as the real one does: its pace decides how long a node stays too
        # full.
        self._planner_rounds = max(1, round(settings.step / PLANNER_PERIOD))
        self._fleet = fleet
        # Every random choice comes from a seeded stream: the same fleet and the same order give the same result.
        self._random = Random(f"{settings.seed} chance")
        self._cluster = SimulatedCluster(fleet)
        policy = agent_policy(settings.step)
        self._vms = [SimulatedVm(index, fleet.table.bounds(index), UNIT, policy) for index in range(settings.vms)]
        self._place()
        self._wakes = WakeSchedule(settings.vms, recheck_delays(policy.smoothing, settings.step))
        self._moves = SimulatedMigrations(self._cluster, settings, order)
        self._checks = InvariantChecks(self._cluster, fleet, self._vms)
        self._statistics = RunStatistics(fleet, self._cluster, self._moves, self._vms, self.warm_up)
        self._denied: dict[int, Resources] = {}
        self._short: set[int] = set()
        # The VMs whose agents acted within the last step, after its statistics.
        self._late: list[SimulatedVm] = []

    def play(self) -> Iterator[int]:
        """Plays all steps; yields the number of steps played after each."""
        for step in range(self.steps):
            self._step(step)
            yield step + 1

    @property
    def cluster(self) -> SimulatedCluster:
        """The ledger and the objects as they are now; read only."""
        return self._cluster

    @property
    def problems(self) -> list[str]:
        """The violations found; must stay empty."""
        return self._checks.problems

    def figures(self, cpu_seconds: float) -> Figures:
        """The figures of the steps played so far."""
        return self._statistics.figures(self.order, len(self.problems), cpu_seconds)

    @property
    def curves(self) -> Mapping[str, Floats]:
        """The curves over the steps counted so far."""
        return self._statistics.curves.since(self.warm_up)

    def _place(self) -> None:
        settings, table = self._fleet.settings, self._fleet.table
        instants = [self._random.randrange(max(1, settings.steps)) for _ in range(SIZES)]
        sizes = [table.units_at(instant) for instant in instants]
        for vm in self._vms:
            vm.use = UNIT * int(sizes[self._random.randrange(SIZES)][vm.index])
            self._cluster.place(vm, Instant(0.0))

    def _step(self, step: int) -> None:
        now = Instant(step * self._fleet.settings.step)
        cores, mem, is_new = self._fleet.table.at(step - self.warm_up)
        demand, used = cores.tolist(), mem.tolist()
        for index in np.flatnonzero(is_new).tolist():
            self._vms[index].rests_until = NEVER
        arrived = self._arrive(step - 1, now)
        self._wake_denied()
        self._wake_asked(now)
        # Agents first, then the planner, as a node's pressure comes from what agents were granted.
        acted = self._run_agents(step, self._wakes.due(step, is_new).tolist(), demand, used, now)
        # Before neighbours give anything back: a denial of three seconds counts as one of a whole step.
        self._statistics.note_vms(arrived + acted + self._late)
        self._late = []
        moved, stuck = self._run_planner(step, (demand, used))
        touched, changed = self._cluster.take_touched(), arrived + acted + moved + self._late
        self._checks.after_step(step, touched, changed)
        self._statistics.after_step(touched, moved, cores, stuck)

    def _run_planner(self, step: int, loads: Loads) -> tuple[list[SimulatedVm], int]:
        """Runs the planner through the step: the VMs that left or arrived, and the number of stuck nodes."""
        rounds = self._planner_rounds
        every = self._fleet.settings.step / rounds
        moved, stuck = [], 0
        for number in range(rounds):
            now = Instant(step * self._fleet.settings.step + number * every)
            moved += self._arrive(step, now)
            if number and number % ASKS_AGAIN == 0:
                self._late += self._run_short(step, loads, now)
            # A planner that may move nothing runs once.
            if number and self.order == NO_MIGRATION:
                continue
            leaving, plan = self._moves.reconcile(now, loads)
            for vm in leaving:
                # A VM keeps its size while it moves, which its agent learns in the next step.
                self._wakes.wake_next(vm.index)
            moved += leaving
            stuck = len(plan.stuck)
        return moved, stuck

    def _arrive(self, step: int, now: Instant) -> list[SimulatedVm]:
        arrived = self._moves.arrive(now)
        for vm in arrived:
            self._wakes.note_change(step, vm.index)
        return arrived

    def _run_short(self, step: int, loads: Loads, now: Instant) -> list[SimulatedVm]:
        """Runs agents within a step: the denied ones, and neighbours that can give them room."""
        ledger = self._cluster.ledger
        denying = [node for name in ledger.strained if (node := ledger.nodes[name]).unmet.any]
        claims = [claim for node in denying for claim in node.claims.values() if claim.offered.any or claim.unmet.any]
        due = sorted(self._numbers(claims))
        self._short.update(due)
        return self._run_agents(step, due, *loads, now) if due else []

    def _run_agents(
        self, step: int, due: list[int], demand: list[float], used: list[float], now: Instant
    ) -> list[SimulatedVm]:
        """Runs the agents that are ``due``: each observes its guest and acts if it has to. Returns those that acted."""
        wakes, cluster, vms = self._wakes, self._cluster, self._vms
        # In the same order, the first VMs would always get the last room of a node.
        self._random.shuffle(due)
        acted = []
        for index in due:
            vm, is_short = vms[index], index in self._short
            # Most VMs of a node that is short: not even reading the guest would change anything.
            if is_short and now < vm.rests_until:
                self._random.random()
                vm.rested_at = now
                continue
            size = vm.use
            if vm.observe(demand[index], used[index], now) or vm.is_waiting or is_short:
                # Drawn even if it is not used, as above, so that no agent's silence changes the luck of others.
                jitter = self._random.random()
                if not vm.would_repeat(now) or cluster.is_asked(vm):
                    vm.act(cluster, now, jitter)
                    acted.append(vm)
                    # Identity: an unchanged size is the same object, and comparing it is cheap.
                    if vm.use is not size:
                        wakes.note_change(step, index)
                    elif vm.is_waiting:
                        wakes.wake_next(index)
                    self._note_denial(vm)
            wakes.may_shrink[index] = vm.may_shrink or vm.is_denied
        return acted

    def _note_denial(self, vm: SimulatedVm) -> None:
        if vm.is_denied:
            # The room at the time of the denial: only more than that can change the answer.
            self._denied[vm.index] = self._cluster.ledger.rooms[vm.node].free
        else:
            self._denied.pop(vm.index, None)

    def _wake_asked(self, now: Instant) -> None:
        """Wakes the agents on nodes that are short: each asks at least once in a step, and hears what it is asked."""
        ledger = self._cluster.ledger
        short = [node for node in ledger.nodes.values() if lacking(node, now).any]
        self._short = set(self._numbers(claim for node in short for claim in node.claims.values()))
        self._wakes.wake_next(*self._short)

    def _numbers(self, claims: Iterable[Claim]) -> Iterator[int]:
        """The numbers of the VMs that have the claims."""
        names = (claim.vm.name for claim in claims if claim.vm is not None)
        return (self._cluster.vms[name].index for name in names if name is not None)

    def _wake_denied(self) -> None:
        """Wakes denied agents whose node has gained room; the others would get the same answer."""
        rooms = self._cluster.ledger.rooms
        for index, free in self._denied.items():
            if not rooms[self._vms[index].node].free.within(free):
                self._wakes.wake_next(index)
