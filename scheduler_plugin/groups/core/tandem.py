"""A primary and its standbys in pods that agents size, in tandem: a failover finds a standby of the primary's size.

- Each standby has a floor of what the primary is to have. The primary never waits for it: its load is now, and a
  failover is rare.
- A primary for which its node has no room may change places with a standby that has been given that much.
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
"""A standby that has become the primary keeps its floor for as long at most, and then follows its own load alone."""

PATIENCE: Final = timedelta(minutes=5)
"""How long a node may have no room for a primary before a standby is promoted: VMs move away within a minute."""

PAUSE: Final = timedelta(hours=1)
"""After a change of the primary, whoever made it, none is made for as long: each refuses writes for seconds."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One postgres. ``wanted`` is the size that it is to have, ``actual`` what it has (None if unknown), ``most`` its
    upper bound. ``denied_since`` is when its node ran out of room for what is wanted, None while there is room.
    """

    name: str
    is_ready: bool
    wanted: Resources
    actual: Resources | None
    most: Resources
    floor: Floor | None = None
    denied_since: datetime | None = None

    def has_room_for(self, size: Resources) -> bool:
        """Return True if it serves and really has that much."""
        return self.is_ready and self.denied_since is None and self.actual is not None and size.within(self.actual)


@dataclass(frozen=True, slots=True)
class DeniedRoom:
    """The scheduler has denied this much to a database since then."""

    lacks: Resources
    since: datetime


class Switchover(StrEnum):
    """Why a primary that is denied keeps its place, or ``PROMOTED``."""

    WAITING = "Waiting"
    NOT_ALLOWED = "NotAllowed"
    NOT_HEALTHY = "NotHealthy"
    TOO_SOON = "TooSoon"
    NO_STANDBY = "NoStandby"
    PROMOTED = "Promoted"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster whose operator can promote a standby. ``changed_at`` is when it last chose a primary, None
    if it never did.
    """

    allows_switchover: bool
    is_healthy: bool
    changed_at: datetime | None


@dataclass(frozen=True, slots=True)
class SwitchoverDecision:
    """The outcome for a primary that has been denied ``since`` then; with ``PROMOTED``, ``to`` is the standby."""

    outcome: Switchover
    since: datetime
    to: str = ""


@dataclass(frozen=True, slots=True)
class Tandem:
    """The instances of one cluster."""

    primary: Instance
    standbys: tuple[Instance, ...]

    def with_denial(self, denial: DeniedRoom | None) -> Tandem:
        """The same if the scheduler denies the primary this; the kubelet knows only what the agent was granted."""
        if denial is None:
            return self
        since = min(denial.since, self.primary.denied_since or denial.since)
        wanted = (self.primary.wanted + denial.lacks).at_most(self.primary.most)
        return replace(self, primary=replace(self.primary, wanted=wanted, denied_since=since))

    def new_floors(self, now: datetime) -> Mapping[str, Floor]:
        """The floors of standbys that are to be written, by name."""
        size = self.primary.wanted
        floors = (
            (standby, renewed(standby.floor, size.at_most(standby.most), now, FLOOR_LIFE)) for standby in self.standbys
        )
        return {standby.name: floor for standby, floor in floors if floor != standby.floor and floor is not None}

    def switchover(self, cluster: ClusterState, now: datetime) -> SwitchoverDecision | None:
        """The decision now; None if the primary's node has room."""
        since = self.primary.denied_since
        if since is None:
            return None
        outcome = _objection(since, cluster, now)
        if outcome is not None:
            return SwitchoverDecision(outcome, since)
        able = [standby.name for standby in self.standbys if standby.has_room_for(self.primary.wanted)]
        if not able:
            return SwitchoverDecision(Switchover.NO_STANDBY, since)
        # The first by name: nothing else that is known here tells them apart.
        return SwitchoverDecision(Switchover.PROMOTED, since, min(able))

    def sentence(self, decision: SwitchoverDecision) -> str:
        """The decision in a sentence."""
        why = _WHY[decision.outcome].format(standby=decision.to)
        return texts.NO_ROOM.format(primary=self.primary, since=decision.since, why=why)


def _objection(denied_since: datetime, cluster: ClusterState, now: datetime) -> Switchover | None:
    if not cluster.allows_switchover:
        return Switchover.NOT_ALLOWED
    if now - denied_since < PATIENCE:
        return Switchover.WAITING
    if not cluster.is_healthy:
        return Switchover.NOT_HEALTHY
    # A time in the future comes from another clock and may be just now.
    if cluster.changed_at is not None and now - cluster.changed_at < PAUSE:
        return Switchover.TOO_SOON
    return None


_WHY: Final = {
    Switchover.WAITING: texts.SWITCHOVER_WAITING.format(minutes=PATIENCE // timedelta(minutes=1)),
    Switchover.NOT_ALLOWED: texts.SWITCHOVER_NOT_ALLOWED,
    Switchover.NOT_HEALTHY: texts.SWITCHOVER_NOT_HEALTHY,
    Switchover.TOO_SOON: texts.SWITCHOVER_TOO_SOON,
    Switchover.NO_STANDBY: texts.SWITCHOVER_NO_STANDBY,
    Switchover.PROMOTED: texts.SWITCHOVER_PROMOTED,
}
