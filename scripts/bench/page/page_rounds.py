"""Rounds of a measurement: ``autoscale web`` as people start it, open pages, and a watch of our own beside them."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import httpx2 as httpx

from deploy.kube.client import ApiClient, client_from_kubeconfig
from deploy.kube.informer import Informer, ObjectChange
from deploy.local.cluster.control import ask_cluster
from deploy.local.cluster.folder import ClusterFolder
from protocol.kubernetes.objects import annotations_of
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.clock import SystemClock
from scheduler_plugin.dashboard.core.rows import Pair, vm_row
from scripts.bench.kubernetes.process_costs import cpu_of
from scripts.bench.load_client import BenchError
from scripts.bench.page.page_figures import PageLatency, followed
from scripts.bench.page.page_reader import PageReader

MARK: Final = "bench.autoscaling.neon.tech/at"
_LINK: Final = re.compile(rb"#token=(\S+)")
_PATIENCE: Final = 60.0
_LAST_SHOWN: Final = 2.0
"""Seconds that pages are given for what was stored at the end of a round."""


@dataclass(frozen=True, slots=True)
class PageRound:
    """One round: shares are of one core; ``latency`` is from a permit to its row at a page."""

    pages: int
    vms: int
    permits: int
    latency: PageLatency
    program: float
    scheduler: float
    kib_per_page: float


class _StoredChanges:
    """Changes that our own watch hears: each VM's permits, and marks that we wrote."""

    def __init__(self) -> None:
        self.permits: dict[str, list[tuple[float, Pair]]] = {}
        self.marked: dict[str, float] = {}
        self.vms = 0

    def heard(self, change: ObjectChange) -> None:
        """A VM has changed."""
        now = time.monotonic()
        self.vms += (change.after is not None) - (change.before is not None)
        if change.after is None:
            return
        row = vm_row(change.after)
        # The first sight of a VM is its state from before, not a change.
        if change.before is not None and vm_row(change.before).permit != row.permit:
            self.permits.setdefault(row.key, []).append((now, row.permit))
        if mark := annotations_of(change.after).get(MARK):
            self.marked.setdefault(mark, now)


class _Web:
    """``autoscale web`` in a process of its own, and the links that it prints."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.pid = process.pid
        self._process, self._port = process, port

    async def page(self) -> PageReader:
        """A page that is signed in by the next link."""
        if self._process.stdout is None:
            raise BenchError("the page's program was started without a pipe")
        async with asyncio.timeout(_PATIENCE):
            while line := await self._process.stdout.readline():
                if match := _LINK.search(line):
                    http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self._port}", trust_env=False)
                    return await PageReader.signed_in(http, match[1].decode())
        raise BenchError("autoscale web has ended")


@asynccontextmanager
async def _web(folder: ClusterFolder) -> AsyncIterator[_Web]:
    with socket.socket() as probe:
        # A free port; the program itself has no way to tell which one it chose.
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    code = "import sys; from scripts.autoscale.main import main; sys.exit(main())"
    arguments = ["web", "--name", folder.name, "--port", str(port)]
    process = await asyncio.create_subprocess_exec(
        # Unbuffered, so that its links arrive at once.
        sys.executable,
        "-u",
        "-c",
        code,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield _Web(process, port)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def measured(
    folder: ClusterFolder, seconds: float, settle: float, pages: list[int]
) -> tuple[list[PageRound], PageLatency]:
    """A round for each number of pages, and how long writes took to reach a watch. Raises ``BenchError``."""
    stored = _StoredChanges()
    scheduler = await _scheduler(folder)
    async with client_from_kubeconfig(folder.kubeconfig) as client, asyncio.TaskGroup() as tasks:
        informer = Informer(client, VIRTUAL_MACHINES, SystemClock())
        informer.listen(stored.heard)
        background = [tasks.create_task(informer.run())]
        await informer.synced.wait()
        async with _web(folder) as web:
            await asyncio.sleep(settle)
            rounds = [await _round(web, stored, scheduler, count, seconds) for count in pages]
        writes = await _writes(client, informer, stored)
        for task in background:
            task.cancel()
    return rounds, writes


async def _scheduler(folder: ClusterFolder) -> int:
    pids = [part.pid for part in (await ask_cluster(folder, "status")).parts if part.name == "scheduler"]
    if not pids:
        raise BenchError("the cluster has no scheduler")
    return pids[0]


async def _round(web: _Web, stored: _StoredChanges, scheduler: int, count: int, seconds: float) -> PageRound:
    async with asyncio.TaskGroup() as tasks:
        pages = [await web.page() for _ in range(count)] if count else []
        opened = [asyncio.Event() for _ in pages]
        reading = [tasks.create_task(page.read(event.set)) for page, event in zip(pages, opened, strict=True)]
        for page_opened in opened:
            await page_opened.wait()
        await asyncio.sleep(1.0)
        # What came while pages were opened is no part of the round.
        stored.permits.clear()
        sent, began, before = sum(page.bytes for page in pages), time.monotonic(), (cpu_of(web.pid), cpu_of(scheduler))
        await asyncio.sleep(seconds)
        lasted = time.monotonic() - began
        shares = [(now - then) / lasted for now, then in zip((cpu_of(web.pid), cpu_of(scheduler)), before, strict=True)]
        permits = {vm: list(changes) for vm, changes in stored.permits.items()}
        received = sum(page.bytes for page in pages) - sent
        await asyncio.sleep(_LAST_SHOWN)
        for task in reading:
            task.cancel()
    spans = [followed(permits, page.shown) for page in pages]
    latency = PageLatency.of([span for delays, _ in spans for span in delays], sum(lost for _, lost in spans))
    kib = received / 1024 / lasted / max(1, count)
    return PageRound(count, stored.vms, sum(map(len, permits.values())), latency, shares[0], shares[1], kib)


async def _writes(client: ApiClient, informer: Informer, stored: _StoredChanges, count: int = 30) -> PageLatency:
    """From before a write until our watch hears of it: what comes before the time that ``followed`` measures."""
    names: list[ObjectName] = list(informer.objects)[:count]
    begun: dict[str, float] = {}
    for number, name in enumerate(names):
        # Unique, so that marks of an earlier run are not taken for ours.
        mark = f"{time.time_ns()}-{number}"
        begun[mark] = time.monotonic()
        await client.merge_patch(VIRTUAL_MACHINES, name, {"metadata": {"annotations": {MARK: mark}}})
        # One after the other: a burst would measure the queue instead.
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
    lost = len(begun.keys() - stored.marked.keys())
    return PageLatency.of([stored.marked[mark] - at for mark, at in begun.items() if mark in stored.marked], lost)
