"""Debian's Chromium, driven by Playwright, on a page that is served in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, BrowserContext, CDPSession, ConsoleMessage, Request, async_playwright
from playwright.async_api import Page as Tab
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.serving.listeners import Listener, Server
from scheduler_plugin.dashboard.app import Dashboard
from scheduler_plugin.dashboard.reviews import ApiAccessReviewer
from scheduler_plugin.history.ports import History
from tests.scheduler_plugin.dashboard.page_cluster import PageCluster, Told

CHROMIUM: Final = "/usr/bin/chromium"
FLAGS: Final = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE: Final = 60_000
"""Milliseconds."""
AXE: Final = Path(__file__).parent / "vendor" / "axe.min.js"


@dataclass(slots=True)
class Served:
    """One page's program that listens."""

    cluster: PageCluster
    told: Told
    dashboard: Dashboard
    links: list[str]
    asked: list[str] = field(default_factory=list)
    """The paths of all requests, those too that a browser tells no page of."""
    port: int = 0
    prefix: str = ""
    """The path below which the page is, as behind a proxy that takes it away."""
    server: Server | None = None
    serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}/"

    async def start(self) -> None:
        """Listens, on the port of before if there was one."""

        async def noting(scope: Scope, receive: Receive, send: Send) -> None:
            self.asked.append(scope["path"])
            if not scope["path"].startswith(f"{self.prefix}/"):
                await PlainTextResponse("another program\n", 404)(scope, receive, send)
                return
            path = scope["path"].removeprefix(self.prefix)
            await self.dashboard.app({**scope, "path": path, "raw_path": path.encode()}, receive, send)

        self.server = Listener("page", noting, f"127.0.0.1:{self.port}").server()
        self.serving = asyncio.create_task(self.server.serve())
        while not self.server.started:
            assert not self.serving.done(), f"port {self.port} cannot be listened at"
            await asyncio.sleep(0.01)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self.server is not None and self.serving is not None:
            self.server.end()
            await self.serving


def link(run: Served) -> str:
    """The page's address with the token of the last start."""
    return f"{run.url}#token={run.links[-1]}"


@asynccontextmanager
async def served(
    cluster: PageCluster,
    told: Told,
    *,
    on_a_cluster: bool = False,
    history: History | None = None,
    clock: Clock | None = None,
    is_read: bool = True,
    prefix: str = "",
) -> AsyncIterator[Served]:
    """A page's program that listens, once it has read its cluster; at once unless ``is_read``."""
    clock, judge = clock or SystemClock(), ApiAccessReviewer(cluster) if on_a_cluster else None
    dashboard = Dashboard("sample fleet", cluster, told, clock, judge, history)
    found = Served(cluster, told, dashboard, [], prefix=prefix)
    dashboard.authenticator.on_link = found.links.append
    if not on_a_cluster:
        dashboard.authenticator.offer_link()
    logging.getLogger("autoscale").setLevel(logging.ERROR)
    running = asyncio.create_task(dashboard.run())
    if is_read:
        await dashboard.fleet.synced.wait()
        await dashboard.fleet.poll()
    await found.start()
    try:
        yield found
    finally:
        await found.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@dataclass
class Visit:
    """A tab, and its errors."""

    tab: Tab
    context: BrowserContext
    origin: str
    complaints: list[str] = field(default_factory=list)
    measured: CDPSession | None = None

    def heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)

    def asked(self, request: Request) -> None:
        """No request may leave the page's origin."""
        if not request.url.startswith(self.origin):
            self.complaints.append(f"asked {request.url}")

    async def shows(self, text: str) -> None:
        """Returns once the page shows ``text``."""
        await self.tab.get_by_text(text).first.wait_for(timeout=PATIENCE)

    async def worked(self) -> float:
        """Seconds of CPU that the page's thread has taken since it was first asked, whatever else the machine does."""
        if self.measured is None:
            self.measured = await self.context.new_cdp_session(self.tab)
            await self.measured.send("Performance.enable", {"timeDomain": "threadTicks"})
        told = await self.measured.send("Performance.getMetrics")
        return float({each["name"]: each["value"] for each in told["metrics"]}["TaskDuration"])

    async def violations(self) -> list[str]:
        """Violations that axe finds on the page."""
        await self.tab.evaluate(AXE.read_text())
        found: Any = await self.tab.evaluate("axe.run()")
        return [f"{each['id']}: {node['target']}" for each in found["violations"] for node in each["nodes"]]


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    async with async_playwright() as programs:
        browser = await programs.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def visit(
    browser: Browser, url: str, width: int = 1360, height: int = 800, at: datetime | None = None, **options: Any
) -> AsyncIterator[Visit]:
    """A tab on ``url``; no request may leave the page's origin. ``at`` is what its calendar says all the time."""
    context = await browser.new_context(viewport={"width": width, "height": height}, **options)
    if at is not None:
        await context.clock.set_fixed_time(at)
    tab = await context.new_page()
    found = Visit(tab, context, "/".join(url.split("/")[:3]))
    tab.on("console", found.heard)
    tab.on("pageerror", lambda error: found.complaints.append(str(error)))
    tab.on("dialog", lambda dialog: found.complaints.append(f"dialog: {dialog.message}"))
    tab.on("request", found.asked)
    await tab.goto(url)
    try:
        yield found
    finally:
        await context.close()
