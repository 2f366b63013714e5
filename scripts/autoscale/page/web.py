"""``autoscale web``: the page of a cluster, on this machine."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from protocol.runtime.program import stop_on_signals
from scripts.autoscale.cluster_flags import of_a_cluster
from scripts.autoscale.clusters import ClusterFlags, find_cluster
from scripts.autoscale.history.finding import history_path
from scripts.autoscale.page.local_page import PORT, LocalPage, listening
from scripts.autoscale.running import run
from scripts.autoscale.site import open_site


@of_a_cluster()
def web(
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port on this machine's loopback.")] = PORT,
    label: Annotated[list[str] | None, typer.Option(help="Record this label's value too; may be repeated.")] = None,
    *,
    flags: ClusterFlags,
) -> None:
    """Serve the live page of a cluster to browsers on this machine, and record its history, until Ctrl-C."""
    run(_web(port, flags, label or []))


async def _web(port: int, flags: ClusterFlags, labels: list[str]) -> int:
    cluster, history = find_cluster(flags), history_path(flags, records=True)
    async with open_site(cluster) as site:
        await LocalPage(site, cluster, history, listening(port), Console(), labels=labels).serve(stop_on_signals())
    return 0
