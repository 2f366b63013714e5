"""In any phase, failures of the scheduler or its API do not affect a migration's result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.fake_clock import settle
from tests.scheduler_plugin.fake_cluster import NODES
from tests.scheduler_plugin.migration.moving_cluster import (
    POD,
    SETTLED,
    STARTED,
    SUCCEEDED,
    MovingCluster,
    moving_cluster,
    on_its_way,
)
from tests.scheduler_plugin.objects import node

FAILED = ("db", "MigrationFailed", "did not migrate from n1 to n2: no luck")
Snapshot = tuple[Any, ...]
Disturbance = Callable[[MovingCluster], Awaitable[None]]


async def ordered(s: MovingCluster) -> None:
    await s.passes(SETTLED)


async def accepted(s: MovingCluster) -> None:
    s.controller.accept()


async def target_made(s: MovingCluster) -> None:
    s.controller.make_target()


async def placed(s: MovingCluster) -> None:
    await settle()
    assert await s.placed() == "n2"
    assert await s.placed() == "n2", "kube-scheduler may ask twice"


async def transferring(s: MovingCluster) -> None:
    s.controller.transfer()


async def handed_over(s: MovingCluster) -> None:
    s.controller.hand_over()


async def succeeded(s: MovingCluster) -> None:
    s.controller.succeed()


PHASES = (ordered, accepted, target_made, placed, transferring, handed_over, succeeded)
BY_CONTROLLER = (accepted, target_made, transferring, handed_over, succeeded)


async def restart(s: MovingCluster) -> None:
    """The scheduler is killed; the next one has only the API objects."""
    await s.start()
    await s.passes(1)


async def api_away(s: MovingCluster) -> None:
    s.cluster.go_away()
    await s.passes(30)
    s.cluster.come_back()
    await s.passes(8)


async def history_forgotten(s: MovingCluster) -> None:
    """The watches break, and events in between are lost."""
    s.cluster.cut_watches()
    await settle()
    s.cluster.put(NODES, node("n3", "1", "1Gi"))
    s.cluster.forget_history()
    await s.passes(8)


async def order_heard_twice(s: MovingCluster) -> None:
    assert await s.told(POD) == await s.told(POD)


DISTURBANCES = (restart, api_away, history_forgotten, order_heard_twice)


async def snapshot(s: MovingCluster) -> Snapshot:
    """Everything observable: objects, the ledger, and the responses to the agents in both pods."""
    heard = [await s.told(POD)]
    if "targetPodName" in (s.controller.migration.get("status") or {}):
        heard.append(await s.told(s.controller.target))
    return s.migrations, s.reserved, heard


async def story(disturb: Disturbance | None, after: int, *, meanwhile: bool = False) -> tuple[list[Snapshot], Any, int]:
    """The whole migration; ``disturb`` runs after the phase of that number. With ``meanwhile`` the API is unavailable
    in it.
    """
    async with moving_cluster() as s:
        told = []
        for number, phase in enumerate(PHASES):
            if number == after and meanwhile:
                s.cluster.go_away()
                await s.passes(15)
                await phase(s)
                await s.passes(15)
                s.cluster.come_back()
                await s.passes(8)
            else:
                await phase(s)
                await s.passes(1)
            if number == after and disturb is not None:
                await disturb(s)
            told.append(await snapshot(s))
        await s.passes(1)
        return told, s.events, s.created()


async def test_undisturbed_it_goes_like_this() -> None:
    told, events, created = await story(None, -1)
    source, both = ("9500m", "2"), ("9500m", "2")
    holds, grows, silent, unknown = (200, True, 2), (200, False, 2), (503, False, None), (404, False, None)
    assert told == [
        ([("db", "n2", "")], source, [grows]),
        ([("db", "n2", "Pending")], source, [grows]),
        ([("db", "n2", "Pending")], source, [grows, unknown]),
        ([("db", "n2", "Pending")], both, [holds, silent]),
        ([("db", "n2", "Running")], both, [holds, silent]),
        ([("db", "n2", "Running")], both, [silent, grows]),
        ([("db", "n2", "Succeeded")], ("7500m", "2"), [unknown, grows]),
    ]
    assert (events, created) == ([STARTED, SUCCEEDED], 1)


@pytest.mark.parametrize("after", range(len(PHASES)), ids=[phase.__name__ for phase in PHASES])
@pytest.mark.parametrize("disturb", DISTURBANCES, ids=[each.__name__ for each in DISTURBANCES])
async def test_a_disturbance_in_any_phase_changes_nothing(disturb: Disturbance, after: int) -> None:
    assert await story(disturb, after) == await story(None, -1)


@pytest.mark.parametrize("phase", BY_CONTROLLER, ids=[phase.__name__ for phase in BY_CONTROLLER])
async def test_outage_changes_are_caught_up(
    phase: Callable[[MovingCluster], Awaitable[None]],
) -> None:
    assert await story(None, PHASES.index(phase), meanwhile=True) == await story(None, -1)


@pytest.mark.parametrize("after", range(6), ids=[phase.__name__ for phase in PHASES[:6]])
async def test_late_scheduler_adopts_running_moves(after: int) -> None:
    async with moving_cluster() as s:
        for phase in PHASES[: after + 1]:
            await phase(s)
            await s.passes(1)
        before = (s.reserved, s.created())
        await s.stop()
        await s.clock.advance(200)
        await s.start()
        await s.passes(9)
        assert (s.reserved, s.created()) == before


async def test_missed_migration_end_is_reported() -> None:
    async with on_its_way() as s:
        await s.passes(1)
        await s.stop()
        s.controller.hand_over()
        s.controller.succeed()
        s.fill("n2", "7500m")
        await s.start()
        await s.passes(60)
        assert (s.events, s.reserved, s.created()) == ([STARTED, SUCCEEDED], ("7500m", "9500m"), 1)


async def test_quick_migration_is_reported_whole() -> None:
    async with moving_cluster() as s:
        await s.passes(11)
        s.controller.accept()
        s.controller.make_target()
        await settle()
        assert await s.placed() == "n2"
        s.controller.transfer()
        s.controller.hand_over()
        s.controller.succeed()
        await s.passes(2)
        assert s.events == [STARTED, SUCCEEDED]


@pytest.mark.parametrize(("ago", "events"), [(590, [STARTED, FAILED]), (610, [])])
async def test_old_ends_are_no_news(ago: float, events: list[object]) -> None:
    async with moving_cluster() as s:
        await s.started()
        s.controller.fail("no luck")
        await s.stop()
        s.cluster.notices.clear()
        await s.clock.advance(ago)
        s.relieve()
        await s.start()
        await s.passes(2)
        assert s.events == events
