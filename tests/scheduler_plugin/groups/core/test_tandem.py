"""A primary and its standbys: which floors standbys get, and when one of them takes the primary's place."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.floors import Floor
from protocol.units import Resources
from scheduler_plugin.groups.core.tandem import (
    FLOOR_LIFE,
    PATIENCE,
    PAUSE,
    ClusterState,
    DeniedRoom,
    Instance,
    Switchover,
    Tandem,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SMALL, LARGE, MOST = Resources.parse(1, "1Gi"), Resources.parse(4, "8Gi"), Resources.parse(8, "16Gi")
HEALTHY = ClusterState(allows_switchover=True, is_healthy=True, changed_at=NOW - PAUSE)
DENIED = Instance("pg-1", True, LARGE, SMALL, MOST, denied_since=NOW - PATIENCE)
STANDBY = Instance("pg-2", True, LARGE, LARGE, MOST)


def floor(size: Resources, until: timedelta = FLOOR_LIFE) -> Floor:
    return Floor(size, (NOW + until).timestamp())


@pytest.mark.parametrize(
    ("standby", "floors"),
    [
        (None, {"pg-2": floor(LARGE)}),
        (floor(LARGE), {}),
        (floor(LARGE, FLOOR_LIFE / 3), {"pg-2": floor(LARGE)}),
        (floor(SMALL), {"pg-2": floor(LARGE)}),
    ],
    ids=["new", "as-written", "renewed", "grown"],
)
def test_standby_gets_size_of_primary_as_floor(standby: Floor | None, floors: dict[str, Floor]) -> None:
    """A primary's floor, from its time as a standby or from the injector, expires on its own."""
    tandem = Tandem(replace(DENIED, floor=floor(SMALL)), (replace(STANDBY, floor=standby),))
    assert tandem.new_floors(NOW) == floors


def test_floor_is_within_bounds_of_standby() -> None:
    tandem = Tandem(DENIED, (replace(STANDBY, maximum=Resources.parse(2, "16Gi")),))
    assert tandem.new_floors(NOW) == {"pg-2": floor(Resources.parse(2, "8Gi"))}


@pytest.mark.parametrize(
    ("primary", "denied_for", "cluster", "outcome"),
    [
        (replace(DENIED, denied_since=None), PATIENCE, HEALTHY, None),
        (DENIED, PATIENCE, replace(HEALTHY, allows_switchover=False), Switchover.NOT_ALLOWED),
        (DENIED, PATIENCE / 2, HEALTHY, Switchover.WAITING),
        (DENIED, PATIENCE, replace(HEALTHY, is_healthy=False), Switchover.NOT_HEALTHY),
        (DENIED, PATIENCE, replace(HEALTHY, changed_at=NOW - PAUSE / 2), Switchover.TOO_SOON),
        (DENIED, PATIENCE, replace(HEALTHY, changed_at=None), Switchover.PROMOTED),
        (DENIED, PATIENCE, HEALTHY, Switchover.PROMOTED),
    ],
    ids=["has-room", "not-allowed", "waits", "unhealthy", "changed-lately", "never-changed", "changed-long-ago"],
)
def test_denied_primary_changes_places(
    primary: Instance, denied_for: timedelta, cluster: ClusterState, outcome: Switchover | None
) -> None:
    decision = Tandem(primary, (STANDBY,)).switchover(cluster, denied_for, NOW)
    assert (None if decision is None else decision.outcome) == outcome


@pytest.mark.parametrize(
    ("deferred", "since"),
    [(None, NOW - PATIENCE), (NOW - PATIENCE * 2, NOW - PATIENCE * 2), (NOW, NOW - PATIENCE)],
    ids=["by-scheduler", "longer-by-kubelet", "later-by-kubelet"],
)
def test_scheduler_denies_more_than_agent_asked_kubelet_for(deferred: datetime | None, since: datetime) -> None:
    """The standby is to have that, too; it never exceeds the primary's bounds."""
    tandem = Tandem(replace(DENIED, denied_since=deferred), (STANDBY,))
    denied = tandem.with_denial(DeniedRoom(Resources.parse(2, "12Gi"), NOW - PATIENCE))
    assert (denied.primary.desired, denied.primary.denied_since) == (Resources.parse(6, "16Gi"), since)
    assert denied.new_floors(NOW) == {"pg-2": floor(Resources.parse(6, "16Gi"))}
    assert tandem.with_denial(None) == tandem


@pytest.mark.parametrize(
    "standby",
    [
        replace(STANDBY, is_ready=False),
        replace(STANDBY, actual=None),
        replace(STANDBY, actual=Resources.parse(4, "4Gi")),
        replace(STANDBY, denied_since=NOW),
    ],
    ids=["not-ready", "size-unknown", "too-small", "denied-too"],
)
def test_only_standby_with_room_is_promoted(standby: Instance) -> None:
    tandem = Tandem(DENIED, (standby,))
    decision = tandem.switchover(HEALTHY, PATIENCE, NOW)
    assert decision is not None
    assert tandem.sentence(decision) == (
        "pg-1 has been denied 4 cpu, 8Gi since 11:55 UTC because its node is full: no ready standby has that size"
    )
    both = Tandem(DENIED, (standby, replace(STANDBY, name="pg-3"))).switchover(HEALTHY, PATIENCE, NOW)
    assert both is not None
    assert (both.outcome, both.to) == (Switchover.PROMOTED, "pg-3")


@given(st.lists(st.integers(0, 30 * 3600), min_size=1, max_size=30).map(sorted))
def test_primary_changes_at_most_once_an_hour(seconds: list[int]) -> None:
    """Whenever it is looked at, and if the new primary is denied again at once."""
    cluster, changes = HEALTHY, list[datetime]()
    for now in (NOW + timedelta(seconds=second) for second in seconds):
        decision = Tandem(DENIED, (STANDBY,)).switchover(cluster, PATIENCE, now)
        if decision is not None and decision.outcome is Switchover.PROMOTED:
            cluster = replace(cluster, changed_at=now)
            changes.append(now)
    assert all(later - earlier >= PAUSE for earlier, later in pairwise(changes))
