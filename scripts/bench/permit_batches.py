"""The permits of a node's VMs in one message beside one message for each: CPU of scheduler and agent.

Both sides are ours. The agent's side is its own client over real sockets; its decisions are not part of the figures.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from agent.adapters.node_scheduler import NodeScheduler
from agent.adapters.scheduler_client import HttpScheduler
from agent.adapters.scheduler_line import SchedulerLine
from agent.adapters.token import AgentToken
from agent.app import no_authorities, plain_pool
from agent.ports import SchedulerClient
from protocol.messages import AgentRequest, Metrics, ObjectName
from protocol.runtime.clock import SystemClock
from protocol.units import Bytes, Resources, Seconds
from protocol.wire.wire_batches import PATH
from scripts.bench.load_client import Prepared, ServedLoad, post, serving, timed, wait_until_answered
from scripts.bench.service_bench import BenchPair
from scripts.bench.static_cluster import VMS_PER_NODE, node_name, node_token, vm_name

NODES: Final = 500
ROUNDS: Final = 5
AGENT_ROUNDS: Final = 20
SLOT: Final = Bytes.parse("1Gi")
HAS: Final = Resources.parse(1, "4Gi")
# The scheduler takes a message with a lower sequence number for a late one. Agents begin with the wall clock, too.
NUMBERS: Final = count(time.time_ns())


def _body(vm: int, *, is_grown: bool) -> dict[str, object]:
    vcpus, mem = ("1250m", 5) if is_grown else (1, 4)
    return {
        "protoVersion": 4,
        "pod": {"namespace": "default", "name": vm_name(vm)},
        "resources": {"vCPUs": vcpus, "mem": mem},
        "lastPermit": {"vCPUs": 1, "mem": 4},
        "metrics": {"loadAvg1M": 0.7, "loadAvg5M": 0.5, "memoryUsageBytes": 2e9},
    }


def _of_node(node: int, at: int) -> list[dict[str, object]]:
    """Requests of a node's VMs: in every other round one of them has grown and asks for more."""
    first = node * VMS_PER_NODE
    return [_body(first + n, is_grown=n == node % VMS_PER_NODE and at % 2 == 1) for n in range(VMS_PER_NODE)]


def _alone(at: int) -> list[Prepared]:
    return [
        post("/", json.dumps(body).encode(), token=node_token(node_name(node)))
        for node in range(NODES)
        for body in _of_node(node, at)
    ]


def _together(at: int) -> list[Prepared]:
    return [
        post(PATH, json.dumps(_of_node(node, at)).encode(), token=node_token(node_name(node))) for node in range(NODES)
    ]


async def _schedulers_cpu(served: ServedLoad, requests: list[Prepared]) -> float:
    """The scheduler's CPU for a permit, in milliseconds."""
    began = served.cpu()
    await timed(served, requests, 8)
    return (served.cpu() - began) * 1000 / (NODES * VMS_PER_NODE)


def _request(vm: int) -> AgentRequest:
    metrics = Metrics(0.7, 0.5, Bytes(2_000_000_000))
    return AgentRequest(ObjectName("default", vm_name(vm)), HAS, HAS, metrics=metrics, sequence=next(NUMBERS))


async def _agents_cpu(client: SchedulerClient) -> float:
    """The agent's CPU for a permit, in milliseconds; it asks for all VMs of its node again and again."""
    began = time.process_time()
    for _ in range(AGENT_ROUNDS):
        # Concurrently, as a node's agent does: only such requests share a message.
        await asyncio.gather(*(client.ask(_request(vm), SLOT) for vm in range(VMS_PER_NODE)))
    return (time.process_time() - began) * 1000 / (AGENT_ROUNDS * VMS_PER_NODE)


@asynccontextmanager
async def _clients(served: ServedLoad) -> AsyncIterator[tuple[HttpScheduler, NodeScheduler]]:
    url = f"http://127.0.0.1:{served.port}"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "token"
        path.write_text(node_token(node_name(0)))
        identity = AgentToken(path)
        async with plain_pool(no_authorities()) as pool:
            alone = HttpScheduler(pool, url, identity, Seconds(5.0))
            together = NodeScheduler(alone, SchedulerLine(url, no_authorities(), identity, Seconds(5.0)), SystemClock())
            running = asyncio.create_task(together.run())
            # The first request opens the connection and learns that the scheduler takes batches.
            await together.ask(_request(0), SLOT)
            yield alone, together
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def _pair(
    name: str, ours: Callable[[int], Awaitable[float]], other: Callable[[int], Awaitable[float]]
) -> BenchPair:
    """Alternating rounds; the first two are a warm-up and do not count."""
    pairs = [(await ours(at), await other(at)) for at in range(ROUNDS + 2)][2:]
    mine, theirs = zip(*pairs, strict=True)
    ratio = statistics.median(a / b for a, b in pairs)
    return BenchPair(name, statistics.median(mine), statistics.median(theirs), "ms", ratio)


async def batches() -> list[BenchPair]:
    """CPU for a permit, of all VMs of a node in one message beside one message for each."""
    async with serving("agents", nodes=NODES, vms=NODES * VMS_PER_NODE) as served:
        await wait_until_answered(served, _alone(0)[0], b'"permit"')
        scheduler = await _pair(
            f"the scheduler's CPU for a permit, {VMS_PER_NODE} in a message",
            lambda at: _schedulers_cpu(served, _together(at)),
            lambda at: _schedulers_cpu(served, _alone(at)),
        )
        async with _clients(served) as (alone, together):
            agent = await _pair(
                f"the agent's CPU for a permit, {VMS_PER_NODE} in a message",
                lambda _: _agents_cpu(together),
                lambda _: _agents_cpu(alone),
            )
    return [scheduler, agent]
