"""Keeps standbys at their primary's size, so that a failover finds one that is large enough.

- Each standby gets the primary's desired size as its floor. The primary never waits for it: failovers are rare.
- If the primary's node is full, a standby that has the size may be promoted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from protocol.floors import Floor
from protocol.units import Resources
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.tortoise.floor import renewed

FLOOR_LIFE: Final = timedelta(minutes=10)
"""A promoted standby loses its floor after this time and follows its own load."""

PATIENCE: Final = timedelta(minutes=5)
"""Total time of denials within ``WINDOW`` before a promotion; moving VMs away takes less than a minute."""

WINDOW: Final = timedelta(minutes=10)
"""Older denials do not count."""

PAUSE: Final = timedelta(hours=1)
"""Minimum time between changes of the primary: the database refuses writes for seconds during each."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One postgres, with its ``desired``, ``actual`` (None if unknown) and ``maximum`` size.

    ``denied_since`` is since when its node has lacked room for the desired size; None if it has room.
    """

    name: str
    is_ready: bool
    desired: Resources
    actual: Resources | None
    maximum: Resources
    floor: Floor | None = None
    denied_since: datetime | None = None

    def can_take_over(self, size: Resources) -> bool:
        """Return True if it is ready and has that size."""
        return self.is_ready and self.denied_since is None and self.actual is not None and size.within(self.actual)


@dataclass(frozen=True, slots=True)
class DeniedRoom:
    """Resources that the scheduler has denied to a database since ``since``."""

    lacks: Resources
    since: datetime


class Switchover(StrEnum):
    """Outcome for a primary that was denied room: ``PROMOTED``, or why no standby is promoted."""

    WAITING = "Waiting"
    NOT_ALLOWED = "NotAllowed"
    NOT_HEALTHY = "NotHealthy"
    TOO_SOON = "TooSoon"
    NO_STANDBY = "NoStandby"
    PROMOTED = "Promoted"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """State of a Cluster. ``changed_at`` is when its primary last changed, None if never."""

    allows_switchover: bool
    is_healthy: bool
    changed_at: datetime | None


@dataclass(frozen=True, slots=True)
class SwitchoverDecision:
    """Decision for a primary that has been denied room since ``since``; ``to`` is the promoted standby, if any."""

    outcome: Switchover
    since: datetime
    to: str = ""


@dataclass(frozen=True, slots=True)
class Tandem:
    """The instances of one cluster."""

    primary: Instance
    standbys: tuple[Instance, ...]

    def with_denial(self, denial: DeniedRoom | None) -> Tandem:
        """Add the scheduler's denial, which the pod does not show, because agents request only permitted sizes."""
        if denial is None:
            return self
        since = min(denial.since, self.primary.denied_since or denial.since)
        desired = (self.primary.desired + denial.lacks).at_most(self.primary.maximum)
        return replace(self, primary=replace(self.primary, desired=desired, denied_since=since))

    def new_floors(self, now: datetime) -> Mapping[str, Floor]:
        """Floors to write, by standby."""
        size = self.primary.desired
        floors = (
            (standby, renewed(standby.floor, size.at_most(standby.maximum), now, FLOOR_LIFE))
            for standby in self.standbys
        )
        return {standby.name: floor for standby, floor in floors if floor != standby.floor and floor is not None}

    def switchover(self, cluster: ClusterState, denied_for: timedelta, now: datetime) -> SwitchoverDecision | None:
        """Decide on a promotion; None if the primary's node has room. ``denied_for`` includes earlier denials."""
        since = self.primary.denied_since
        if since is None:
            return None
        outcome = _objection(denied_for, cluster, now)
        if outcome is not None:
            return SwitchoverDecision(outcome, since)
        candidates = [standby.name for standby in self.standbys if standby.can_take_over(self.primary.desired)]
        if not candidates:
            return SwitchoverDecision(Switchover.NO_STANDBY, since)
        # Any of them will do: take the first by name.
        return SwitchoverDecision(Switchover.PROMOTED, since, min(candidates))

    def sentence(self, decision: SwitchoverDecision) -> str:
        """The decision as a human-readable sentence."""
        why = _WHY[decision.outcome].format(standby=decision.to)
        return texts.NO_ROOM.format(primary=self.primary, since=decision.since, why=why)


def _objection(denied_for: timedelta, cluster: ClusterState, now: datetime) -> Switchover | None:
    if not cluster.allows_switchover:
        return Switchover.NOT_ALLOWED
    if denied_for < PATIENCE:
        return Switchover.WAITING
    if not cluster.is_healthy:
        return Switchover.NOT_HEALTHY
    # A time in the future comes from a skewed clock and counts as now.
    if cluster.changed_at is not None and now - cluster.changed_at < PAUSE:
        return Switchover.TOO_SOON
    return None


_WHY: Final = {
    Switchover.WAITING: texts.SWITCHOVER_WAITING.format(
        minutes=PATIENCE // timedelta(minutes=1), window=WINDOW // timedelta(minutes=1)
    ),
    Switchover.NOT_ALLOWED: texts.SWITCHOVER_NOT_ALLOWED,
    Switchover.NOT_HEALTHY: texts.SWITCHOVER_NOT_HEALTHY,
    Switchover.TOO_SOON: texts.SWITCHOVER_TOO_SOON,
    Switchover.NO_STANDBY: texts.SWITCHOVER_NO_STANDBY,
    Switchover.PROMOTED: texts.SWITCHOVER_PROMOTED,
}


@dataclass(frozen=True, slots=True)
class DenialHistory:
    """Recent denials of a primary. Short dips of a need near the limit must not restart the wait.

    ``spans`` are disjoint, within the last ``WINDOW``, oldest first. ``pod`` is the UID of the primary's pod.
    """

    pod: str = ""
    spans: tuple[tuple[datetime, datetime], ...] = ()

    def updated(self, pod: str, since: datetime | None, now: datetime) -> DenialHistory:
        """Add the state at ``now``: denied since ``since``, or not denied (None). Another pod starts a new history."""
        past = self.spans if pod == self.pod else ()
        oldest = now - WINDOW
        # The wall clock may have been set back.
        spans = [(max(start, oldest), min(end, now)) for start, end in past if start < now and end > oldest]
        if since is not None:
            # A time in the future comes from a skewed clock and counts as now.
            began = min(max(since, oldest), now)
            began = min([began, *(start for start, end in spans if end >= began)])
            spans = [*(span for span in spans if span[1] < began), (began, now)]
        return DenialHistory(pod, tuple(spans))

    @property
    def length(self) -> timedelta:
        """Total time of the denials."""
        return sum((end - start for start, end in self.spans), timedelta(0))


NO_DENIALS: Final = DenialHistory()
