"""Latency of permits with a real API server (token reviews and writes), and startup time in a large cluster."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from rich.table import Table

from protocol.kubernetes.objects import Json
from protocol.kubernetes.pages import read_page
from protocol.kubernetes.resources import MERGE_PATCH, PODS, VIRTUAL_MACHINES
from protocol.runtime.keep_alive import open_connection
from scripts.bench.kubernetes.bulk_client import BulkClient
from scripts.bench.kubernetes.control_plane import AGENTS_PORT, ControlPlane
from scripts.bench.kubernetes.fake_objects import NAMESPACE, SIZES, vm_name
from scripts.bench.kubernetes.speed_figures import INCREASE, WRITE, Start, permit_table
from scripts.bench.load_client import http_request, measure_latencies, response_to
from scripts.process_costs import cpu_of, load_of_machine, memory_of

VMS: Final = 400
NODES: Final = 20
_CONCURRENCY: Final = 8
_ROUNDS: Final = 3


async def measure_permits(plane: ControlPlane, bulk: BulkClient) -> Table:
    """Measure latencies of permits. Raises ``BenchError``."""
    await bulk.create_nodes(range(NODES))
    pods = await bulk.create_pods(await bulk.create_vms(range(VMS)), NODES)
    # One token per agent, so that every first request needs a review.
    tokens = await bulk.agent_tokens(pods)

    connect_agent = partial(open_connection, "127.0.0.1", AGENTS_PORT)
    async with plane.service():
        load = load_of_machine()
        # The first requests need token reviews.
        first = await measure_latencies(connect_agent, _requests(tokens, lambda use: use), _CONCURRENCY)
        unchanged = await measure_latencies(connect_agent, _requests(tokens, lambda use: use), _CONCURRENCY)
        increase, write = [], []
        # The scheduler stores an increase before it responds. Compare with plain patches of the same VMs.
        for extra in range(1, _ROUNDS + 1):
            larger = _requests(tokens, lambda use, more=extra: use + more)  # type: ignore[misc]
            increase += await measure_latencies(connect_agent, larger, _CONCURRENCY)
            write += await measure_latencies(
                bulk.connect, [_patch(bulk, number, extra) for number in tokens], _CONCURRENCY
            )
    latencies = {"first request": first, INCREASE: increase, "unchanged": unchanged, WRITE: write}
    return permit_table(latencies, _CONCURRENCY, load)


def _requests(tokens: dict[int, str], size: Callable[[int], int]) -> list[bytes]:
    """One request per agent; ``size`` maps the VM's size to the requested size, in compute units."""
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


def _patch(bulk: BulkClient, number: int, extra: int) -> bytes:
    """A patch as large as a permit's, but of other annotations."""
    permit = json.dumps({"cpu": f"{extra * 500}m", "mem": f"{extra * 128}Mi"})
    body: Json = {"metadata": {"annotations": {"bench/permit": permit, "bench/permit-writer": "bench-0123abcd"}}}
    return bulk.request("PATCH", VIRTUAL_MACHINES.path(NAMESPACE, vm_name(number)), body, MERGE_PATCH)


_VMS_PER_NODE: Final = 20
_STARTS: Final = 3
_PAGE: Final = 500


async def measure_start(plane: ControlPlane, bulk: BulkClient, vms: int) -> Start:
    """Start the scheduler several times with ``vms`` VMs in bound pods; return the median. Raises ``BenchError``."""
    nodes = max(1, vms // _VMS_PER_NODE)
    await bulk.create_nodes(range(nodes))
    await bulk.create_pods(await bulk.create_vms(range(vms)), nodes)
    starts = [await _start(plane, bulk, vms) for _ in range(_STARTS)]
    return sorted(starts, key=lambda start: start.seconds)[_STARTS // 2]


async def _start(plane: ControlPlane, bulk: BulkClient, vms: int) -> Start:
    load, began = load_of_machine(), time.perf_counter()
    # Concurrently, as the scheduler does.
    await asyncio.gather(_list_all(bulk, PODS.path()), _list_all(bulk, VIRTUAL_MACHINES.path()))
    list_seconds = time.perf_counter() - began
    began = time.perf_counter()
    async with plane.service() as service:
        seconds = time.perf_counter() - began
        # Read now, to exclude the CPU time of later watch events.
        cpu, memory = cpu_of(service.pid), memory_of(service.pid)
    return Start(vms, seconds, list_seconds, cpu, memory, load)


async def _list_all(bulk: BulkClient, path: str) -> None:
    """Read all pages of a list without decoding the objects."""
    connection, token = await bulk.connect(), ""
    while True:
        query = f"?limit={_PAGE}" + (f"&continue={token}" if token else "")
        token = read_page(
            await response_to(connection, bulk.request("GET", path + query, None, whole=True))
        ).continue_token
        if not token:
            connection.close()
            return
