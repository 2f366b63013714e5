"""``autoscale record``: keeps a cluster's history until Ctrl-C, where no page does; and the same within a command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from protocol.durations import DurationError, parse_duration
from protocol.runtime.clock import SystemClock
from protocol.units import Seconds
from scheduler_plugin.history.recorder import Recorder
from scripts.autoscale.clusters import Context, Kubeconfig
from scripts.autoscale.history.finding import history_path
from scripts.autoscale.history.site_source import site_source
from scripts.autoscale.local import Name
from scripts.autoscale.running import run
from scripts.autoscale.site import Site, open_site


def record(
    label: Annotated[list[str] | None, typer.Option(help="Keep this label's value too; may be repeated.")] = None,
    every: Annotated[str, typer.Option(help="Between two looks, such as 10s.")] = "10s",
    name: Name = "local",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Record a cluster for `autoscale cost` and `autoscale explain --since`, until Ctrl-C.

    `autoscale web` records by itself; only one recorder writes a file. Example: autoscale record --label team
    """
    try:
        interval = float(parse_duration(every))
    except DurationError as error:
        raise typer.BadParameter(str(error), param_hint="--every") from None
    run(_record(label or [], max(1.0, interval), (name, kubeconfig, context)))


async def _record(labels: list[str], interval: float, where: tuple[str, str, str]) -> int:
    path = history_path(*where)
    async with open_site(*where) as site, recording(site, path, labels, interval):
        Console().print(f"Recording {site.title} into {path}; Ctrl-C ends it.", soft_wrap=True)
        await asyncio.Event().wait()
    return 0


@asynccontextmanager
async def recording(
    site: Site, path: Path, labels: list[str] | None = None, interval: float = 10.0
) -> AsyncIterator[Recorder]:
    """Records ``site`` into ``path`` within the context."""
    clock = SystemClock()
    async with site_source(site, clock) as source:
        recorder = Recorder(path, source, clock, labels=labels or [], interval=Seconds(interval))
        task = asyncio.create_task(recorder.run())
        try:
            yield recorder
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
