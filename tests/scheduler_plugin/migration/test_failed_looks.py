"""An internal error in planning ends nothing: the scheduler continues and plans again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from protocol.runtime.kubernetes.token_reviews import TokenReviews
from scheduler_plugin.app import SchedulerPorts, assemble
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.migration.mover import Mover
from scheduler_plugin.migration.reporter import MigrationReporter
from scheduler_plugin.planner.cost import HasTarget, RoomGoal, Selection, least_cost
from scheduler_plugin.planner.planner import Planner
from scheduler_plugin.planner.victims import Victim
from scheduler_plugin.settings.document import parse_settings
from scheduler_plugin.telemetry import Telemetry
from scheduler_plugin.texts import explanations
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import FakeCluster
from tests.scheduler_plugin.migration.moving_cluster import full_cluster
from tests.scheduler_plugin.running import SETTINGS


class FailsAtFirst:
    """Raises an error this many times; then plans as the planner does."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, victims: Sequence[Victim], need: RoomGoal | None, has_place: HasTarget) -> Iterable[Victim]:
        if self.left:
            self.left -= 1
            raise OverflowError("a VM like no other")
        return least_cost(victims, need, has_place)


@asynccontextmanager
async def at_work(cluster: FakeCluster, clock: FakeClock, select: Selection) -> AsyncIterator[SchedulerContext]:
    """A scheduler with such a planner."""
    ports = SchedulerPorts(cluster, TokenReviews(cluster), clock, Telemetry(clock.now), "us")
    parts = assemble(ports, parse_settings(SETTINGS + "migration: {settleSeconds: 0}"))
    mover = Mover(parts.context, MigrationReporter(parts.context, parts.workers.events), Planner(select))
    work = asyncio.create_task(replace(parts, workers=replace(parts.workers, mover=mover)).run(cluster))
    await settle()
    yield parts.context
    assert not work.done()
    work.cancel()
    await asyncio.wait([work])


def told(context: SchedulerContext) -> tuple[float | None, str | None, int]:
    """Number of failed planning rounds, the reason why no VM moves, and the number of migrations."""
    failed = context.telemetry.registry.get_sample_value("autoscale_scheduler_migration_looks_failed_total")
    return failed, context.migration_status.idle, len(context.ledger.migrations)


async def test_failed_planning_is_counted_and_retried() -> None:
    cluster, clock = full_cluster(), FakeClock()
    async with at_work(cluster, clock, FailsAtFirst(2)) as context:
        await clock.advance(5)
        assert told(context) == (1.0, explanations.PLANNING_FAILED, 0)
        await clock.advance(30)
        assert told(context) == (2.0, explanations.PLANNING_FAILED, 0)
        await clock.advance(30)
        assert told(context) == (2.0, None, 1)
