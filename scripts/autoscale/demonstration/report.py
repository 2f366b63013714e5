"""Outcome of a demonstration, and its verdict (pure). Times are seconds since the demonstration began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from protocol.units import Resources, Seconds
from scripts.autoscale.demonstration.groups.group_report import GroupObservations, GroupReport, group_report
from scripts.autoscale.demonstration.moves import SUCCEEDED, ObservedMove


class SizePoint(msgspec.Struct, frozen=True):
    """The guest's size from a moment on, as the VM's status says: vCPUs, memory in bytes."""

    seconds: float
    cpu: float
    memory: int


class LoadPoint(msgspec.Struct, frozen=True):
    """A load generator's observations in one second."""

    seconds: float
    tps: float


class MigrationPoint(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """One live migration: nodes, times in milliseconds, and what the VM's clients noticed (None if it has none)."""

    vm: str
    source: str
    target: str
    succeeded: bool
    reason: str
    total_ms: int | None
    downtime_ms: int | None
    longest_stall_ms: float | None
    failed_transactions: int


def migration_point(move: ObservedMove, longest_stall: Seconds | None, failed: int) -> MigrationPoint:
    """A migration as the report has it."""
    return MigrationPoint(
        vm=str(move.vm),
        source=move.source,
        target=move.target,
        succeeded=move.phase == SUCCEEDED,
        reason=move.reason,
        total_ms=move.total_ms,
        downtime_ms=move.downtime_ms,
        longest_stall_ms=None if longest_stall is None else round(longest_stall * 1000, 1),
        failed_transactions=failed,
    )


class Report(msgspec.Struct, frozen=True):
    """The outcome. ``grew_to`` and ``shrank_to`` are vCPUs; None if nothing was seen.

    ``reaction_seconds`` is the time from the start of the load until the guest had more CPU. ``load_began`` and
    ``load_ended`` are None if the load did not come to that.
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


@dataclass(slots=True)
class Observations:
    """Observations of the demonstration. ``shrunk_at`` is when the VM was back, or waited for no more;
    what it does later belongs to another act. ``client_failures`` are those of the neighbours' clients.
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

    def saw(self, at: Seconds, size: Resources) -> bool:
        """The guest has ``size``; returns whether that is new."""
        # The status is written more often than the size changes.
        if self.sizes and self.sizes[-1][1] == size:
            return False
        self.sizes.append((at, size))
        return True

    def size_at(self, at: Seconds) -> Resources | None:
        """The size that it had then."""
        return next((size for since, size in reversed(self.sizes) if since <= at), None)

    def largest_between(self, at: Seconds, until: Seconds) -> Resources | None:
        """The largest size that it had from ``at`` to ``until``, by CPU first."""
        sizes = [size for since, size in self.sizes if at <= since <= until]
        first = self.size_at(at)
        sizes = sizes if first is None else [first, *sizes]
        return max(sizes, key=lambda size: (size.cpu, size.mem), default=None)

    def first_growth(self, at: Seconds, start: Resources) -> Seconds | None:
        """The time when it first had more CPU than ``start`` after ``at``."""
        return next((since for since, size in self.sizes if since >= at and size.cpu > start.cpu), None)


def report(seen: Observations, total: Seconds) -> Report:
    """The outcome of what was seen, after ``total`` seconds."""
    began = seen.load_began
    start = seen.size_at(began) if began is not None else None
    # Later acts resize the VM again; that must not count as this act's outcome.
    until = total if seen.shrunk_at is None else seen.shrunk_at
    top = seen.largest_between(began, until) if began is not None else None
    last = seen.size_at(until) if seen.load_ended is not None else None
    grown = seen.first_growth(began, start) if began is not None and start is not None else None
    group = group_report(seen.group) if seen.group is not None else None
    problems = [*_problems(seen, start, top, last), *(group.problems if group is not None else ())]
    return Report(
        success=not problems,
        problems=problems,
        guests=seen.guests,
        network=seen.network,
        started_at=start.cpu.as_cores if start else None,
        grew_to=top.cpu.as_cores if top else None,
        shrank_to=last.cpu.as_cores if last else None,
        grew_to_memory=top.mem.value if top else None,
        shrank_to_memory=last.mem.value if last else None,
        transactions=seen.transactions,
        failed=seen.failed,
        reaction_seconds=round(grown - began, 2) if grown is not None and began is not None else None,
        seconds_total=round(total, 1),
        seconds_until_first_growth=_first_growth(seen),
        sizes=[SizePoint(round(at, 2), size.cpu.as_cores, size.mem.value) for at, size in seen.sizes],
        load=list(seen.tps),
        note="simulated guests play a load: no transactions were run" if seen.is_simulated else "",
        load_began=_rounded(began),
        load_ended=_rounded(seen.load_ended),
        migrations=seen.migrations or [],
        group=group,
    )


def _rounded(at: Seconds | None) -> float | None:
    return None if at is None else round(at, 2)


def _first_growth(seen: Observations) -> float | None:
    """The time when it first had more CPU than at its start, for whatever reason."""
    grown = seen.first_growth(Seconds(0.0), seen.sizes[0][1]) if seen.sizes else None
    return None if grown is None else round(grown, 1)


def _problems(
    seen: Observations, start: Resources | None, top: Resources | None, last: Resources | None
) -> Sequence[str]:
    if start is None or top is None or last is None:
        # Without these sizes nothing else can be judged.
        return [seen.load_problem or "it ended before the load had run"]
    problems = []
    if seen.load_problem:
        problems.append(seen.load_problem)
    if top.cpu <= start.cpu:
        problems.append(f"the VM did not grow: it had {start.cpu} vCPU before the load and never more")
    if not (last.cpu < top.cpu and last.mem <= top.mem):
        problems.append(f"the VM did not shrink: it reached {top} and has {last} at the end")
    if seen.failed:
        problems.append(f"{seen.failed} transactions failed")
    # Simulated guests run no transactions, so none is expected of them.
    if not seen.is_simulated and not seen.transactions:
        problems.append("no transaction was run")
    # Success: the VM grew, shrank again, a neighbour moved unless that act was left out, and no transaction failed.
    return [*problems, *_migration_problems(seen.migrations), *seen.client_failures]


def _migration_problems(migrations: Sequence[MigrationPoint] | None) -> Sequence[str]:
    # The second act was left out.
    if migrations is None:
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
