"""Background jobs for the duration of a block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager


@asynccontextmanager
async def background_jobs(*jobs: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Run ``jobs`` in the background during the block. An error in one cancels the block, and is raised in a group."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(job) for job in jobs]
        # A task that is cancelled before its first step does not run at all, not even its cleanup.
        await asyncio.sleep(0)
        try:
            yield
        # Most jobs never end, and the task group would wait for them.
        finally:
            for task in running:
                task.cancel()
