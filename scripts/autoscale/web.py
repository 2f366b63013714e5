"""``autoscale web``: the page of a cluster, on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

import httpx
import typer
from rich.console import Console

from deploy.kube.client import ApiError, ApiUnavailableError
from deploy.local.cluster.folder import ClusterFolder
from protocol.kubernetes.objects import Json, JsonObject, name_of, text
from protocol.kubernetes.resources import PODS
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.credentials import from_kubeconfig
from scheduler_plugin.cluster.http_api import HttpApi, http_client
from scheduler_plugin.dashboard.app import Dashboard, assemble
from scheduler_plugin.history.sqlite.questions import SqliteHistory
from scheduler_plugin.program import stop_on_signals
from scheduler_plugin.web.serving import Listener, ListenError, serve
from scripts.autoscale.clusters import Context, Kubeconfig, usual_kubeconfig
from scripts.autoscale.history.finding import history_path
from scripts.autoscale.history.recording import recording
from scripts.autoscale.local import Name
from scripts.autoscale.running import run
from scripts.autoscale.site import NAME_LABEL, Site, SiteError, explanation, open_site

PORT: Final = 10290
CONNECTIONS: Final = httpx.Limits(max_connections=32, max_keepalive_connections=8)


def web(
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port on this machine's loopback.")] = PORT,
    name: Name = "local",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Serve the live page of a cluster to browsers on this machine, and record its history, until Ctrl-C."""
    run(_web(port, (name, kubeconfig, context)))


@asynccontextmanager
async def _api(name: str, kubeconfig: str, context: str) -> AsyncIterator[tuple[HttpApi, Clock]]:
    """The API of the cluster that ``open_site`` finds. Raises ``SiteError`` and ``CredentialsError``."""
    folder, clock = ClusterFolder.of(name), SystemClock()
    is_local = not kubeconfig and not context and folder.runs()
    path = folder.kubeconfig if is_local else Path(kubeconfig) if kubeconfig else usual_kubeconfig()
    if path is None:
        raise SiteError("no kubeconfig is given")
    found = from_kubeconfig(path, clock, context=context, plugins=True)
    async with http_client(found, CONNECTIONS, "autoscale-web") as http:
        yield HttpApi(http, found.token), clock


async def _web(port: int, where: tuple[str, str, str]) -> int:
    path = history_path(*where)
    async with open_site(*where) as site, _api(*where) as (api, clock), recording(site, path):
        dashboard = assemble(site.title, api, SiteSources(site), clock, None, SqliteHistory(path))
        show_links(Console(), dashboard, port)
        await serve_page(dashboard, port)
    return 0


def show_links(console: Console, dashboard: Dashboard, port: int) -> None:
    """Prints a link now, and the next one whenever one was used: each opens one browser."""
    used = False

    def show(secret: str) -> None:
        nonlocal used
        title = "For another browser:" if used else "The page (this link opens it once):"
        console.print(f"{title} http://127.0.0.1:{port}/#token={secret}", soft_wrap=True, highlight=False)
        used = True

    dashboard.doorman.on_link = show
    dashboard.doorman.offer_link()


async def serve_page(dashboard: Dashboard, port: int) -> None:
    """Serves it on loopback until a signal. Raises ``SiteError`` where the port is taken."""
    stop = stop_on_signals()
    try:
        async with asyncio.TaskGroup() as tasks:
            background = tasks.create_task(dashboard.run())
            await serve([Listener("page", dashboard.app, f"127.0.0.1:{port}")], stop)
            background.cancel()
    except* ListenError as errors:
        raise SiteError(f"{errors.exceptions[0]}; choose another port with --port") from None


class SiteSources:
    """What the page asks, by the ways that read-only commands have into a cluster."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def of_scheduler(self, path: str) -> Json | None:
        """See ``Sources``."""
        return await self._site.of_scheduler(path)

    async def of_groups(self, path: str) -> Json | None:
        """See ``Sources``."""
        return await self._site.of_groups(path)

    async def of_vm(self, vm: JsonObject) -> Json | None:
        """See ``Sources``."""
        try:
            own = await self._site.client.list(PODS, name_of(vm).namespace)
            agents = await self._site.client.list(PODS, label_selector=f"{NAME_LABEL}=autoscaling-agent")
        except (ApiError, ApiUnavailableError):
            return None
        pods = {text(each, "metadata", "name"): each for each in (*own.objects, *agents.objects)}
        return await explanation(self._site, dict(vm), pods)
