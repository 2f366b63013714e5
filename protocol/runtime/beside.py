"""Jobs that run for as long as something else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager


@asynccontextmanager
async def beside(*jobs: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Run ``jobs`` as long as the block lasts. An error of one of them cancels the block, and is raised in a group."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(job) for job in jobs]
        # A task that is cancelled before its first step runs none of its code, its clean-up included.
        await asyncio.sleep(0)
        try:
            yield
        # Most jobs never end by themselves, and the task group would wait for them.
        finally:
            for task in running:
                task.cancel()
