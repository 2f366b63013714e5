"""Debian's Prometheus as a test process: its targets and its query results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx

from deploy.neonvm.network.sockets import free_port
from protocol.runtime.clock import SystemClock
from protocol.units import Seconds
from tests.deploy.monitoring.monitoring_files import RULES
from tests.plain_http import plain_client

PATIENCE = 180.0
QUESTION = 120.0  # as long as the command waits for one
PAUSE = Seconds(0.2)
CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    http: httpx.AsyncClient

    async def query(self, expression: str) -> list[Any]:
        """The series that an expression has now."""
        response = await self.http.get("/api/v1/query", params={"query": expression})
        answer = response.json()
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        return list(answer["data"]["result"])

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Returns once ``holds``. Raises ``TimeoutError``."""
        async with asyncio.timeout(PATIENCE):
            while not await holds():
                await CLOCK.sleep(PAUSE)


@asynccontextmanager
async def prometheus(folder: Path, targets: Mapping[str, str]) -> AsyncIterator[Prometheus]:
    """A server that scrapes ``targets``, ``HOST:PORT`` by pod, and evaluates our rules each second."""
    port = free_port()
    static = [{"targets": [where], "labels": {"pod": pod}} for pod, where in targets.items()]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in RULES],
        "scrape_configs": [{"job_name": "autoscale", "honor_labels": True, "static_configs": static}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        async with plain_client(base_url=f"http://127.0.0.1:{port}", timeout=QUESTION) as http:
            server = Prometheus(http)

            async def ready() -> bool:
                assert process.returncode is None, (folder / "prometheus.log").read_text()
                try:
                    return (await http.get("/-/ready")).status_code == httpx.codes.OK
                except httpx.TransportError:
                    return False

            await server.until(ready)
            yield server
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
