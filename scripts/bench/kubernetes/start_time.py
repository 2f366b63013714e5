"""The start of the service in a cluster with many VMs: until it is ready, and its cost until then."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from protocol.kubernetes.pages import read_page
from protocol.kubernetes.resources import PODS, VIRTUAL_MACHINES
from scripts.bench.kubernetes.bulk_client import BulkClient
from scripts.bench.kubernetes.measured_plane import Plane
from scripts.bench.kubernetes.speed_figures import Start
from scripts.bench.process_costs import cpu_of, load_of_machine, memory_of

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
