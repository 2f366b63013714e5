"""Where the history of a cluster is: a file on this machine, or a Prometheus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

import httpx2 as httpx
import typer

from deploy.local.cluster.folder import ClusterFolder, clusters_root
from protocol.kubernetes.kubeconfig import parse_kubeconfig
from protocol.kubernetes.objects import text
from protocol.runtime.url_hosts import server_url
from protocol.yaml_text import YamlError, read_yaml
from scheduler_plugin.history.ports import History
from scheduler_plugin.history.prometheus.questions import PrometheusHistory
from scheduler_plugin.history.sqlite.questions import SqliteHistory
from scripts.autoscale.clusters import usual_kubeconfig

FILE: Final = "history.sqlite"
_PATIENCE: Final = 120.0
"""Seconds that Prometheus may take for a week of many VMs."""


def history_path(name: str, kubeconfig: str, context: str = "", *, records: bool = False) -> Path:
    """The file of a local cluster in its folder, so that it goes with it; of any other one in a folder for all.

    The cluster is chosen as ``open_site`` chooses it. Without ``records`` a local cluster that does not run any more is
    meant too, where nothing is kept of kubectl's.
    """
    folder, is_named = ClusterFolder.of(name), bool(kubeconfig or context)
    chosen = Path(kubeconfig) if kubeconfig else usual_kubeconfig()
    is_meant = chosen is not None and not context and chosen.resolve() == folder.kubeconfig.resolve()
    if chosen is None or is_meant or (not is_named and folder.runs()):
        return folder.root / FILE
    which = sha256(_identity(chosen, context).encode()).hexdigest()[:16]
    path = clusters_root().parent / "autoscale-histories" / which / FILE
    is_of_old = not records and not is_named and folder.exists() and not path.exists()
    return folder.root / FILE if is_of_old else path


def is_local(path: Path, name: str) -> bool:
    """Whether a history's path is that of the local cluster."""
    return path == ClusterFolder.of(name).root / FILE


def context_name(kubeconfig: str, context: str) -> str:
    """The context that is meant, by its name; the kubeconfig's where it has none."""
    chosen = Path(kubeconfig) if kubeconfig else usual_kubeconfig()
    if context or chosen is None:
        return context
    try:
        found = read_yaml(chosen.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YamlError):
        found = None
    return (text(found, "current-context") if isinstance(found, dict) else "") or str(chosen)


def _identity(kubeconfig: Path, context: str) -> str:
    """What tells a cluster from others, whatever its context is called and whichever is the current one."""
    try:
        login = parse_kubeconfig(kubeconfig.read_text(encoding="utf-8"), context)
    except (OSError, ValueError):
        return f"{kubeconfig.resolve()}\0{context}"
    return "\0".join((login.server, login.server_name, login.authority.text, login.authority.path))


def a_url(given: str) -> str:
    """Refuses what is no address of a server (a callback of Typer; nothing is one). Raises ``typer.BadParameter``."""
    try:
        return given and server_url(given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@asynccontextmanager
async def opened_history(path: Path, prometheus: str = "") -> AsyncIterator[History]:
    """What answers: the Prometheus at that address where one is given, else the file."""
    if not prometheus:
        yield SqliteHistory(path)
        return
    async with httpx.AsyncClient(base_url=prometheus, timeout=_PATIENCE) as http:
        yield PrometheusHistory(http)
