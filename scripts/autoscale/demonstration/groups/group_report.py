"""Observations of the third act, and their verdict (pure).

Success means: the replica that was there grew, another one served beside it, both were taken back after the load, and
no transaction failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from protocol.units import Seconds


class GroupPoint(msgspec.Struct, frozen=True):
    """The group from a moment on: the replicas that serve, and the vCPUs of every VM by name."""

    seconds: float
    serving: int
    cpus: dict[str, float]


class GroupReport(msgspec.Struct, frozen=True):
    """The outcome. Times are seconds since the demonstration began; ``load`` is transactions per second by time."""

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
    """Observations of the act. ``started_at`` is the first replica's size before the load.

    ``said_under_load`` and ``said_at_last`` have the time waited and the group's own message after it; the second is
    empty if the group came back.
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
    said_under_load: str = ""
    said_at_last: str = ""

    def saw(self, at: Seconds, serving: int, cpus: Mapping[str, float]) -> bool:
        """The group is like this; returns whether that is new."""
        # Informers report every write; only a change of what is drawn is a point.
        if self.points and (self.points[-1].serving, self.points[-1].cpus) == (serving, cpus):
            return False
        self.points.append(GroupPoint(round(at, 2), serving, dict(cpus)))
        return True


def group_report(seen: GroupObservations) -> GroupReport:
    """The outcome of the observations."""
    began = seen.load_began
    during = [point for point in seen.points if began is not None and point.seconds >= began]
    most_cpu = max((point.cpus.get(seen.first, 0.0) for point in during), default=0.0)
    most_serving = max((point.serving for point in during), default=0)
    return GroupReport(
        points=list(seen.points),
        load=list(seen.load),
        load_began=None if began is None else round(began, 2),
        load_ended=None if seen.load_ended is None else round(seen.load_ended, 2),
        transactions=seen.transactions,
        failed=seen.failed,
        most_serving=most_serving,
        most_cpu=most_cpu,
        problems=list(_problems(seen, most_cpu, most_serving)),
    )


def _not_back(seen: GroupObservations, last: GroupPoint, most_cpu: float) -> str:
    """The steps that did not happen after the load."""
    if last.serving != 1:
        return f"{last.serving} replicas serve, not the one of the beginning,"
    # Two VMs are the primary and one replica.
    if len(last.cpus) > 2:
        return f"{', '.join(sorted(last.cpus))} run, not one replica beside the primary,"
    if last.cpus.get(seen.first, most_cpu) > seen.started_at:
        return f"the replica did not shrink to the {seen.started_at:g} vCPU of the beginning"
    return "the group did not come back"


def _problems(seen: GroupObservations, most_cpu: float, most_serving: int) -> Sequence[str]:
    if seen.load_ended is None or not seen.points:
        return [seen.problem or "the group's load did not run"]
    last = seen.points[-1]
    problems = [seen.problem] if seen.problem else []
    if most_cpu <= seen.started_at:
        problems.append(f"the replica did not grow: it had {seen.started_at:g} vCPU before the load and never more")
    if most_serving < 2:
        problems.append(f"no replica was added under load {seen.said_under_load}")
    if seen.said_at_last:
        problems.append(f"{_not_back(seen, last, most_cpu)} {seen.said_at_last}")
    if seen.failed:
        problems.append(f"{seen.failed} transactions of the read load failed")
    # Simulated replicas run no transactions.
    if not seen.is_simulated and not seen.transactions:
        problems.append("no transaction of the read load was run")
    return problems
