"""Where the history of a cluster is: a file on this machine, or a Prometheus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

import httpx
import typer

from deploy.local.cluster.folder import ClusterFolder, clusters_root
from scheduler_plugin.history.ports import History
from scheduler_plugin.history.prometheus.questions import PrometheusHistory
from scheduler_plugin.history.sqlite.questions import SqliteHistory
from scripts.autoscale.clusters import usual_kubeconfig

FILE: Final = "history.sqlite"
_PATIENCE: Final = 120.0
"""Seconds that Prometheus may take for a week of many VMs."""


def history_path(name: str, kubeconfig: str, context: str = "") -> Path:
    """The file of a local cluster in its folder, so that it goes with it; of any other one in a folder for all.

    The cluster is chosen as ``open_site`` chooses it.
    """
    folder = ClusterFolder.of(name)
    chosen = Path(kubeconfig) if kubeconfig else usual_kubeconfig()
    if (not kubeconfig and not context and folder.exists()) or chosen is None:
        return folder.root / FILE
    which = sha256(f"{chosen.resolve()}\0{context}".encode()).hexdigest()[:16]
    return clusters_root().parent / "autoscale-histories" / which / FILE


def a_url(given: str) -> str:
    """Refuses what is no address of a server (a callback of Typer; nothing is one). Raises ``typer.BadParameter``."""
    try:
        url = httpx.URL(given)
    except httpx.InvalidURL as error:
        raise typer.BadParameter(f"{given!r} is no URL: {error}") from None
    if given and (url.scheme not in {"http", "https"} or not url.host):
        raise typer.BadParameter(f"expected a URL such as http://127.0.0.1:9090, got {given!r}")
    return given


@asynccontextmanager
async def opened_history(path: Path, prometheus: str = "") -> AsyncIterator[History]:
    """What answers: the Prometheus at that address where one is given, else the file."""
    if not prometheus:
        yield SqliteHistory(path)
        return
    async with httpx.AsyncClient(base_url=prometheus, timeout=_PATIENCE) as http:
        yield PrometheusHistory(http)
