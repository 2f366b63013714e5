"""Observations of a demonstration, and its report (pure). Times are seconds since the demonstration began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from protocol.units import Resources, Seconds
from scripts.autoscale.demonstration.sleep.sleep_points import SleepPoint, sleep_problems


class GroupPoint(msgspec.Struct, frozen=True):
    """The group from a time on: the number of serving replicas, and the vCPUs of each VM."""

    seconds: float
    serving: int
    cpus: dict[str, float]


class GroupReport(msgspec.Struct, frozen=True):
    """The outcome of a group's scenario; ``load`` contains times and transactions per second."""

    points: list[GroupPoint]
    load: list[tuple[float, float]]
    load_began: float | None
    load_ended: float | None
    transactions: int
    failed: int
    most_serving: int
    most_cpu: float
    problems: list[str]


@dataclass(slots=True)
class GroupObservations:
    """Observations of a group's scenario. ``started_at`` is the size of the replica ``first`` before the load.

    ``message_under_load`` and ``last_message`` contain how long the demonstration waited, and the group's message.
    ``last_message`` is empty if the group shrank back.
    """

    first: str
    is_simulated: bool = False
    points: list[GroupPoint] = field(default_factory=list)
    load: list[tuple[float, float]] = field(default_factory=list)
    load_began: Seconds | None = None
    load_ended: Seconds | None = None
    started_at: float = 0.0
    transactions: int = 0
    failed: int = 0
    problem: str = ""
    message_under_load: str = ""
    last_message: str = ""

    def record(self, at: Seconds, serving: int, cpus: Mapping[str, float]) -> bool:
        """Records the group's state; returns True if it has changed."""
        # Informers report every write.
        if self.points and (self.points[-1].serving, self.points[-1].cpus) == (serving, cpus):
            return False
        self.points.append(GroupPoint(round(at, 2), serving, dict(cpus)))
        return True


def group_report(observed: GroupObservations) -> GroupReport:
    """The report on the observations."""
    began = observed.load_began
    during = [point for point in observed.points if began is not None and point.seconds >= began]
    most_cpu = max((point.cpus.get(observed.first, 0.0) for point in during), default=0.0)
    most_serving = max((point.serving for point in during), default=0)
    return GroupReport(
        points=list(observed.points),
        load=list(observed.load),
        load_began=_rounded(began),
        load_ended=_rounded(observed.load_ended),
        transactions=observed.transactions,
        failed=observed.failed,
        most_serving=most_serving,
        most_cpu=most_cpu,
        problems=list(_group_problems(observed, most_cpu, most_serving)),
    )


def _not_back(observed: GroupObservations, last: GroupPoint, most_cpu: float) -> str:
    """Reason why the group counts as not shrunk back after the load."""
    if last.serving != 1:
        return f"{last.serving} replicas serve instead of one"
    # The primary and one replica.
    if len(last.cpus) > 2:
        return f"{', '.join(sorted(last.cpus))} run instead of the primary and one replica"
    if last.cpus.get(observed.first, most_cpu) > observed.started_at:
        return f"the replica did not shrink back to {observed.started_at:g} vCPU"
    return "the group did not shrink back"


def _group_problems(observed: GroupObservations, most_cpu: float, most_serving: int) -> Sequence[str]:
    if observed.load_ended is None or not observed.points:
        return [observed.problem or "the group's load did not run"]
    last = observed.points[-1]
    problems = [observed.problem] if observed.problem else []
    if most_cpu <= observed.started_at:
        problems.append(f"the replica did not grow beyond the {observed.started_at:g} vCPU that it had before the load")
    if most_serving < 2:
        problems.append(f"no replica was added under load {observed.message_under_load}")
    if observed.last_message:
        problems.append(f"{_not_back(observed, last, most_cpu)} {observed.last_message}")
    if observed.failed:
        problems.append(f"{observed.failed} transactions of the read load failed")
    # Simulated replicas run no transactions.
    if not observed.is_simulated and not observed.transactions:
        problems.append("the read load ran no transactions")
    return problems


class SizePoint(msgspec.Struct, frozen=True):
    """The guest's size from a time on, from the VM's status: vCPUs, and memory in bytes."""

    seconds: float
    cpu: float
    memory: int


class LoadPoint(msgspec.Struct, frozen=True):
    """A load generator's transactions per second at a time."""

    seconds: float
    tps: float


class MigrationPoint(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """A live migration: nodes, times in milliseconds, and the effect on the VM's clients (None if it has none)."""

    vm: str
    source: str
    target: str
    succeeded: bool
    reason: str
    total_ms: int | None
    downtime_ms: int | None
    longest_stall_ms: float | None
    failed_transactions: int


class RoomPoint(msgspec.Struct, frozen=True):
    """A database on a full node: seconds from the load until growth was denied, and from the removal of ``neighbour``
    until it grew; None if that did not happen.
    """

    neighbour: str
    node: str
    denied_seconds: float | None
    reason: str
    room_seconds: float | None


class Report(msgspec.Struct, frozen=True):
    """The outcome. ``database`` is VM or pod. ``grew_to`` and ``shrank_to`` are vCPUs; None if not observed.

    ``reaction_seconds`` is the time from the start of the load until the guest had more CPU. ``load_began`` and
    ``load_ended`` are None if the load did not begin or end.
    """

    success: bool
    problems: list[str]
    guests: str
    network: str
    started_at: float | None
    grew_to: float | None
    shrank_to: float | None
    grew_to_memory: int | None
    shrank_to_memory: int | None
    transactions: int
    failed: int
    reaction_seconds: float | None
    seconds_total: float
    seconds_until_first_growth: float | None
    sizes: list[SizePoint]
    load: list[LoadPoint]
    note: str = ""
    load_began: float | None = None
    load_ended: float | None = None
    migrations: list[MigrationPoint] = []
    group: GroupReport | None = None
    database: str = "VM"
    room: RoomPoint | None = None
    sleeps: list[SleepPoint] | None = None


@dataclass(slots=True)
class Observations:
    """Observations of the demonstration.

    ``shrunk_at`` is the end of the wait for the database to shrink; later sizes belong to another scenario.
    ``client_failures`` are failures of the neighbours' clients.
    """

    guests: str = ""
    network: str = ""
    sizes: list[tuple[Seconds, Resources]] = field(default_factory=list)
    tps: list[LoadPoint] = field(default_factory=list)
    load_began: Seconds | None = None
    load_ended: Seconds | None = None
    shrunk_at: Seconds | None = None
    transactions: int = 0
    failed: int = 0
    load_problem: str = ""
    is_simulated: bool = False
    migrations: list[MigrationPoint] | None = None
    client_failures: list[str] = field(default_factory=list)
    group: GroupObservations | None = None
    database: str = "VM"
    room: RoomPoint | None = None
    sleeps: list[SleepPoint] | None = None

    def record(self, at: Seconds, size: Resources) -> bool:
        """Records the guest's size; returns True if it has changed."""
        # The status changes more often than the size.
        if self.sizes and self.sizes[-1][1] == size:
            return False
        self.sizes.append((at, size))
        return True

    def size_at(self, at: Seconds) -> Resources | None:
        """The size at a time; None if unknown."""
        return next((size for since, size in reversed(self.sizes) if since <= at), None)

    def largest_between(self, at: Seconds, until: Seconds) -> Resources | None:
        """The largest size from ``at`` to ``until``, by CPU first."""
        sizes = [size for since, size in self.sizes if at <= since <= until]
        first = self.size_at(at)
        sizes = sizes if first is None else [first, *sizes]
        return max(sizes, key=lambda size: (size.cpu, size.mem), default=None)

    def first_growth(self, at: Seconds, start: Resources) -> Seconds | None:
        """The time of the first size after ``at`` with more CPU than ``start``."""
        return next((since for since, size in self.sizes if since >= at and size.cpu > start.cpu), None)


def report(observed: Observations, total: Seconds) -> Report:
    """The report on the observations, after ``total`` seconds."""
    began = observed.load_began
    start = observed.size_at(began) if began is not None else None
    # Later scenarios resize the VM again, which must not count.
    until = total if observed.shrunk_at is None else observed.shrunk_at
    top = observed.largest_between(began, until) if began is not None else None
    last = observed.size_at(until) if observed.load_ended is not None else None
    grown = observed.first_growth(began, start) if began is not None and start is not None else None
    group = group_report(observed.group) if observed.group is not None else None
    problems = [*_problems(observed, start, top, last), *(group.problems if group is not None else ())]
    return Report(
        success=not problems,
        problems=problems,
        guests=observed.guests,
        network=observed.network,
        started_at=start.cpu.as_cores if start else None,
        grew_to=top.cpu.as_cores if top else None,
        shrank_to=last.cpu.as_cores if last else None,
        grew_to_memory=top.mem.value if top else None,
        shrank_to_memory=last.mem.value if last else None,
        transactions=observed.transactions,
        failed=observed.failed,
        reaction_seconds=round(grown - began, 2) if grown is not None and began is not None else None,
        seconds_total=round(total, 1),
        seconds_until_first_growth=_first_growth(observed),
        sizes=[SizePoint(round(at, 2), size.cpu.as_cores, size.mem.value) for at, size in observed.sizes],
        load=list(observed.tps),
        note="simulated guests replay a load: no transactions were run" if observed.is_simulated else "",
        load_began=_rounded(began),
        load_ended=_rounded(observed.load_ended),
        migrations=observed.migrations or [],
        group=group,
        database=observed.database,
        room=observed.room,
        sleeps=observed.sleeps,
    )


def _rounded(at: Seconds | None) -> float | None:
    return None if at is None else round(at, 2)


def _first_growth(observed: Observations) -> float | None:
    """The time of the first growth, for any reason."""
    grown = observed.first_growth(Seconds(0.0), observed.sizes[0][1]) if observed.sizes else None
    return None if grown is None else round(grown, 1)


def _problems(
    observed: Observations, start: Resources | None, top: Resources | None, last: Resources | None
) -> Sequence[str]:
    if observed.sleeps is not None:
        return sleep_problems(observed.sleeps, observed.load_problem)
    if start is None or top is None or last is None:
        # Nothing else can be judged.
        return [observed.load_problem or "the run ended before the load"]
    problems = []
    if observed.load_problem:
        problems.append(observed.load_problem)
    if top.cpu <= start.cpu:
        problems.append(f"the {observed.database} did not grow beyond the {start.cpu} vCPU that it had before the load")
    if not (last.cpu < top.cpu and last.mem <= top.mem):
        problems.append(f"the {observed.database} did not shrink: it reached {top} and has {last} at the end")
    if observed.failed:
        problems.append(f"{observed.failed} transactions failed")
    # Simulated guests run no transactions, so none is expected of them.
    if not observed.is_simulated and not observed.transactions:
        problems.append("no transactions were run")
    return [
        *problems,
        *_migration_problems(observed.migrations),
        *_room_problems(observed.room),
        *observed.client_failures,
    ]


def _room_problems(room: RoomPoint | None) -> Sequence[str]:
    if room is None:
        return []
    if room.denied_seconds is None:
        return [f"no growth of the pod was denied, although {room.neighbour} had filled {room.node}"]
    return [] if room.room_seconds is not None else [f"the pod did not grow after {room.neighbour} left {room.node}"]


def _migration_problems(migrations: Sequence[MigrationPoint] | None) -> Sequence[str]:
    if migrations is None:  # without this scenario
        return []
    if not any(migration.succeeded for migration in migrations):
        return [
            "no VM moved to another node",
            *(f"{migration.vm}: {migration.reason}" for migration in migrations if migration.reason),
        ]
    broken = [migration for migration in migrations if migration.failed_transactions]
    return [
        f"{migration.failed_transactions} transactions of {migration.vm} failed while it moved" for migration in broken
    ]
