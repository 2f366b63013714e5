"""``autoscale web``: the page of one cluster for browsers on this machine, with a recorder of its history."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import httpx2 as httpx
import typer
from rich.console import Console

from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import SystemClock
from protocol.runtime.error_groups import innermost
from protocol.runtime.kubernetes.http_api import HttpApi, http_client
from protocol.runtime.program import stop_on_signals
from protocol.runtime.serving.listeners import Listener, serve
from protocol.units import Seconds
from scheduler_plugin.dashboard.app import Dashboard
from scheduler_plugin.history.sqlite.queries import SqliteHistory
from scripts.autoscale.cluster_flags import cluster_command
from scripts.autoscale.clusters import ClusterFlags, ReachedCluster, find_cluster
from scripts.autoscale.history.finding import history_path
from scripts.autoscale.history.recording import recording, site_sources
from scripts.autoscale.site import Site, SiteError, open_site
from scripts.autoscale.terminal.printing import print_lines

PORT: Final = 10290
CONNECTIONS: Final = httpx.Limits(max_connections=32, max_keepalive_connections=8)
INTERVAL: Final = Seconds(10.0)
SHORT_INTERVAL: Final = Seconds(2.0)
"""Interval of recording; the short one is for commands that last only minutes."""

_LOGGERS: Final = ("autoscale", "uvicorn")


@dataclass(frozen=True, slots=True)
class LocalPage:
    """The page, which can be served once, on the listening socket ``sock``.

    Its recorder writes to ``history``, including the ``labels`` of VMs.
    """

    site: Site
    cluster: ReachedCluster
    history: Path
    sock: socket.socket
    console: Console
    interval: Seconds = INTERVAL
    labels: Sequence[str] = ()

    async def serve(self, stop: asyncio.Event) -> None:
        """Prints a link, and serves until ``stop``. Raises ``CredentialsError``."""
        path, port = self.history, self.sock.getsockname()[1]
        with self.sock, quiet_logs():
            async with AsyncExitStack() as context:
                credentials = self.cluster.credentials()
                http = await context.enter_async_context(http_client(credentials, CONNECTIONS, "autoscale-web"))
                api, clock, history = HttpApi(http, credentials.token), SystemClock(), SqliteHistory(path)
                sources = await context.enter_async_context(site_sources(self.site))
                dashboard = Dashboard(self.site.title, api, sources, clock, None, history, self.labels)
                # Recorded through the dashboard, so that the page also shows what agents tell the recorder.
                recorder = recording(
                    self.site.client.api, dashboard.sources, path, self.console, self.labels, self.interval
                )
                await context.enter_async_context(recorder)
                show_links(self.console, dashboard, port)
                async with background_jobs(dashboard.run()):
                    await serve([Listener("page", dashboard.app, f"127.0.0.1:{port}", sock=self.sock)], stop)


@asynccontextmanager
async def serving_page(site: Site, flags: ClusterFlags, console: Console) -> AsyncIterator[None]:
    """Serves a cluster's page within the context, at any free port if the default one is taken."""
    stop = asyncio.Event()

    async def serve_page() -> None:
        # Within the task, so that a failure ends only the page and not the command.
        cluster, history = find_cluster(flags), history_path(flags, records=True)
        await LocalPage(site, cluster, history, listen_anywhere(), console, SHORT_INTERVAL).serve(stop)

    serving = asyncio.create_task(serve_page())
    serving.add_done_callback(lambda task: _print_failure(console, task))
    try:
        yield
    finally:
        stop.set()
        # The callback has printed an error of the page, which must not fail the command.
        await asyncio.gather(serving, return_exceptions=True)


def listen(port: int) -> socket.socket:
    """Opens a listening socket on loopback; port 0 means any free port. Raises ``SiteError``."""
    try:
        # Loopback only: the page is for browsers on this machine, and has no TLS.
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        why = error.strerror or error
        raise SiteError(f"cannot listen on 127.0.0.1:{port}: {why}; choose another port with --port") from None


def listen_anywhere() -> socket.socket:
    """Listens on the default port, or else on any free one. Raises ``SiteError``."""
    try:
        return listen(PORT)
    except SiteError:
        return listen(0)


def show_links(console: Console, dashboard: Dashboard, port: int) -> None:
    """Prints a one-time login link, and a new one each time a link is used."""
    used = False

    def show(secret: str) -> None:
        nonlocal used
        title = "For another browser:" if used else "The page (this link works once):"
        console.print(f"{title} http://127.0.0.1:{port}/#token={secret}", soft_wrap=True, highlight=False)
        used = True

    dashboard.authenticator.on_link = show
    dashboard.authenticator.offer_link()


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Keeps the programs' log lines off the terminal within the context; the recorder prints its own warnings."""
    silent = logging.NullHandler()
    # Without any handler, Python prints warnings to stderr.
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(silent)
    try:
        yield
    finally:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(silent)


def _print_failure(console: Console, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        print_lines(console, [f"The page has failed: {innermost(error)}"])


@cluster_command()
async def web(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on localhost.")] = PORT,
    label: Annotated[list[str] | None, typer.Option(help="Also record this label of VMs; repeatable.")] = None,
    *,
    flags: ClusterFlags,
) -> int:
    """Serve the live page of a cluster to browsers on this machine, and record its history, until Ctrl-C."""
    cluster, history = find_cluster(flags), history_path(flags, records=True)
    async with open_site(cluster) as site:
        await LocalPage(site, cluster, history, listen(port), Console(), labels=label or []).serve(stop_on_signals())
    return 0
