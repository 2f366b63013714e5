"""Runs a fleet step by step in virtual time: nothing here sleeps or reads a clock."""

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
from scripts.autoscale.simulate.simulated_vm import SimulatedVm, agent_policy
from scripts.autoscale.simulate.vm_table import UNIT


def recheck_delays(smoothing: Smoothing, step: Seconds) -> list[int]:
    """Numbers of steps after a change at which its samples leave a window: each window, alone and after the longest.

    Windows shorter than a step need no recheck.
    """
    # With constant demand and size, an agent's target changes only when a sample leaves a window of its policy.
    spans = {
        int(span // step) + 1
        for policy in (smoothing.cpu, smoothing.memory)
        for _, spec in policy.stages
        for span in (getattr(spec, name) for name in spec.__struct_fields__)
        if isinstance(span, Duration) and span >= step
    }
    longest = max(spans, default=1)
    # Delays of consecutive stages add up: a recheck may be a step or two late, but never early.
    return sorted(spans | {longest + span for span in spans if span != longest})


class WakeSchedule:
    """Selects the agents that run in each step. The caller updates ``may_shrink``, one flag per VM."""

    def __init__(self, count: int, delays: Iterable[int]) -> None:
        self._delays = list(delays)
        self._rows = max(self._delays, default=0) + 1
        self._changed = np.zeros((self._rows, count), dtype=np.bool_)
        # Every agent runs in the first step.
        self._next: set[int] = set(range(count))
        self.may_shrink = np.ones(count, dtype=np.bool_)

    def due(self, step: int, is_new: Flags) -> Ints:
        """Return the indexes of the agents to run in this step. ``is_new``: True if the VM's demand has changed."""
        # A ring buffer with one row per step, as long as the longest delay.
        changed = self._changed[step % self._rows]
        changed[:] = is_new
        recheck = np.zeros_like(is_new)
        for delay in self._delays:
            recheck |= self._changed[(step - delay) % self._rows]
        # A sample that leaves a window can only lower the target: no recheck for VMs that cannot shrink.
        due = is_new | (recheck & self.may_shrink)
        due[list(self._next)] = True
        self._next.clear()
        return np.flatnonzero(due)

    def record_change(self, step: int, vm: int) -> None:
        """Record a new size or agent of ``vm``: run it in the next step, and recheck it later."""
        self._changed[step % self._rows, vm] = True
        self._next.add(vm)

    def wake_next(self, *vms: int) -> None:
        """Run the agents of these VMs in the next step."""
        self._next.update(vms)


WARM_UP: Final = Seconds(3600.0)
PLANNER_PERIOD: Final = Seconds(1.0)
RETRY_ROUNDS: Final = 3
"""Planning rounds between two requests of agents on a node that denies VMs: three seconds, as for real agents."""

START_SAMPLES: Final = 48
"""Number of random steps to draw the VMs' initial needs from, so that not all start at the same load."""


class Run:
    """Simulates one fleet with one victim order."""

    def __init__(self, fleet: SimulatedFleet, order: str) -> None:
        settings = fleet.settings
        self.order = order
        # The first hour fills the agents' windows and spreads the VMs. Checked, but not counted.
        self.warm_up = round(WARM_UP / settings.step)
        self.steps = self.warm_up + settings.steps
        # The planner runs every second, as the real one does: its pace decides how long a node stays over watermark.
        self._planner_rounds = max(1, round(settings.step / PLANNER_PERIOD))
        self._fleet = fleet
        # All random choices are seeded: the same fleet and order give the same result.
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
        self._on_short_node: set[int] = set()
        # VMs whose agents acted in the last step after its statistics.
        self._acted_late: list[SimulatedVm] = []

    def execute(self) -> Iterator[int]:
        """Run all steps; yield the number of steps done after each."""
        for step in range(self.steps):
            self._step(step)
            yield step + 1

    @property
    def problems(self) -> list[str]:
        """Violations so far; must stay empty."""
        return self._checks.problems

    def figures(self, cpu_seconds: float) -> Figures:
        """Figures of the steps counted so far."""
        return self._statistics.figures(self.order, len(self.problems), cpu_seconds)

    @property
    def curves(self) -> Mapping[str, Floats]:
        """Curves of the steps counted so far."""
        return self._statistics.curves.since(self.warm_up)

    def _place(self) -> None:
        settings, table = self._fleet.settings, self._fleet.table
        steps = [self._random.randrange(max(1, settings.steps)) for _ in range(START_SAMPLES)]
        sizes = [table.units_at(step) for step in steps]
        for vm in self._vms:
            vm.use = UNIT * int(sizes[self._random.randrange(START_SAMPLES)][vm.index])
            self._cluster.place(vm, Instant(0.0))

    def _step(self, step: int) -> None:
        now = Instant(step * self._fleet.settings.step)
        cores, mem, is_new = self._fleet.table.at(step - self.warm_up)
        demand, used = cores.tolist(), mem.tolist()
        completed = self._complete_moves(step - 1, now)
        self._wake_denied()
        self._wake_short_nodes(now)
        # Agents before the planner: their permits cause the pressure.
        acted = self._run_agents(step, self._wakes.due(step, is_new).tolist(), demand, used, now)
        # Before neighbours shrink: a denial of three seconds counts as a whole step.
        self._statistics.record_vms(completed + acted + self._acted_late)
        self._acted_late = []
        moved, stuck = self._run_planner(step, (demand, used))
        touched, changed = self._cluster.take_touched(), completed + acted + moved + self._acted_late
        self._checks.after_step(step, touched, changed)
        self._statistics.after_step(touched, moved, cores, stuck)

    def _run_planner(self, step: int, loads: Loads) -> tuple[list[SimulatedVm], int]:
        """Run all planning rounds of a step; return the VMs that left or arrived, and the number of stuck nodes."""
        rounds = self._planner_rounds
        interval = self._fleet.settings.step / rounds
        moved, stuck = [], 0
        for number in range(rounds):
            now = Instant(step * self._fleet.settings.step + number * interval)
            moved += self._complete_moves(step, now)
            if number and number % RETRY_ROUNDS == 0:
                self._acted_late += self._run_denying_nodes(step, loads, now)
            # Without migration, one round is enough.
            if number and self.order == NO_MIGRATION:
                continue
            leaving, plan = self._moves.reconcile(now, loads)
            for vm in leaving:
                # The agent learns in the next step that it must keep its size.
                self._wakes.wake_next(vm.index)
            moved += leaving
            stuck = len(plan.stuck)
        return moved, stuck

    def _complete_moves(self, step: int, now: Instant) -> list[SimulatedVm]:
        completed = self._moves.complete_due(now)
        for vm in completed:
            self._wakes.record_change(step, vm.index)
        return completed

    def _run_denying_nodes(self, step: int, loads: Loads, now: Instant) -> list[SimulatedVm]:
        """Run the agents of denied VMs within a step, and of neighbours that offer room."""
        ledger = self._cluster.ledger
        denying = [node for name in ledger.strained if (node := ledger.nodes[name]).unmet.any]
        claims = [claim for node in denying for claim in node.claims.values() if claim.offered.any or claim.unmet.any]
        due = sorted(self._indexes(claims))
        self._on_short_node.update(due)
        return self._run_agents(step, due, *loads, now) if due else []

    def _run_agents(
        self, step: int, due: list[int], demand: list[float], used: list[float], now: Instant
    ) -> list[SimulatedVm]:
        """Run the agents in ``due``: observe the guest, act if necessary. Return the VMs whose agents acted."""
        wakes, cluster, vms = self._wakes, self._cluster, self._vms
        # Otherwise the first VMs would always get the last room of a node.
        self._random.shuffle(due)
        acted = []
        for index in due:
            vm = vms[index]
            size = vm.use
            if vm.observe(demand[index], used[index], now) or vm.is_waiting or index in self._on_short_node:
                # Drawn in any case, so that an agent that repeats itself does not change the jitter of others.
                jitter = self._random.random()
                if not vm.would_repeat(now) or cluster.must_shrink(vm):
                    vm.act(cluster, now, jitter)
                    acted.append(vm)
                    # By identity, which is cheap: an unchanged size is the same object.
                    if vm.use is not size:
                        wakes.record_change(step, index)
                    elif vm.is_waiting:
                        wakes.wake_next(index)
                    self._denied.pop(vm.index, None)
                    if vm.is_denied:
                        # Only more room than at the denial can change the decision.
                        self._denied[vm.index] = self._cluster.ledger.rooms[vm.node].free
            wakes.may_shrink[index] = vm.may_shrink or vm.is_denied
        return acted

    def _wake_short_nodes(self, now: Instant) -> None:
        """Wake the agents on nodes short of room: each sends a request once per step, and learns how far to shrink."""
        ledger = self._cluster.ledger
        short = [node for node in ledger.nodes.values() if lacking(node, now).any]
        self._on_short_node = set(self._indexes(claim for node in short for claim in node.claims.values()))
        self._wakes.wake_next(*self._on_short_node)

    def _indexes(self, claims: Iterable[Claim]) -> Iterator[int]:
        """Indexes of the VMs that the claims belong to."""
        names = (claim.vm.name for claim in claims if claim.vm is not None)
        return (self._cluster.vms[name].index for name in names if name is not None)

    def _wake_denied(self) -> None:
        """Wake denied agents whose node has gained room; others would be denied again."""
        rooms = self._cluster.ledger.rooms
        for index, free in self._denied.items():
            if not rooms[self._vms[index].node].free.within(free):
                self._wakes.wake_next(index)
