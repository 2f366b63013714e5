"""Statistics of a run: curves recorded after each step, and the figures computed from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np

from scripts.autoscale.replay.recording import Floats
from scripts.autoscale.simulate.fleet import SimulatedFleet
from scripts.autoscale.simulate.migration_model import SimulatedMigrations
from scripts.autoscale.simulate.simulated_cluster import SimulatedCluster
from scripts.autoscale.simulate.simulated_vm import SimulatedVm
from scripts.autoscale.simulate.sleep_savings import SleepSavings
from scripts.autoscale.simulate.vm_table import UNIT

CURVES: Final = (
    "over_watermark",
    "utilisation",
    "busiest",
    "denied",
    "denied_cores",
    "migrations",
    "stuck",
    "demand",
    "short",
    "sharing",
)
"""Nodes over their watermark; mean and maximum utilization of nodes (0 to 1); denied VMs and vCPUs; migrations started
so far; nodes under pressure that no VM can leave; demand in vCPUs, and the part that guests had no CPU for; members
on a node that another member of their group already uses."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one victim order over ``hours``, the time after the warm-up.

    Requests: ``asked`` counts growths, requests for more than the agent holds, without repeats of denied ones.
    ``denied`` counts growths that were not granted in full at first. ``in_place_percent`` is the share that was granted
    in full without a migration; 100 if there are no growths.
    Denials: ``denied_vm_seconds`` and ``denied_vcpu_hours`` add up all denials; ``longest_denial_seconds`` is the
    longest uninterrupted one of a VM. ``worst_vm`` was denied the longest in total, and ``unfairness_percent`` is its
    share of ``denied_vm_seconds``; empty and 0 without denials.
    Shrinks: ``shrinks`` counts those on nodes that are short of room. ``regrown_percent`` is the share of them after
    which the VM requested more within a minute.
    Migrations: ``moved_again`` counts migrations of VMs that had moved within the last hour. ``disturbed_vcpu_hours``
    is the load of migrating VMs. ``stuck_node_hours``: nodes were under pressure, and no VM could leave.
    Utilization (0 to 1) is reserved / reservable, of CPU or memory, whichever is higher. ``short_percent`` is the share
    of the CPU demand, capped at the VMs' bounds, that guests had no CPU for.
    Groups: ``replicas`` counts all groups' replicas. ``sharing_percent`` is the share of members' time on a node that
    another member of their group already uses.
    Sleep: ``asleep_percent`` is the share of all VMs' time asleep; ``sleep_vcpu_hours`` and ``sleep_gib_hours`` are the
    sizes of sleeping VMs over time, ``sleep_percent`` their share of all VMs' sizes.
    ``violations`` must be 0. ``cpu_seconds`` is the CPU time of the simulation.
    """

    order: str
    hours: float
    asked: int
    granted: int
    in_place_percent: float
    denied: int
    denied_vm_seconds: float
    unfairness_percent: float
    worst_vm: str
    longest_denial_seconds: float
    denied_vcpu_hours: float
    shrinks: int
    regrown_percent: float
    migrations: int
    migrations_per_hour: float
    moved_again: int
    failed: int
    copied_gib: float
    disturbed_vcpu_hours: float
    stuck_node_hours: float
    over_watermark_node_hours: float
    over_watermark_percent: float
    mean_utilisation: float
    peak_utilisation: float
    short_percent: float
    violations: int
    cpu_seconds: float
    groups: int = 0
    replicas: int = 0
    sharing_percent: float = 0.0
    asleep_percent: float = 0.0
    sleep_vcpu_hours: float = 0.0
    sleep_gib_hours: float = 0.0
    sleep_percent: float = 0.0


class Curves:
    """Curves with one value per step."""

    def __init__(self, steps: int) -> None:
        # Allocated once, because the number of steps is known.
        self._values = {name: np.zeros(steps) for name in CURVES}
        self.steps_done = 0

    def add(self, **values: float) -> None:
        """Add the values of the next step."""
        for name, value in values.items():
            self._values[name][self.steps_done] = value
        self.steps_done += 1

    def since(self, begin: int) -> Mapping[str, Floats]:
        """Curves from step ``begin`` to the last one."""
        return {name: values[begin : self.steps_done] for name, values in self._values.items()}


GIB: Final = 1024**3


class Counts(NamedTuple):
    """Cumulative counters: growths, shrinks for neighbours, migrations, GiB copied, vCPU-hours of migrating VMs."""

    growths: int
    granted: int
    in_place: int
    denied: int
    shrinks: int
    regrown: int
    started: int
    repeated: int
    failed: int
    copied: float
    disturbed: float

    def since(self, before: Counts) -> Counts:
        """Increase of each counter since ``before``."""
        return Counts._make(current - previous for current, previous in zip(self, before, strict=True))


class RunStatistics:
    """Collects the statistics of one run, without its first ``warm_up`` steps."""

    def __init__(
        self,
        fleet: SimulatedFleet,
        cluster: SimulatedCluster,
        moves: SimulatedMigrations,
        vms: list[SimulatedVm],
        warm_up: int,
    ) -> None:
        self._settings, self._cluster, self._moves, self._vms = fleet.settings, cluster, moves, vms
        self._warm_up = warm_up
        self.curves = Curves(warm_up + fleet.settings.steps)
        self._node_index = {name: index for index, name in enumerate(cluster.nodes)}
        self._utilisation = np.zeros(len(cluster.nodes))
        self._over_watermark = np.zeros(len(cluster.nodes), dtype=np.bool_)
        self._vcpus = np.array([vm.use.cpu.as_cores for vm in vms])
        self._max_vcpus = fleet.table.vcpus.astype(np.float64)
        self._node_of_vm = np.array([self._node_index[vm.node] for vm in vms])
        self._denied: dict[int, float] = {}
        self._denied_from: dict[int, int] = {}
        self._longest_denial = 0
        # Number of counted steps in which each VM was denied.
        self._denied_steps = np.zeros(len(vms), dtype=np.int64)
        self._before = self._counts()
        self._sleep = SleepSavings(fleet, warm_up)

    def after_step(self, touched: Iterable[str], moved: list[SimulatedVm], cores: Floats, stuck: int) -> None:
        """Record a step. ``moved``: VMs that left or arrived; ``cores``: demand per VM; ``stuck``: stuck nodes."""
        self._record_nodes(touched)
        self.record_vms(moved)
        self._sleep.after_step(self.curves.steps_done, cores, self._vcpus)
        if self.curves.steps_done >= self._warm_up and self._denied:
            self._denied_steps[list(self._denied)] += 1
        # No scheduler can serve demand above a VM's bounds.
        demand = np.minimum(cores, self._max_vcpus)
        self.curves.add(
            over_watermark=float(self._over_watermark.sum()),
            utilisation=float(self._utilisation.mean()),
            busiest=float(self._utilisation.max()),
            denied=float(len(self._denied)),
            denied_cores=sum(self._denied.values()),
            migrations=float(self._moves.started),
            stuck=float(stuck),
            demand=float(demand.sum()),
            short=float(np.maximum(0.0, demand - self._vcpus).sum()),
            sharing=float(self._settings.groups.colocated(self._node_of_vm)),
        )
        if self.curves.steps_done == self._warm_up:
            # Figures are differences to the counters at the end of the warm-up.
            self._before = self._counts()

    def _record_nodes(self, touched: Iterable[str]) -> None:
        rooms = self._cluster.ledger.rooms
        for name in touched:
            room, index = rooms[name], self._node_index[name]
            # The scarcer resource decides.
            reserved, total = room.reserved, room.total
            self._utilisation[index] = max(reserved.cpu.ratio(total.cpu), reserved.mem.ratio(total.mem))
            self._over_watermark[index] = not room.reserved.within(room.watermark)

    def record_vms(self, changed: list[SimulatedVm]) -> None:
        """Record the VMs whose size, permit or node may have changed."""
        for vm in changed:
            self._vcpus[vm.index] = vm.use.cpu.as_cores
            self._node_of_vm[vm.index] = self._node_index[vm.node]
            denial = vm.state.scheduler.denial
            if denial is None:
                self._denied.pop(vm.index, None)
                # Measure the denial before it is forgotten.
                if vm.index in self._denied_from:
                    self._longest_denial = self._longest_so_far()
                    del self._denied_from[vm.index]
            else:
                self._denied_from.setdefault(vm.index, self.curves.steps_done)
                self._denied[vm.index] = denial.wanted.cpu.minus_or_zero(denial.granted.cpu).as_cores

    def _longest_so_far(self) -> int:
        """Longest uninterrupted denial of a VM, in counted steps."""
        first = min(self._denied_from.values(), default=self.curves.steps_done)
        # Denials from the warm-up count from its end on.
        return max(self._longest_denial, self.curves.steps_done - max(first, self._warm_up))

    def _counts(self) -> Counts:
        cluster, moves = self._cluster, self._moves
        return Counts(
            cluster.growths,
            cluster.granted,
            cluster.in_place,
            cluster.denied,
            sum(vm.shrinks.count for vm in self._vms),
            sum(vm.shrinks.regrown for vm in self._vms),
            moves.started,
            moves.repeated,
            moves.failed,
            moves.copied / GIB,
            moves.disturbed / 3600,
        )

    def figures(self, order: str, violations: int, cpu_seconds: float) -> Figures:
        """Figures of the steps counted so far."""
        step, curve = self._settings.step, self.curves.since(self._warm_up)
        steps, groups = len(curve["denied"]), self._settings.groups
        hours, nodes = steps * step / 3600, self._settings.nodes
        current = self._counts()
        # During the warm-up, nothing counts.
        count = current.since(self._before if steps else current)
        over = float(curve["over_watermark"].sum()) * step / 3600
        worst, denied_steps = int(self._denied_steps.argmax()), int(self._denied_steps.sum())
        demand = float(curve["demand"].sum())
        return Figures(
            order=order,
            hours=round(hours, 3),
            asked=count.growths,
            granted=count.granted,
            in_place_percent=_percent(count.in_place, count.growths, 100.0),
            denied=count.denied,
            denied_vm_seconds=float(curve["denied"].sum()) * step,
            unfairness_percent=_percent(int(self._denied_steps[worst]), denied_steps),
            worst_vm=self._vms[worst].name.name if denied_steps else "",
            longest_denial_seconds=self._longest_so_far() * step,
            denied_vcpu_hours=float(curve["denied_cores"].sum()) * step / 3600,
            shrinks=count.shrinks,
            regrown_percent=_percent(count.regrown, count.shrinks),
            migrations=count.started,
            migrations_per_hour=count.started / hours if steps else 0.0,
            moved_again=count.repeated,
            failed=count.failed,
            copied_gib=count.copied,
            disturbed_vcpu_hours=count.disturbed,
            stuck_node_hours=float(curve["stuck"].sum()) * step / 3600,
            over_watermark_node_hours=over,
            over_watermark_percent=100 * over / (hours * nodes) if steps else 0.0,
            mean_utilisation=float(curve["utilisation"].mean()) if steps else 0.0,
            peak_utilisation=float(curve["utilisation"].max()) if steps else 0.0,
            groups=groups.count,
            replicas=groups.count * groups.replicas,
            sharing_percent=100 * float(curve["sharing"].mean()) / max(1, groups.members) if steps else 0.0,
            short_percent=100 * float(curve["short"].sum()) / demand if demand else 0.0,
            asleep_percent=100 * self._sleep.vm_hours / (hours * len(self._vms)) if steps else 0.0,
            sleep_vcpu_hours=self._sleep.vcpu_hours,
            # Sizes are whole compute units.
            sleep_gib_hours=self._sleep.vcpu_hours * UNIT.mem.as_gib / UNIT.cpu.as_cores,
            sleep_percent=_percent(self._sleep.vcpu_hours, self._sleep.total_vcpu_hours),
            violations=violations,
            cpu_seconds=round(cpu_seconds, 1),
        )


def _percent(part: float, total: float, default: float = 0.0) -> float:
    return 100 * part / total if total else default
