"""``autoscale record``: records a cluster's history until Ctrl-C."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import typer
from rich.console import Console

from protocol.units import Seconds
from scripts.autoscale.cluster_flags import cluster_command
from scripts.autoscale.clusters import ClusterFlags, find_cluster
from scripts.autoscale.history.finding import history_path
from scripts.autoscale.history.recording import recording, site_sources
from scripts.autoscale.site import open_site
from scripts.autoscale.terminal.durations import duration_between

SHORTEST_INTERVAL: Final = Seconds(1.0)
LONGEST_INTERVAL: Final = Seconds(600.0)
"""A sample is valid for up to four intervals, and the longest span of a history is three hours."""


@cluster_command()
async def record(
    label: Annotated[list[str] | None, typer.Option(help="Also record this label of VMs; repeatable.")] = None,
    every: Annotated[str, typer.Option(help="Interval between samples, such as 10s: 1s to 10m.")] = "10s",
    *,
    flags: ClusterFlags,
) -> int:
    """Record a cluster for `autoscale cost` and `autoscale explain --since`, until Ctrl-C.

    `autoscale web` also records; a file has only one recorder. Example: autoscale record --label team
    """
    interval = duration_between(SHORTEST_INTERVAL, LONGEST_INTERVAL, every, "--every")
    path, console = history_path(flags, records=True), Console()
    async with (
        open_site(find_cluster(flags)) as site,
        site_sources(site) as sources,
        recording(site.client.api, sources, path, console, label or [], interval),
    ):
        console.print(f"Recording {site.title} into {path}; Ctrl-C stops it.", soft_wrap=True, markup=False)
        # Nothing sets this event: Ctrl-C ends the command.
        await asyncio.Event().wait()
    return 0
