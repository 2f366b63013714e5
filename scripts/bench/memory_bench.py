"""``make bench-memory``: the size to which the policy brings a VM whose database is in the page cache."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Final

import typer
from rich.console import Console

from agent.config import read_policy
from agent.core.policy import Policy
from protocol.units import Bytes
from scripts.autoscale.demonstration.pgbench import find_pgbench
from scripts.autoscale.running import run
from scripts.bench.memory_database import Database
from scripts.bench.memory_follower import GuestFollower
from scripts.bench.memory_guest import MIB, GuestSizes, MemoryGuest, memory_guest

SIZES: Final = GuestSizes(Bytes(768 * MIB), Bytes(3072 * MIB), Bytes(64 * MIB))
_SCALE: Final = 8
"""A GiB of tables."""

_PAIRS: Final = 4
_SPAN: Final = 15
_SETTLES: Final = 5
"""Seconds of load before the measured ones."""

_LESS: Final = (0.94, 0.85)
"""Sizes smaller than the one at rest, as shares of it, for comparison."""

COMPRESSED: Final = """
smoothing: {memory: [hold: {window: 30s}]}
memory: {cache: {watch: 45s, retry: 10m, longest: 1h, idleAfter: 90s, remember: 4h, idleShare: 0.3}}
timing: {stale: 20s}
"""
"""The default policy with times that are four to ten times shorter.

Reading its metrics keeps an emulated guest busier than an idle one should be, and it is slow to answer."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Seconds under the policy: with load, then without, then with it again."""

    load: int
    idle: int
    again: int


def bench_memory(
    reads: Annotated[int, typer.Option(min=10, help="Reads a second that the guest's disk allows.")] = 400,
    load: Annotated[int, typer.Option(min=60, help="Seconds of load under the policy.")] = 480,
    idle: Annotated[int, typer.Option(min=30, help="Seconds without load after it.")] = 330,
    again: Annotated[int, typer.Option(min=30, help="Seconds of load after that.")] = 60,
) -> None:
    """Run read-only pgbench under the policy with compressed times, and then on fixed sizes.

    The size at which the policy came to rest is compared with the greatest in pairs, by the CPU time that transactions
    got: other work on this machine changes the speed of an emulated CPU from minute to minute. Exits 0 only if that is
    90 % or more, and if memory was given back when the load ended.
    """
    run(_bench(reads, Spans(load, idle, again)))


async def _bench(reads: int, spans: Spans) -> int:
    console = Console(highlight=False, soft_wrap=True)
    # Fails here if pgbench is missing, before minutes of preparation.
    find_pgbench()
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as folder:
        async with memory_guest(Path(folder), SIZES) as guest:
            console.print(guest.description)
            database = Database(guest, _SCALE, Path(folder))
            await database.make()
            await database.warm()
            # Only once the database is loaded and warm: both read and write all of the tables.
            await guest.throttle(reads)
            follower = GuestFollower(guest, read_policy(COMPRESSED, Policy()), console.print)
            rest, left = await _followed(follower, database, spans, console.print)
            share = await _compared(guest, database, rest, console.print)
    gave = f"without load it gave back {(rest.value - left.value) // MIB} MiB of that"
    console.print(f"the policy came to rest at {rest.value // MIB} MiB with {share:.0%} of the throughput; {gave}")
    return 0 if share >= 0.9 and left < rest else 1


async def _followed(
    follower: GuestFollower, database: Database, spans: Spans, say: Callable[[str], None]
) -> tuple[Bytes, Bytes]:
    """The size at rest and the size after being idle."""
    say(f"{spans.load} s of load")
    tps = await loaded(follower, database, spans.load)
    rest = follower.size
    # Only the last minute: before that the size was still changing.
    say(f"at rest with {rest.value // MIB} MiB: {mean(tps[-60:]):.0f} transactions a second")
    say(f"{spans.idle} s without load")
    await follower.follow(spans.idle)
    left = (await follower.guest.guest.state()).mem
    say(f"without load {left.value // MIB} MiB; {spans.again} s of load again")
    await loaded(follower, database, spans.again)
    say(f"with load again {follower.size.value // MIB} MiB")
    return rest, left


async def loaded(follower: GuestFollower, database: Database, seconds: int) -> list[float]:
    """Follow the guest while its database is read; return every second's transactions."""
    async with asyncio.TaskGroup() as tasks:
        loading = tasks.create_task(database.tps(seconds))
        await follower.follow(seconds)
    return loading.result()


async def _compared(guest: MemoryGuest, database: Database, rest: Bytes, say: Callable[[str], None]) -> float:
    """The throughput with ``rest`` as a share of that with the greatest size: the median of pairs."""
    sizes, shares = guest.sizes, []
    await guest.resize(sizes.most)
    await database.warm()
    for _ in range(_PAIRS):
        # Alternating: the speed of an emulated CPU changes from minute to minute.
        best, here = [await _fixed(guest, database, size, say) for size in (sizes.most, rest)]
        shares.append(here / best)
    for share in _LESS:
        await _fixed(guest, database, Bytes(int(rest.value * share)).up_to(sizes.step), say)
    return median(shares)


async def _fixed(guest: MemoryGuest, database: Database, size: Bytes, say: Callable[[str], None]) -> float:
    """CPUs that transactions kept busy with a fixed size, once the guest has adapted to it."""
    await guest.resize(size)
    # The guest's page cache has to adapt to the new size first.
    await database.tps(_SETTLES)
    throughput = await database.measure(_SPAN)
    say(f"{size.value // MIB} MiB: {throughput}")
    return throughput.cores


if __name__ == "__main__":
    typer.run(bench_memory)
