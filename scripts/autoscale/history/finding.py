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
from scheduler_plugin.history.prometheus.questions import PrometheusHistory
from scheduler_plugin.history.sqlite.questions import SqliteHistory
from scripts.autoscale.clusters import ClusterFlags, known_folder, local_folder

FILE: Final = "history.sqlite"
_PATIENCE: Final = 120.0
"""Seconds that Prometheus may take for a week of many VMs."""


def history_path(flags: ClusterFlags, *, records: bool = False) -> Path:
    """The file: a local cluster's in its folder, so that it is deleted with it; any other one's in a folder for all.

    The cluster is chosen as ``find_cluster`` chooses it, but it need not answer. Without ``records`` a local cluster
    that does not run any more is meant too, if nothing is kept of kubectl's. Raises ``CredentialsError``.
    """
    folder = ClusterFolder.of(flags.local_name)
    # A name needs no kubeconfig: the folder remains while the cluster is down.
    if flags.name and not flags.of_kubectl:
        return folder.root / FILE
    if not flags.of_kubectl and (running := local_folder(flags)) is not None:
        return running.root / FILE
    paths = flags.kubeconfigs()
    try:
        login = login_of(paths, flags.context)
    except CredentialsError:
        # The identity can still be made of the files' paths, so that the history of a cluster that is gone is
        # readable.
        login = None
    if (recorded_folder := known_folder(paths, login)) is not None or not paths:
        return (recorded_folder or folder).root / FILE
    # A hash, since addresses have characters that file names cannot have.
    digest = sha256(_identity(paths, login, flags.context).encode()).hexdigest()[:16]
    path = clusters_root().parent / "autoscale-histories" / digest / FILE
    # A reader who names no cluster may mean the local one that does not run any more; a recorder never does.
    is_of_old = not records and not flags.of_kubectl and folder.exists() and not path.exists()
    return folder.root / FILE if is_of_old else path


def period_since(since: str) -> Period:
    """The period from ``since`` ago until now. Raises ``DurationError``."""
    span = parse_duration(since)
    if not span:
        raise DurationError("expected a duration above zero")
    until = round(time.time() * SECOND)
    return Period(until - round(span * SECOND), until)


def local_of(path: Path) -> str:
    """The name of the local cluster whose history is at that path; empty if it is another cluster's."""
    return path.parent.name if path.parent.parent == clusters_root() else ""


def context_name(flags: ClusterFlags) -> str:
    """The name of the context that is meant; that of the kubeconfig if it has none."""
    paths = flags.kubeconfigs()
    if flags.context or not paths:
        return flags.context
    try:
        name = current_context(read_kubeconfigs(paths))
    except (CredentialsError, KubeconfigError):
        name = ""
    return name or os.pathsep.join(map(str, paths))


def _identity(paths: Sequence[Path], login: Login | None, context: str) -> str:
    """Identity of a cluster, whatever its context is called and whichever is the current one."""
    if login is None:
        # The server is unknown, so files and context stand for it.
        return f"{os.pathsep.join(str(path.resolve()) for path in paths)}\0{context}"
    return "\0".join((login.server, login.server_name, login.authority.text, login.authority.path))


def a_url(given: str) -> str:
    """A callback of Typer that takes the address of a server, or nothing. Raises ``typer.BadParameter``."""
    try:
        # typer calls back for the default as well, which is empty.
        return given and server_url(given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@asynccontextmanager
async def opened_history(path: Path, prometheus: str = "") -> AsyncIterator[History]:
    """The history of the Prometheus at that address if one is given, else that of the file. Raises ``ProxyError``."""
    if not prometheus:
        yield SqliteHistory(path)
        return
    # With a transport of our own, httpx does not read proxies from the environment.
    transport = httpx.AsyncHTTPTransport(proxy=proxy_for(prometheus, os.environ) or None)
    async with httpx.AsyncClient(base_url=prometheus, timeout=_PATIENCE, transport=transport) as http:
        yield PrometheusHistory(http)
