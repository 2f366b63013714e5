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

from protocol.runtime.beside import beside
from protocol.runtime.clock import SystemClock
from protocol.runtime.error_groups import innermost
from protocol.runtime.kubernetes.http_api import HttpApi, http_client
from protocol.runtime.program import stop_on_signals
from protocol.runtime.serving.listeners import Listener, serve
from protocol.units import Seconds
from scheduler_plugin.dashboard.app import Dashboard
from scheduler_plugin.history.sqlite.questions import SqliteHistory
from scripts.autoscale.cluster_flags import of_a_cluster
from scripts.autoscale.clusters import ClusterFlags, ReachedCluster, find_cluster
from scripts.autoscale.history.finding import history_path
from scripts.autoscale.history.recording import recording, site_sources
from scripts.autoscale.site import Site, SiteError, open_site
from scripts.autoscale.terminal.printing import print_lines

PORT: Final = 10290
CONNECTIONS: Final = httpx.Limits(max_connections=32, max_keepalive_connections=8)
USUAL: Final = Seconds(10.0)
OFTEN: Final = Seconds(2.0)
"""Between two looks of the recorder; a command that lasts minutes looks often."""

_TALKATIVE: Final = ("autoscale", "uvicorn")


@dataclass(frozen=True, slots=True)
class LocalPage:
    """A page that can be served once: at ``sock``, which listens.

    Its recorder writes ``history``, and keeps the ``labels`` of VMs there.
    """

    site: Site
    cluster: ReachedCluster
    history: Path
    sock: socket.socket
    console: Console
    interval: Seconds = USUAL
    labels: Sequence[str] = ()

    async def serve(self, stop: asyncio.Event) -> None:
        """Prints a link and serves until ``stop``. Raises ``CredentialsError``."""
        path, port = self.history, self.sock.getsockname()[1]
        with self.sock, quiet_logs():
            async with AsyncExitStack() as context:
                credentials = self.cluster.credentials()
                http = await context.enter_async_context(http_client(credentials, CONNECTIONS, "autoscale-web"))
                api, clock, history = HttpApi(http, credentials.token), SystemClock(), SqliteHistory(path)
                sources = await context.enter_async_context(site_sources(self.site))
                dashboard = Dashboard(self.site.title, api, sources, clock, None, history, self.labels)
                # By way of the page, which shows what the recorder hears from agents, too.
                recorder = recording(
                    self.site.client.api, dashboard.sources, path, self.console, self.labels, self.interval
                )
                await context.enter_async_context(recorder)
                show_links(self.console, dashboard, port)
                async with beside(dashboard.run()):
                    await serve([Listener("page", dashboard.app, f"127.0.0.1:{port}", sock=self.sock)], stop)


@asynccontextmanager
async def page_beside(site: Site, flags: ClusterFlags, console: Console) -> AsyncIterator[None]:
    """The page of a cluster within the context; at any port if the usual one is taken."""
    stop = asyncio.Event()

    async def serve_beside() -> None:
        # Found within the task: if it fails, the page ends and the other command goes on.
        cluster, history = find_cluster(flags), history_path(flags, records=True)
        await LocalPage(site, cluster, history, listening_beside(), console, OFTEN).serve(stop)

    serving = asyncio.create_task(serve_beside())
    serving.add_done_callback(lambda task: _say_ended(console, task))
    try:
        yield
    finally:
        stop.set()
        # An error of the page was printed by its callback and must not fail the command.
        await asyncio.gather(serving, return_exceptions=True)


def listening(port: int) -> socket.socket:
    """A socket that listens on loopback; 0 is any port that is free. Raises ``SiteError``."""
    try:
        # Loopback alone: the page is for browsers on this machine, and has no TLS.
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        why = error.strerror or error
        raise SiteError(f"cannot listen on 127.0.0.1:{port}: {why}; choose another port with --port") from None


def listening_beside() -> socket.socket:
    """The usual port, else any that is free. Raises ``SiteError`` if there is none."""
    try:
        return listening(PORT)
    except SiteError:
        return listening(0)


def show_links(console: Console, dashboard: Dashboard, port: int) -> None:
    """Prints a link now, and the next one whenever one was used: each opens one browser."""
    used = False

    def show(secret: str) -> None:
        nonlocal used
        title = "For another browser:" if used else "The page (this link opens it once):"
        console.print(f"{title} http://127.0.0.1:{port}/#token={secret}", soft_wrap=True, highlight=False)
        used = True

    dashboard.authenticator.on_link = show
    # A link is used up by the browser that opens it, so each use offers the next one.
    dashboard.authenticator.offer_link()


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Within the context the programs' logs say nothing on a person's terminal; a recorder's warnings are printed."""
    silent = logging.NullHandler()
    # Without any handler Python prints warnings to stderr by itself.
    for name in _TALKATIVE:
        logging.getLogger(name).addHandler(silent)
    try:
        yield
    finally:
        for name in _TALKATIVE:
            logging.getLogger(name).removeHandler(silent)


def _say_ended(console: Console, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        print_lines(console, [f"The page has ended: {innermost(error)}"])


@of_a_cluster()
async def web(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on localhost.")] = PORT,
    label: Annotated[list[str] | None, typer.Option(help="Also record this label; repeatable.")] = None,
    *,
    flags: ClusterFlags,
) -> int:
    """Serve the live page of a cluster to browsers on this machine, and record its history, until Ctrl-C."""
    cluster, history = find_cluster(flags), history_path(flags, records=True)
    async with open_site(cluster) as site:
        await LocalPage(site, cluster, history, listening(port), Console(), labels=label or []).serve(stop_on_signals())
    return 0
