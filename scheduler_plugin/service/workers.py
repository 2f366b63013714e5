"""All background workers of a scheduler."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from scheduler_plugin.migration.mover import Mover
from scheduler_plugin.workers.background_tasks import BackgroundTasks
from scheduler_plugin.workers.event_recorder import SchedulerEvents
from scheduler_plugin.workers.permit_writer import PermitWriter
from scheduler_plugin.workers.problem_watcher import ProblemWatcher
from scheduler_plugin.workers.request_writer import RequestWriter


@dataclass(frozen=True, slots=True)
class Workers:
    """Executors of the ledger's decisions."""

    tasks: BackgroundTasks
    permits: PermitWriter
    events: SchedulerEvents
    mover: Mover
    problems: ProblemWatcher
    requests: RequestWriter

    async def run(self) -> None:
        """Works in the background for ever."""
        # A worker that fails ends all: a scheduler with a part that stands still must restart.
        async with asyncio.TaskGroup() as group:
            for worker in (self.tasks, self.permits, self.events, self.mover, self.problems, self.requests):
                group.create_task(worker.run())
