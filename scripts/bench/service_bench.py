"""The scheduler's two hot paths, in rounds that alternate with a handler that decides nothing.

The baseline reads and writes the same messages: it passes every node, scores each 0 and permits every request.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from scripts.bench.load_client import Prepared, ServedLoad, post, serving, timed, wait_until_answered
from scripts.bench.static_cluster import VMS_PER_NODE, node_name, pod, token_of, vm_name

ROUNDS: Final = 5
PERMIT_VMS: Final = 10_000
PERMIT_CONNECTIONS: Final = 32
PERMITS_PER_ROUND: Final = 2_000
CYCLES: Final = {500: 40, 5_000: 10}
"""Scheduling cycles in a round, by the number of node names."""


@dataclass(frozen=True, slots=True)
class BenchPair:
    """A figure of ours beside the baseline's, in ``unit``; ``ratio`` is ours / baseline."""

    name: str
    ours: float
    baseline: float
    unit: str
    ratio: float


def _cycle(number: int, names: list[str]) -> list[Prepared]:
    """Filter, prioritize and bind for one pending pod, as kube-scheduler sends them."""
    args = json.dumps({"Pod": pod(number, None), "Nodes": None, "NodeNames": names}).encode()
    binding = {"PodName": vm_name(number), "PodNamespace": "default", "PodUID": f"p-{number}"}
    # Spread over the nodes, so that none fills up.
    bind = json.dumps({**binding, "Node": names[number % len(names)]}).encode()
    return [post("/filter", args), post("/prioritize", args), post("/bind", bind)]


@dataclass(frozen=True, slots=True)
class BenchRound:
    """A round against one server: the latency of each answer, the duration of the round, and what CPU its server took,
    in seconds.
    """

    times: list[float]
    wall: float
    cpu: float


async def _run_round(served: ServedLoad, requests: Sequence[Prepared], connections: int) -> BenchRound:
    began, cpu = time.perf_counter(), served.cpu()
    times = await timed(served, requests, connections)
    return BenchRound(times, time.perf_counter() - began, served.cpu() - cpu)


async def _paired(
    ours: ServedLoad, baseline: ServedLoad, rounds: Sequence[Sequence[Prepared]], connections: int
) -> list[tuple[BenchRound, BenchRound]]:
    """Each round against one, then the other; the first round is a warm-up and does not count."""
    measured = [
        (await _run_round(ours, requests, connections), await _run_round(baseline, requests, connections))
        for requests in rounds
    ]
    return measured[1:]


def _pair(
    name: str, unit: str, measured: Sequence[tuple[BenchRound, BenchRound]], figure: Callable[[BenchRound], float]
) -> BenchPair:
    mine, theirs = [figure(round_) for round_, _ in measured], [figure(round_) for _, round_ in measured]
    # Of consecutive rounds: the machine may be slower a minute later.
    ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
    return BenchPair(name, statistics.median(mine), statistics.median(theirs), unit, ratio)


async def extender(nodes: int) -> list[BenchPair]:
    """Filter + prioritize + bind at this many node names."""
    names = [node_name(number) for number in range(nodes)]
    cycles = CYCLES[nodes]
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(serving("extender", nodes=nodes, pending=cycles * (ROUNDS + 1)))
        empty = await stack.enter_async_context(serving("empty"))
        for served in (ours, empty):
            await wait_until_answered(served, _cycle(0, names[:1])[0], b'"Error":""')
        # Each cycle binds another pod: a pod can be bound only once.
        rounds = [
            [request for number in range(at * cycles, (at + 1) * cycles) for request in _cycle(number, names)]
            for at in range(ROUNDS + 1)
        ]
        measured = await _paired(ours, empty, rounds, 1)
    name = f"filter + prioritize + bind, {nodes} names"
    return [
        _pair(name, "ms", measured, lambda round_: sum(round_.times) / cycles * 1000),
        _pair(f"its slowest of {cycles}, {nodes} names", "ms", measured, lambda round_: max(_cycles(round_)) * 1000),
    ]


def _cycles(round_: BenchRound) -> list[float]:
    """The seconds of each cycle of a round over one connection."""
    return [sum(verbs) for verbs in zip(round_.times[::3], round_.times[1::3], round_.times[2::3], strict=True)]


def _request(number: int, vcpus: str | int, mem: int, sequence: int = 1) -> Prepared:
    body = {
        "protoVersion": 4,
        "pod": {"namespace": "default", "name": vm_name(number)},
        "resources": {"vCPUs": vcpus, "mem": mem},
        "lastPermit": {"vCPUs": 1, "mem": 4},
        "metrics": {"loadAvg1M": 0.7, "loadAvg5M": 0.5, "memoryUsageBytes": 2e9},
        "sequence": sequence,
    }
    return post("/", json.dumps(body).encode(), token=token_of(vm_name(number)))


def _mixed(at: int) -> list[Prepared]:
    """A round of permits: of ten requests eight change nothing, one grows its VM and one gives that back.

    The sequence number shows that the agent knows of the growth that it gives back, so the lower permit is written
    later.
    """
    first = at * PERMITS_PER_ROUND
    return [_of_ten(first + n - n % 10, n % 10, 2 + first + n) for n in range(PERMITS_PER_ROUND)]


def _of_ten(first: int, at: int, sequence: int) -> Prepared:
    """The request at that place of the ten that begin with the VM ``first``."""
    if at == 3:
        return _request((first + 3) % PERMIT_VMS, "1250m", 5, sequence)
    # Request 7 is for the VM of request 3, with its old size.
    return _request((first + (3 if at == 7 else at)) % PERMIT_VMS, 1, 4, sequence)


def _first(at: int) -> list[Prepared]:
    """A round of first requests, each by a VM that the scheduler has not heard of yet."""
    return [_request(at * PERMITS_PER_ROUND + n, 1, 4) for n in range(PERMITS_PER_ROUND)]


async def permits() -> list[BenchPair]:
    """Permits at 10,000 VMs: how many in a second, and how long the slowest hundredth takes.

    The first request of each VM is measured by itself: its token is reviewed and its permit written. From then on an
    agent asks every few seconds, while a token is reviewed once in a minute.
    """
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(serving("agents", nodes=PERMIT_VMS // VMS_PER_NODE, vms=PERMIT_VMS))
        empty = await stack.enter_async_context(serving("empty"))
        for served in (ours, empty):
            await wait_until_answered(served, _request(0, 1, 4), b'"permit"')
        first = [_first(at) for at in range(PERMIT_VMS // PERMITS_PER_ROUND)]
        contacts = await _paired(ours, empty, first, PERMIT_CONNECTIONS)
        measured = await _paired(ours, empty, [_mixed(at) for at in range(ROUNDS + 1)], PERMIT_CONNECTIONS)
    return [
        _pair("a permit at 10,000 VMs", "ms", measured, _each),
        _pair("p99 of a permit, 32 at once", "ms", measured, lambda round_: _p99(round_.times) * 1000),
        _pair("the first permit of a VM", "ms", contacts, _each),
        _pair("the server's CPU for a permit", "ms", measured, _cpu),
        _pair("the server's CPU for a first permit", "ms", contacts, _cpu),
    ]


def _each(round_: BenchRound) -> float:
    return round_.wall / PERMITS_PER_ROUND * 1000


def _cpu(round_: BenchRound) -> float:
    return round_.cpu / PERMITS_PER_ROUND * 1000


def _p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


def measure_services() -> list[BenchPair]:
    """All pairs, one after the other."""

    async def run() -> list[BenchPair]:
        return [*await extender(500), *await extender(5_000), *await permits()]

    return asyncio.run(run())
