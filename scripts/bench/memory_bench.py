"""``make bench-memory``: where the policy brings a VM whose database is in the page cache, beside every fixed size."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Annotated, Final

import typer
from rich.console import Console

from agent.config import read_policy
from agent.core.explain import explain
from agent.core.policy import Policy
from protocol.units import Bytes
from scripts.autoscale.demonstration.pgbench import Server, find_pgbench, prepare, run_pgbench, tps_of
from scripts.autoscale.running import run
from scripts.bench.memory_guest import MIB, MOST, Follower, MemoryGuest, memory_guest

_SCALE: Final = 10
"""150 MB of tables and indices: more than twice the guest's ``shared_buffers`` of 64 MB."""

_CLIENTS: Final = 4
_SPAN: Final = 25
_SIZES: Final = (640, 512, 384, 320, 256)

COMPRESSED: Final = """
smoothing: {memory: [hold: {window: 20s}]}
memory: {kernelAllowance: 64Mi, cache: {watch: 25s, retry: 5m, longest: 30m, idleAfter: 30s, remember: 2h,
  trickle: 64Ki, idleShare: 0.4}}
timing: {stale: 20s}
"""
"""The default policy with times that are about eight times shorter, for a slow disk.

Reading its metrics keeps an emulated guest busier than an idle one should be."""


def bench_memory(
    reads: Annotated[int, typer.Option(min=10, help="Reads a second that the guest's disk allows.")] = 60,
    load: Annotated[int, typer.Option(min=60, help="Seconds of load under the policy.")] = 240,
    idle: Annotated[int, typer.Option(min=30, help="Seconds without load after it.")] = 180,
) -> None:
    """Run pgbench read-only on fixed sizes, and then under the policy with compressed times.

    Exits 0 only if the policy came to rest at a size with 90 % of the best size's throughput, and gave memory back.
    """
    run(_bench(reads, load, idle))


async def _bench(reads: int, load: int, idle: int) -> int:
    console = Console(highlight=False)
    find_pgbench()
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as folder:
        async with memory_guest(Path(folder)) as guest:
            console.print(guest.description)
            server = Server("127.0.0.1", guest.port)
            await prepare(server, _SCALE)
            await guest.throttle(reads)
            best = await _fixed(guest, server, console.print)
            rest, tps, left = await _followed(guest, server, (load, idle), console.print)
    console.print(
        f"the policy came to rest at {rest} with {tps:.0f} tps: {tps / best:.0%} of the best size's {best:.0f}"
    )
    console.print(f"after {idle} s without load it had {left}")
    return 0 if tps >= 0.9 * best and left < rest else 1


async def _fixed(guest: MemoryGuest, server: Server, say: Callable[[str], None]) -> float:
    """The best throughput of all fixed sizes."""
    found: dict[int, float] = {}
    await _tps(server, _SPAN)
    for size in _SIZES:
        await guest.resize(Bytes(size * MIB))
        await _tps(server, _SPAN)
        found[size] = mean(await _tps(server, _SPAN))
        say(f"{size} MiB: {found[size]:.0f} tps")
    await guest.resize(MOST)
    return max(found.values())


async def _followed(
    guest: MemoryGuest, server: Server, seconds: tuple[int, int], say: Callable[[str], None]
) -> tuple[Bytes, float, Bytes]:
    """The size and the throughput of the last part of the load, and the size after being idle."""
    load, idle = seconds
    follower, began = Follower(guest, read_policy(COMPRESSED, Policy())), guest.clock.now()
    loading = asyncio.create_task(_tps(server, load))
    await follower.follow(load + 2)
    tps = mean((await loading)[-_SPAN * 2 :])
    rest = follower.sizes[-1][1] if follower.sizes else MOST
    for sentence in explain(follower.state, "default/memory", guest.clock.now()).working_set:
        say(f"it {sentence}")
    await follower.follow(idle)
    for at, size in follower.sizes:
        say(f"{at - began:5.0f} s: {size.value // MIB} MiB")
    return rest, tps, (await guest.guest.state()).mem


async def _tps(server: Server, seconds: int) -> list[float]:
    """Every second's transactions of read-only clients."""
    heard: list[float] = []

    def line(text: str) -> None:
        tps = tps_of(text)
        if tps is not None:
            heard.append(tps)

    arguments = ["-S", "-n", "-c", str(_CLIENTS), "-j", "1", "-T", str(seconds), "-P", "1", "postgres"]
    await run_pgbench([*server.arguments, *arguments], line)
    return heard or [0.0]


if __name__ == "__main__":
    typer.run(bench_memory)
