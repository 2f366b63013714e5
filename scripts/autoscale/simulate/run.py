"""Playing a fleet step by step (the heart of ``autoscale simulate``).

Rules that hold here:

- One step: demand, the agents that have a reason to look, in an order of chance, the planner and what arrives, then the
  checks and the figures. Nothing sleeps and nothing reads a clock.
- The planner looks every second within the step, as the real one does: the moves of a node follow one another, and how
  fast they do decides how long it is too full. Whoever arrives is looked at in the next step.
- The first hour fills the agents' windows and lets VMs find their nodes; it is played and checked, but not counted.
- The same fleet and the same order give the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Final

from protocol.units import Instant, Resources, Seconds
from scripts.autoscale.replay.recording import Floats
from scripts.autoscale.simulate.attention import Attention, echoes
from scripts.autoscale.simulate.cast import UNIT
from scripts.autoscale.simulate.checks import Checks
from scripts.autoscale.simulate.cluster import Cluster
from scripts.autoscale.simulate.figures import Figures
from scripts.autoscale.simulate.fleet import Fleet
from scripts.autoscale.simulate.moves import Loads, Moves
from scripts.autoscale.simulate.record import Record
from scripts.autoscale.simulate.tracks import Ints
from scripts.autoscale.simulate.vm import SimulatedVm, agent_policy

WARM_UP: Final = Seconds(3600.0)
LOOK: Final = Seconds(1.0)
SIZES: Final = 48
"""VMs begin with what they need at one of so many instants of the time played: a fleet grows one VM at a time."""


class Run:
    """One fleet under one order of victims."""

    def __init__(self, fleet: Fleet, order: str) -> None:
        settings = fleet.settings
        self.order = order
        self.warm_up = round(WARM_UP / settings.step)
        self.steps = self.warm_up + settings.steps
        self._looks = max(1, round(settings.step / LOOK))
        self._fleet = fleet
        self._random = Random(f"{settings.seed} chance")
        self._cluster = Cluster(fleet)
        policy = agent_policy(settings.step)
        self._vms = [SimulatedVm(index, fleet.cast.bounds(index), UNIT, policy) for index in range(settings.vms)]
        self._place()
        self._attention = Attention(settings.vms, echoes(policy.smoothing, settings.step))
        self._moves = Moves(self._cluster, settings, order)
        self._checks = Checks(self._cluster, fleet, self._vms)
        self._record = Record(fleet, self._cluster, self._moves, self._vms, self.warm_up)
        self._denied: dict[int, Resources] = {}

    def play(self) -> Iterator[int]:
        """Plays, and yields the number of steps played so far after each."""
        for step in range(self.steps):
            self._step(step)
            yield step + 1

    @property
    def problems(self) -> list[str]:
        """What was found broken; it must stay empty."""
        return self._checks.problems

    def figures(self, cpu_seconds: float) -> Figures:
        """What the steps played so far came to."""
        return self._record.figures(self.order, len(self.problems), cpu_seconds)

    @property
    def curves(self) -> Mapping[str, Floats]:
        """Every curve over the steps counted so far."""
        return self._record.curves.since(self.warm_up)

    def _place(self) -> None:
        settings, cast = self._fleet.settings, self._fleet.cast
        instants = [self._random.randrange(max(1, settings.steps)) for _ in range(SIZES)]
        sizes = [cast.units_at(instant) for instant in instants]
        for vm in self._vms:
            vm.use = UNIT * int(sizes[self._random.randrange(SIZES)][vm.index])
            self._cluster.place(vm, self._random, Instant(0.0))

    def _step(self, step: int) -> None:
        now = Instant(step * self._fleet.settings.step)
        cores, mem, is_new = self._fleet.cast.at(step - self.warm_up)
        demand, used = cores.tolist(), mem.tolist()
        arrived = self._arrive(step - 1, now)
        self._try_again()
        acted = self._look(step, self._attention.begin(step, is_new), demand, used, now)
        moved, stuck = self._move(step, (demand, used))
        touched, changed = self._cluster.take_touched(), arrived + acted + moved
        self._checks.after_step(step, touched, changed)
        self._record.after_step(touched, changed, cores, stuck)

    def _move(self, step: int, loads: Loads) -> tuple[list[SimulatedVm], int]:
        """The planner's looks within the step: the VMs that set out or arrived, and how many nodes are stuck."""
        looks, every = self._looks, self._fleet.settings.step / self._looks
        moved, stuck = [], 0
        for look in range(looks):
            now = Instant(step * self._fleet.settings.step + look * every)
            moved += self._arrive(step, now)
            leaving, plan = self._moves.look(now, loads)
            for vm in leaving:
                self._attention.keep(vm.index)
            moved += leaving
            stuck = len(plan.stuck)
        return moved, stuck

    def _arrive(self, step: int, now: Instant) -> list[SimulatedVm]:
        arrived = self._moves.arrive(now)
        for vm in arrived:
            self._attention.stir(step, vm.index)
        return arrived

    def _look(self, step: int, who: Ints, demand: list[float], used: list[float], now: Instant) -> list[SimulatedVm]:
        """The agents ``who`` look at their guests and act where there is a reason to: those that acted."""
        attention, cluster, vms = self._attention, self._cluster, self._vms
        order = who.tolist()
        self._random.shuffle(order)
        acted = []
        for index in order:
            vm = vms[index]
            size = vm.use
            if vm.observe(demand[index], used[index], now) or vm.is_waiting:
                vm.act(cluster, now, self._random.random())
                acted.append(vm)
                if vm.use is not size:
                    attention.stir(step, index)
                elif vm.is_waiting:
                    attention.keep(index)
                self._note_denial(vm)
            attention.may_shrink[index] = vm.may_shrink or vm.is_denied
        return acted

    def _note_denial(self, vm: SimulatedVm) -> None:
        if vm.is_denied:
            self._denied[vm.index] = self._cluster.ledger.rooms[vm.node].free
        else:
            self._denied.pop(vm.index, None)

    def _try_again(self) -> None:
        """Who was denied asks again where room has come free since. Elsewhere he would get the same answer."""
        rooms = self._cluster.ledger.rooms
        for index, free in self._denied.items():
            if not rooms[self._vms[index].node].free.within(free):
                self._attention.keep(index)
