"""Fail-overs of real processes, one after the other, while agents ask: no permit is lost or granted twice (B.3).

``AUTOSCALE_FAILOVERS`` says how many (200 take about ten minutes); a quarter as many are played with requests of pods
that follow their VMs (B.10). ``AUTOSCALE_FAILOVER_FIGURES`` names a file for the figures of those without.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import httpx2 as httpx
import pytest

from protocol.units import Resources
from tests.kubernetes.failing.commitment import always_requested, never_over_committed
from tests.kubernetes.failing.fleet import Fleet, until
from tests.kubernetes.failing.permit_asker import SMALL, Asker, asking
from tests.scheduler_plugin.replicas.processes.stage import ReplicaProcess, Stage, stage
from tests.scheduler_plugin.replicas.processes.terms_seen import TermsSeen, terms_seen
from tests.slowness import Slowness

pytestmark = pytest.mark.failovers

FAILOVERS: Final = int(os.environ.get("AUTOSCALE_FAILOVERS", "4"))
FIGURES: Final = os.environ.get("AUTOSCALE_FAILOVER_FIGURES")
LEASE_SECONDS: Final = 2
HARMS: Final = {"kill -9": 6.0, "SIGTERM": 1.5, "SIGSTOP": 6.0, "cut off": 6.0}
"""Seconds until growth goes on in the fastest quarter of the times, on an idle machine.

Single times prove nothing: a leader that ends while a write's outcome is unknown rightly leaves its Lease to expire.
"""

LONGEST: Final = 15.0
"""Seconds until growth goes on after any harm, on an idle machine."""

REPLICAS: Final = 3
"""Two would do; with three the next harm need not wait until a process has started."""

LARGE: Final = Resources.parse("2", "4Gi")
PATIENCE: Final = 120.0


async def follow(run: Stage, askers: Sequence[Asker]) -> None:
    """Route agents to the Service's endpoint, as kube-proxy does: immediately, and repeatedly."""
    while True:
        address = await run.served()
        for each in askers:
            each.scheduler = f"http://{address}:{run.agents_port}/" if address else "http://127.0.0.9:9/"
        await asyncio.sleep(0.05)


async def growth(run: Stage, asker: Asker, but: str = "") -> float:
    """Seconds until a replica, other than the one at ``but``, grants an increase. The VM shrinks afterwards."""
    began = time.monotonic()
    while (address := await run.served()) in ("", but) or not await gets_from(run, asker, address):
        assert time.monotonic() - began < PATIENCE, f"no growth within {PATIENCE:g} s: {asker.outcomes[-20:]}"
        await asyncio.sleep(0.05)
    took = time.monotonic() - began
    await asker.ask(SMALL)
    return took


async def gets_from(run: Stage, asker: Asker, address: str) -> bool:
    """True if the replica at that address grants the increase."""
    asker.scheduler = f"http://{address}:{run.agents_port}/"
    return await asker.gets(LARGE)


async def strike(run: Stage, harm: str) -> ReplicaProcess:
    """Break the replica to which agents are routed. Returns it."""
    async with asyncio.timeout(PATIENCE):
        # A leader that stood still for too long has lost its Lease by itself.
        while not (address := await run.served()):  # noqa: ASYNC110 - it is in another process
            await asyncio.sleep(0.05)
    leader = run.replicas[address]
    if harm == "cut off":
        leader.proxy.cut()
    else:
        leader.send({"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGSTOP": signal.SIGSTOP}[harm])
    return leader


async def mend(run: Stage, replica: ReplicaProcess, harm: str) -> None:
    """Restart the process, or resume it as a former leader; return once it has listed the cluster."""
    if harm == "SIGSTOP":
        replica.send(signal.SIGCONT)
    elif harm == "cut off":
        replica.proxy.mend()
    else:
        status = await asyncio.wait_for(replica.ended(), PATIENCE)
        assert status in (0, -signal.SIGKILL), (replica.folder / "log").read_text()[-2000:]
        await replica.start()
    await until(lambda: run.is_ready(replica), f"{replica.address} is ready again", 60.0)


def note(figures: dict[str, list[float]]) -> None:
    """Write the times from the failure to the next growth, in seconds, if a file for them is named."""
    if not FIGURES:
        return
    lines = [f"{'harm':10} {'times':>5} {'median':>7} {'p95':>7} {'longest':>8}"]
    for harm, took in figures.items():
        ordered = sorted(took)
        p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
        lines.append(f"{harm:10} {len(took):5} {statistics.median(took):7.2f} {p95:7.2f} {ordered[-1]:8.2f}")
    Path(FIGURES).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("count", "follows"), [(FAILOVERS, False), (max(4, FAILOVERS // 4), True)], ids=["", "follows"]
)
async def test_failovers_lose_or_duplicate_no_permit(tmp_path: Path, count: int, follows: bool) -> None:
    figures: dict[str, list[float]] = defaultdict(list)
    with Slowness() as slow:
        seen = await storm(tmp_path, figures, count, follows=follows)
    print(f"programs ran {slow.factor:.1f} times slower than on an idle machine")
    assert seen.out_of_term() == []
    assert seen.terms >= count
    late = {
        harm: times
        for harm, times in figures.items()
        if sorted(times)[len(times) // 4] >= HARMS[harm] * slow.factor or max(times) >= slow.stretched(LONGEST)
    }
    assert late == {}


async def storm(folder: Path, figures: dict[str, list[float]], count: int, *, follows: bool) -> TermsSeen:
    """All fail-overs, in which no node is promised more than it has and no permit is lost; who led and wrote.

    Where requests of pods follow their VMs, each pod requests all that its agent was granted, at every look.
    """
    async with stage(folder, REPLICAS, LEASE_SECONDS, follows=follows) as run:
        node, other = await run.fleet.node(), await run.fleet.node()
        askers = [await asker_of(run.fleet, run.http, each) for each in (node, node, node)]
        measured = await asker_of(run.fleet, run.http, other)
        following = asyncio.create_task(follow(run, [*askers, measured]))
        for replica in run.replicas.values():
            await until(lambda replica=replica: run.is_ready(replica), "a replica is ready", 60.0)  # type: ignore[misc]
        await growth(run, measured)
        requested = always_requested(run.fleet, [*askers, measured]) if follows else nullcontext()
        async with terms_seen(run.http) as seen, never_over_committed(run.fleet), requested, asking(askers):
            for harm in islice(cycle(HARMS), count):
                replica = await strike(run, harm)
                figures[harm].append(await growth(run, measured, replica.address))
                if not follows:
                    note(figures)
                await mend(run, replica, harm)
                await asyncio.sleep(random.random() * 0.3)
        following.cancel()
        permits = await run.fleet.permits()
        assert all(each.granted.within(permits[each.vm.name]) for each in [*askers, measured])
    return seen


async def asker_of(fleet: Fleet, http: httpx.AsyncClient, node: str) -> Asker:
    """Create a VM. Returns a client that requests permits for it."""
    return Asker(await fleet.vm(node), "", http, SMALL)
