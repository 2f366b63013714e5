"""Permits through the real API server, which reviews tokens and stores permits; and the start in a large cluster."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from typing import Final

from protocol.kubernetes.objects import Json
from protocol.kubernetes.pages import read_page
from protocol.kubernetes.resources import MERGE_PATCH, PODS, VIRTUAL_MACHINES
from scripts.bench.kubernetes.bulk_client import BulkClient
from scripts.bench.kubernetes.made_objects import NAMESPACE, SIZES, vm_name
from scripts.bench.kubernetes.measured_plane import AGENTS_PORT, Plane
from scripts.bench.kubernetes.speed_figures import Latency, PermitLatencies, Start
from scripts.bench.load_client import Connection, http_request, timed
from scripts.process_costs import cpu_of, load_of_machine, memory_of

VMS: Final = 400
NODES: Final = 20
_AT_ONCE: Final = 8
_TURNS: Final = 3


async def measure_permits(plane: Plane, bulk: BulkClient) -> PermitLatencies:
    """The latencies of permits. Raises ``BenchError``."""
    await bulk.make_nodes(range(NODES))
    pods = await bulk.make_pods(await bulk.make_vms(range(VMS)), NODES)
    # Each VM's agent shows a token of its own, so that the first requests are all reviewed.
    tokens = await bulk.agent_tokens(pods)

    async def ours() -> Connection:
        return Connection(*await asyncio.open_connection("127.0.0.1", AGENTS_PORT))

    async with plane.service():
        load = load_of_machine()
        # The first requests change nothing either, but no token has been reviewed before them.
        first = await timed(ours, _asked(tokens, lambda use: use), _AT_ONCE)
        unchanged = await timed(ours, _asked(tokens, lambda use: use), _AT_ONCE)
        increase, write = [], []
        # An increase is written before it is answered. A bare patch of the same VMs alternates with it.
        for turn in range(1, _TURNS + 1):
            increase += await timed(ours, _asked(tokens, lambda use, more=turn: use + more), _AT_ONCE)  # type: ignore[misc]
            write += await timed(bulk.connect, [_patch(bulk, number, turn) for number in tokens], _AT_ONCE)
    return PermitLatencies(
        agents=_AT_ONCE,
        first=Latency.of(first),
        increase=Latency.of(increase),
        unchanged=Latency.of(unchanged),
        write=Latency.of(write),
        ratio=round(statistics.median(increase) / statistics.median(write), 2),
        load=load,
    )


def _asked(tokens: dict[int, str], size: Callable[[int], int]) -> list[bytes]:
    """A request of each agent; ``size`` makes what it asks for of what its VM uses, in compute units."""
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
    """As much as the service writes of a permit, under names of our own."""
    permit = json.dumps({"cpu": f"{turn * 500}m", "mem": f"{turn * 128}Mi"})
    body: Json = {"metadata": {"annotations": {"bench/permit": permit, "bench/permit-writer": "bench-0123abcd"}}}
    return bulk.request("PATCH", VIRTUAL_MACHINES.path(NAMESPACE, vm_name(number)), body, MERGE_PATCH)


_VMS_PER_NODE: Final = 20
_TIMES: Final = 3
_PAGE: Final = 500


async def measure_start(plane: Plane, bulk: BulkClient, vms: int) -> Start:
    """The median of some starts with this many VMs, each in a pod that is bound. Raises ``BenchError``."""
    nodes = max(1, vms // _VMS_PER_NODE)
    await bulk.make_nodes(range(nodes))
    await bulk.make_pods(await bulk.make_vms(range(vms)), nodes)
    starts = [await _start(plane, bulk, vms) for _ in range(_TIMES)]
    return sorted(starts, key=lambda start: start.seconds)[_TIMES // 2]


async def _start(plane: Plane, bulk: BulkClient, vms: int) -> Start:
    load, began = load_of_machine(), time.perf_counter()
    # At once, as the service reads them.
    await asyncio.gather(_read(bulk, PODS.path()), _read(bulk, VIRTUAL_MACHINES.path()))
    reading = time.perf_counter() - began
    began = time.perf_counter()
    async with plane.service() as service:
        seconds = time.perf_counter() - began
        # Right after it is ready: later the CPU time of following the cluster would be in it.
        cpu, memory = cpu_of(service.pid), memory_of(service.pid)
    return Start(
        vms=vms,
        seconds=round(seconds, 3),
        reading=round(reading, 3),
        ratio=round(seconds / reading, 2),
        cpu_seconds=round(cpu, 2),
        memory_mib=round(memory, 1),
        load=load,
    )


async def _read(bulk: BulkClient, path: str) -> None:
    """Reads all pages of a list, and nothing in them but where the next one begins."""
    connection, rest = await bulk.connect(), ""
    while True:
        query = f"?limit={_PAGE}" + (f"&continue={rest}" if rest else "")
        _, body = await connection.ask(bulk.request("GET", path + query, None, whole=True))
        rest = read_page(body).rest
        if not rest:
            connection.close()
            return
