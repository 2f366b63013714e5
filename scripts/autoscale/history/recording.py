"""Records a cluster while a command runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from protocol.runtime.clock import SystemClock
from protocol.units import Seconds
from scheduler_plugin.history.recorder import Recorder
from scripts.autoscale.history.site_source import site_source
from scripts.autoscale.site import Site


@asynccontextmanager
async def recording(
    site: Site, path: Path, labels: Sequence[str] = (), interval: float = 10.0
) -> AsyncIterator[Recorder]:
    """Records ``site`` into ``path`` within the context."""
    clock = SystemClock()
    async with site_source(site, clock) as source:
        recorder = Recorder(path, source, clock, labels=labels, interval=Seconds(interval))
        task = asyncio.create_task(recorder.run())
        try:
            yield recorder
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
