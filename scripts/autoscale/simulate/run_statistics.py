"""The statistics of a run: values recorded after each step, and the figures computed from them."""

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
"""Nodes over their watermark; mean and maximum utilisation of nodes; VMs and vCPUs denied; migrations started so far;
nodes under pressure that no VM can leave; vCPUs wanted, and those of them that no guest had; members of groups that
share a node with another one of their group."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one victim order over the hours counted.

    ``asked`` are growths: requests for more than the agent held, without repeats of denied ones. ``denied`` are those
    that got less than they asked for at first.
    ``in_place_percent`` is the share of them that was granted in full without a move, 100 if nothing was asked.
    ``denied_vm_seconds`` is how long VMs lacked what they had asked for, ``denied_vcpu_hours`` how much it was, and
    ``longest_denial_seconds`` the longest that one VM did without a break. ``unfairness_percent`` is the share of those
    VM-seconds that fell to ``worst_vm``, the VM that was denied for longest in all; 0 and empty if none was.
    ``gifts`` are shrinks of VMs on a node that is short, ``regrown_percent`` the share of them after which the VM asked
    for more within a minute.
    ``moved_again`` are migrations of VMs that had moved within the hour before. ``disturbed_vcpu_hours`` is the load of
    VMs while they migrate. ``stuck_node_hours`` is the time that nodes were under pressure while no VM could leave.
    Utilisation is reserved over reservable, of CPU or memory, whichever is more. ``short_percent`` is the share of the
    CPU demand (capped at the VMs' bounds) that guests had no CPU for. ``groups`` have ``replicas`` in all;
    ``sharing_percent`` is the share of their members' time beside another one of their group. ``asleep_percent`` is the
    share of all VMs' time in which they would be asleep, ``sleep_vcpu_hours`` and ``sleep_gib_hours`` what they had
    then, and ``sleep_percent`` its share of what all VMs had. ``violations`` must be 0.
    ``cpu_seconds`` is the time that the simulation took.
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
    gifts: int
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
    """One value of each curve for every step played."""

    def __init__(self, steps: int) -> None:
        # Allocated at once, as the number of steps is known; `played` is how many of them have values.
        self._values = {name: np.zeros(steps) for name in CURVES}
        self.played = 0

    def add(self, **values: float) -> None:
        """The values of the next step."""
        for name, value in values.items():
            self._values[name][self.played] = value
        self.played += 1

    def since(self, begin: int) -> Mapping[str, Floats]:
        """The curves from step ``begin`` to the last one played."""
        return {name: values[begin : self.played] for name, values in self._values.items()}


GIB: Final = 1024**3


class Counts(NamedTuple):
    """Monotonic counters: requests for more, gifts, migrations, GiB copied, vCPU-hours of load while migrating."""

    asked: int
    granted: int
    in_place: int
    denied: int
    gifts: int
    regrown: int
    started: int
    repeated: int
    failed: int
    copied: float
    disturbed: float

    def since(self, before: Counts) -> Counts:
        """The increase of each counter."""
        return Counts._make(now - then for now, then in zip(self, before, strict=True))


class RunStatistics:
    """The statistics of one run. The first ``warm_up`` steps are not counted."""

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
        self._number = {name: number for number, name in enumerate(cluster.nodes)}
        self._used = np.zeros(len(cluster.nodes))
        self._over = np.zeros(len(cluster.nodes), dtype=np.bool_)
        self._has = np.array([vm.use.cpu.as_cores for vm in vms])
        self._most = fleet.table.vcpus.astype(np.float64)
        self._on = np.array([self._number[vm.node] for vm in vms])
        self._denied: dict[int, float] = {}
        self._denied_from: dict[int, int] = {}
        self._longest_denial = 0
        # The counted steps in which each VM was denied.
        self._denied_steps = np.zeros(len(vms), dtype=np.int64)
        self._before = self._counts()
        self._sleep = SleepSavings(fleet, warm_up)

    def after_step(self, touched: Iterable[str], moved: list[SimulatedVm], cores: Floats, stuck: int) -> None:
        """Records a step. ``moved`` holds the VMs that left or arrived in it; see ``note_vms`` for the others."""
        self._note_nodes(touched)
        self.note_vms(moved)
        self._sleep.after_step(self.curves.played, cores, self._has)
        if self.curves.played >= self._warm_up and self._denied:
            self._denied_steps[list(self._denied)] += 1
        # Demand above the VM's bounds can be served by no scheduler, so it does not count as short.
        demand = np.minimum(cores, self._most)
        self.curves.add(
            over_watermark=float(self._over.sum()),
            utilisation=float(self._used.mean()),
            busiest=float(self._used.max()),
            denied=float(len(self._denied)),
            denied_cores=sum(self._denied.values()),
            migrations=float(self._moves.started),
            stuck=float(stuck),
            demand=float(demand.sum()),
            short=float(np.maximum(0.0, demand - self._has).sum()),
            sharing=float(self._settings.groups.sharing(self._on)),
        )
        if self.curves.played == self._warm_up:
            # Counters run from the start; the figures are differences from the end of the warm-up.
            self._before = self._counts()

    def _note_nodes(self, touched: Iterable[str]) -> None:
        rooms = self._cluster.ledger.rooms
        for name in touched:
            room, number = rooms[name], self._number[name]
            # The scarcer of the two resources decides how full a node is.
            self._used[number] = max(room.reserved.cpu.ratio(room.total.cpu), room.reserved.mem.ratio(room.total.mem))
            self._over[number] = not room.reserved.within(room.watermark)

    def note_vms(self, changed: list[SimulatedVm]) -> None:
        """Takes the VMs whose size, permit or node may differ from when they were noted last."""
        for vm in changed:
            self._has[vm.index] = vm.use.cpu.as_cores
            self._on[vm.index] = self._number[vm.node]
            denial = vm.state.scheduler.denial
            if denial is None:
                self._denied.pop(vm.index, None)
                # The denial counts for the longest before it is forgotten.
                if vm.index in self._denied_from:
                    self._longest_denial = self._longest()
                    del self._denied_from[vm.index]
            else:
                self._denied_from.setdefault(vm.index, self.curves.played)
                self._denied[vm.index] = denial.wanted.cpu.minus_or_zero(denial.granted.cpu).as_cores

    def _longest(self) -> int:
        """The longest denial of a VM without a break, in counted steps."""
        first = min(self._denied_from.values(), default=self.curves.played)
        # A denial from before the warm-up's end counts from there on.
        return max(self._longest_denial, self.curves.played - max(first, self._warm_up))

    def _counts(self) -> Counts:
        cluster, moves = self._cluster, self._moves
        return Counts(
            cluster.asked,
            cluster.granted,
            cluster.in_place,
            cluster.denied,
            sum(vm.gifts.count for vm in self._vms),
            sum(vm.gifts.regrown for vm in self._vms),
            moves.started,
            moves.repeated,
            moves.failed,
            moves.copied / GIB,
            moves.disturbed / 3600,
        )

    def figures(self, order: str, violations: int, cpu_seconds: float) -> Figures:
        """The figures of the steps counted so far."""
        step, curve = self._settings.step, self.curves.since(self._warm_up)
        steps, groups = len(curve["denied"]), self._settings.groups
        hours, nodes = steps * step / 3600, self._settings.nodes
        now = self._counts()
        # Before the warm-up is over, nothing counts.
        count = now.since(self._before if steps else now)
        over = float(curve["over_watermark"].sum()) * step / 3600
        worst, denied_steps = int(self._denied_steps.argmax()), int(self._denied_steps.sum())
        demand = float(curve["demand"].sum())
        return Figures(
            order=order,
            hours=round(hours, 3),
            asked=count.asked,
            granted=count.granted,
            in_place_percent=_percent(count.in_place, count.asked, 100.0),
            denied=count.denied,
            denied_vm_seconds=float(curve["denied"].sum()) * step,
            unfairness_percent=_percent(int(self._denied_steps[worst]), denied_steps),
            worst_vm=self._vms[worst].name.name if denied_steps else "",
            longest_denial_seconds=self._longest() * step,
            denied_vcpu_hours=float(curve["denied_cores"].sum()) * step / 3600,
            gifts=count.gifts,
            regrown_percent=_percent(count.regrown, count.gifts),
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
            sleep_percent=100 * self._sleep.vcpu_hours / self._sleep.had if self._sleep.had else 0.0,
            violations=violations,
            cpu_seconds=round(cpu_seconds, 1),
        )


def _percent(part: int, whole: int, of_nothing: float = 0.0) -> float:
    return 100 * part / whole if whole else of_nothing
