"""Location of a cluster's history: a file on this machine, or a Prometheus."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

import httpx2 as httpx
import typer

from deploy.local.cluster.folder import ClusterFolder, clusters_root
from protocol.durations import DurationError, parse_duration
from protocol.kubernetes.kubeconfig import KubeconfigError, Login, current_context
from protocol.kubernetes.proxies import proxy_for
from protocol.runtime.credentials import CredentialsError, login_of, read_kubeconfigs
from protocol.runtime.url_hosts import server_url
from scheduler_plugin.history.core.samples import SECOND
from scheduler_plugin.history.ports import History, Period
from scheduler_plugin.history.prometheus.queries import PrometheusHistory
from scheduler_plugin.history.sqlite.queries import SqliteHistory
from scripts.autoscale.clusters import ClusterFlags, find_cluster_folder, local_folder

FILE: Final = "history.sqlite"
_TIMEOUT: Final = 120.0
"""Seconds; Prometheus may need long for a week of many VMs."""


def history_path(flags: ClusterFlags, *, records: bool = False) -> Path:
    """The history file of the selected cluster: in a local cluster's folder, or in a common folder for all others.

    Selects the cluster as ``find_cluster`` does, but the cluster need not be running. Without ``records``, falls back
    to a stopped local cluster if there is no history of kubectl's. Raises ``CredentialsError``.
    """
    folder = ClusterFolder.of(flags.local_name)
    # With a name no kubeconfig is needed: the folder remains while the cluster is down.
    if flags.name and not flags.selects_kubectl:
        return folder.root / FILE
    if not flags.selects_kubectl and (running := local_folder(flags)) is not None:
        return running.root / FILE
    paths = flags.kubeconfigs()
    try:
        login = login_of(paths, flags.context)
    except CredentialsError:
        # The files' paths can still identify the history of a cluster that is gone.
        login = None
    if (recorded_folder := find_cluster_folder(paths, login)) is not None or not paths:
        return (recorded_folder or folder).root / FILE
    # A hash, because addresses contain characters that file names cannot.
    digest = sha256(_identity(paths, login, flags.context).encode()).hexdigest()[:16]
    path = clusters_root().parent / "autoscale-histories" / digest / FILE
    # Without flags, a reader may mean the stopped local cluster.
    is_stopped_local = not records and not flags.selects_kubectl and folder.exists() and not path.exists()
    return folder.root / FILE if is_stopped_local else path


def period_since(since: str) -> Period:
    """The period from ``since`` ago until now. Raises ``DurationError``."""
    span = parse_duration(since)
    if not span:
        raise DurationError("expected a duration above zero")
    until = round(time.time() * SECOND)
    return Period(until - round(span * SECOND), until)


def local_cluster_name(path: Path) -> str:
    """The name of the local cluster whose history is at ``path``; empty for other clusters."""
    return path.parent.name if path.parent.parent == clusters_root() else ""


def context_name(flags: ClusterFlags) -> str:
    """The name of the selected context, or else of the kubeconfig."""
    paths = flags.kubeconfigs()
    if flags.context or not paths:
        return flags.context
    try:
        name = current_context(read_kubeconfigs(paths))
    except (CredentialsError, KubeconfigError):
        name = ""
    return name or os.pathsep.join(map(str, paths))


def _identity(paths: Sequence[Path], login: Login | None, context: str) -> str:
    """Identifies a cluster independently of the names of contexts."""
    if login is None:
        # The server is unknown, so identify it by files and context.
        return f"{os.pathsep.join(str(path.resolve()) for path in paths)}\0{context}"
    return "\0".join((login.server, login.server_name, login.authority.text, login.authority.path))


def check_url(url: str) -> str:
    """Validates the URL of a server, or empty; a callback for typer. Raises ``typer.BadParameter``."""
    try:
        # typer calls back for the empty default as well.
        return url and server_url(url)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@asynccontextmanager
async def opened_history(path: Path, prometheus: str = "") -> AsyncIterator[History]:
    """Opens the history of the Prometheus at a URL, or else of a file. Raises ``ProxyError``."""
    if not prometheus:
        yield SqliteHistory(path)
        return
    # With an explicit transport, httpx does not read proxies from the environment.
    transport = httpx.AsyncHTTPTransport(proxy=proxy_for(prometheus, os.environ) or None)
    async with httpx.AsyncClient(base_url=prometheus, timeout=_TIMEOUT, transport=transport) as http:
        yield PrometheusHistory(http)
