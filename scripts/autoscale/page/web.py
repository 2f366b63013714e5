"""``autoscale web``: the page of a cluster, on this machine."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from scheduler_plugin.program import stop_on_signals
from scripts.autoscale.clusters import Context, Kubeconfig
from scripts.autoscale.local import Name
from scripts.autoscale.page.local_page import PORT, LocalPage, Where, listening
from scripts.autoscale.running import run
from scripts.autoscale.site import open_site


def web(
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port on this machine's loopback.")] = PORT,
    label: Annotated[list[str] | None, typer.Option(help="Record this label's value too; may be repeated.")] = None,
    name: Name = "local",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Serve the live page of a cluster to browsers on this machine, and record its history, until Ctrl-C."""
    run(_web(port, (name, kubeconfig, context), label or []))


async def _web(port: int, where: Where, labels: list[str]) -> int:
    async with open_site(*where) as site:
        await LocalPage(site, where, listening(port), Console(), labels=labels).serve(stop_on_signals())
    return 0
