"""Latency of permits with a real API server (token reviews and writes), and start-up time in a large cluster."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Final

from rich.table import Table

from protocol.kubernetes.objects import Json
from protocol.kubernetes.pages import read_page
from protocol.kubernetes.resources import MERGE_PATCH, PODS, VIRTUAL_MACHINES
from scripts.bench.kubernetes.bulk_client import BulkClient
from scripts.bench.kubernetes.control_plane import AGENTS_PORT, Plane
from scripts.bench.kubernetes.fake_objects import NAMESPACE, SIZES, vm_name
from scripts.bench.kubernetes.speed_figures import INCREASE, WRITE, Start, permit_table
from scripts.bench.load_client import Connection, http_request, timed
from scripts.process_costs import cpu_of, load_of_machine, memory_of

VMS: Final = 400
NODES: Final = 20
_AT_ONCE: Final = 8
_TURNS: Final = 3


async def measure_permits(plane: Plane, bulk: BulkClient) -> Table:
    """Measure latencies of permits. Raises ``BenchError``."""
    await bulk.make_nodes(range(NODES))
    pods = await bulk.make_pods(await bulk.make_vms(range(VMS)), NODES)
    # Each agent has its own token, so that all first requests need a review.
    tokens = await bulk.agent_tokens(pods)

    async def ours() -> Connection:
        return Connection(*await asyncio.open_connection("127.0.0.1", AGENTS_PORT))

    async with plane.service():
        load = load_of_machine()
        # Unchanged sizes; the first requests need token reviews.
        first = await timed(ours, _requests(tokens, lambda use: use), _AT_ONCE)
        unchanged = await timed(ours, _requests(tokens, lambda use: use), _AT_ONCE)
        increase, write = [], []
        # Increases are stored before the response. They alternate with plain patches of the same VMs.
        for turn in range(1, _TURNS + 1):
            increase += await timed(ours, _requests(tokens, lambda use, more=turn: use + more), _AT_ONCE)  # type: ignore[misc]
            write += await timed(bulk.connect, [_patch(bulk, number, turn) for number in tokens], _AT_ONCE)
    latencies = {"first contact": first, INCREASE: increase, "unchanged": unchanged, WRITE: write}
    return permit_table(latencies, _AT_ONCE, load)


def _requests(tokens: dict[int, str], size: Callable[[int], int]) -> list[bytes]:
    """A request of each agent; ``size`` maps the VM's size to the requested one, in compute units."""
    return [_request(number, token, size(SIZES[number % len(SIZES)])) for number, token in tokens.items()]


def _request(number: int, token: str, units: int) -> bytes:
    body = {
        "protoVersion": 4,
        "pod": {"namespace": NAMESPACE, "name": vm_name(number)},
        "resources": {"vCPUs": f"{units * 500}m", "mem": units},
        "lastPermit": None,
        "metrics": {"loadAvg1M": 0.7, "loadAvg5M": 0.5, "memoryUsageBytes": 1e8},
    }
    return http_request("POST", "/", token, json.dumps(body).encode())


def _patch(bulk: BulkClient, number: int, turn: int) -> bytes:
    """A patch as large as that of a permit, with other annotations."""
    permit = json.dumps({"cpu": f"{turn * 500}m", "mem": f"{turn * 128}Mi"})
    body: Json = {"metadata": {"annotations": {"bench/permit": permit, "bench/permit-writer": "bench-0123abcd"}}}
    return bulk.request("PATCH", VIRTUAL_MACHINES.path(NAMESPACE, vm_name(number)), body, MERGE_PATCH)


_VMS_PER_NODE: Final = 20
_TIMES: Final = 3
_PAGE: Final = 500


async def measure_start(plane: Plane, bulk: BulkClient, vms: int) -> Start:
    """Measure the scheduler's start with ``vms`` VMs in bound pods; return the median. Raises ``BenchError``."""
    nodes = max(1, vms // _VMS_PER_NODE)
    await bulk.make_nodes(range(nodes))
    await bulk.make_pods(await bulk.make_vms(range(vms)), nodes)
    starts = [await _start(plane, bulk, vms) for _ in range(_TIMES)]
    return sorted(starts, key=lambda start: start.seconds)[_TIMES // 2]


async def _start(plane: Plane, bulk: BulkClient, vms: int) -> Start:
    load, began = load_of_machine(), time.perf_counter()
    # Concurrently, like the scheduler.
    await asyncio.gather(_read(bulk, PODS.path()), _read(bulk, VIRTUAL_MACHINES.path()))
    reading = time.perf_counter() - began
    began = time.perf_counter()
    async with plane.service() as service:
        seconds = time.perf_counter() - began
        # At once, without the CPU time of later watch events.
        cpu, memory = cpu_of(service.pid), memory_of(service.pid)
    return Start(vms, seconds, reading, cpu, memory, load)


async def _read(bulk: BulkClient, path: str) -> None:
    """Read all pages of a list without decoding their objects."""
    connection, rest = await bulk.connect(), ""
    while True:
        query = f"?limit={_PAGE}" + (f"&continue={rest}" if rest else "")
        _, body = await connection.ask(bulk.request("GET", path + query, None, whole=True))
        rest = read_page(body).rest
        if not rest:
            connection.close()
            return
