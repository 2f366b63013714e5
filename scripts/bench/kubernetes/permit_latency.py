"""Agents ask for permits through the real API server: their tokens are reviewed and their permits written there."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Callable
from typing import Final

from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import MERGE_PATCH, VIRTUAL_MACHINES
from scripts.bench.kubernetes.bulk_client import BulkClient
from scripts.bench.kubernetes.made_objects import NAMESPACE, SIZES, vm_name
from scripts.bench.kubernetes.measured_plane import AGENTS_PORT, Plane
from scripts.bench.kubernetes.speed_figures import Latency, PermitLatencies
from scripts.bench.load_client import Connection, http_request, timed
from scripts.bench.process_costs import load_of_machine

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
