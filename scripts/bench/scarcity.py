"""``python -m scripts.bench.scarcity``: a fleet that is short of CPU, and for how long idle neighbours let a VM wait.

Brings up the fleet of the quick start, looks at the scheduler and at all agents every few seconds, and judges one rule:
no VM is denied for longer than ``PATIENCE`` while the others of its node hold more than twice the CPU that they use.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from deploy.kube.informer import Informer
from deploy.local.cluster.folder import AlreadyRunsError
from deploy.local.cluster.progress import StepFailedError
from deploy.local.cluster.spec import ClusterSpec
from deploy.neonvm.network.chooser import NetworkKind
from protocol.kubernetes.objects import Json, child, items, text
from protocol.kubernetes.resources import PODS, VIRTUAL_MACHINES
from protocol.runtime.clock import SystemClock
from protocol.units import MilliCpu, Seconds
from scripts.autoscale.running import run
from scripts.autoscale.site import FollowedPods, Site, SitePods, explanation
from scripts.autoscale.stages import fresh_cluster
from scripts.bench.process_costs import load_of_machine
from scripts.bench.scarcity_picture import draw
from scripts.bench.scarcity_played import NODES, VMS, play
from scripts.bench.scarcity_rule import PATIENCE, NodeLook, Scarcity, VmLook, longest

NAME: Final = "bench-scarcity"
FLEET: Final = ClusterSpec(
    guests="simulated", nodes=NODES, node_cpu="16", vms=VMS, load="waves", network=NetworkKind.LOOPBACK.value
)
SETTLE: Final = Seconds(60.0)
"""How long the fleet runs before it is judged: agents have to see their guests for a while first."""

EVERY: Final = Seconds(2.0)
"""From one look to the next. Agents are asked within it, ``AT_ONCE`` of them at the same time."""

AT_ONCE: Final = 16


def scarcity(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long to look, after a minute to settle.")] = 15.0,
    played: Annotated[bool, typer.Option("--played", help="In virtual time: no cluster, ten seconds.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Draw the minutes into this file.")] = None,
) -> None:
    """Judge a fleet of simulated VMs that is short of CPU. Exits 0 only if nobody waited for idle neighbours."""
    run(_bench(Seconds(60.0 * minutes), picture, played=played))


async def _bench(span: Seconds, picture: Path | None, *, played: bool) -> int:
    console = Console()
    try:
        history = play(span / 60) if played else await _lived(span, console)
    except (AlreadyRunsError, StepFailedError) as error:
        console.print(f"autoscale: {error}", soft_wrap=True, markup=False)
        return 1
    console.print(_table(history))
    for wait in history.broken:
        console.print(str(wait), soft_wrap=True, markup=False)
    if picture is not None:
        draw(history, picture)
    return 1 if history.broken or not history.looks else 0


async def _lived(span: Seconds, console: Console) -> Scarcity:
    history = Scarcity()
    async with fresh_cluster(NAME, FLEET, console) as site:
        await asyncio.sleep(SETTLE)
        await _watch(site, history, span)
    return history


async def _watch(site: Site, history: Scarcity, span: Seconds) -> None:
    clock = SystemClock()
    vms, pods = Informer(site.client, VIRTUAL_MACHINES, clock), Informer(site.client, PODS, clock)
    await vms.refresh()
    followed = FollowedPods(pods)
    began = time.monotonic()
    while (at := time.monotonic() - began) < span:
        # VMs move, and a pod that moved away has no agent.
        await pods.refresh()
        scheduler, used = await asyncio.gather(
            site.of_scheduler("/nodes"), _used(site, list(vms.objects.values()), followed.index)
        )
        if scheduler is not None:
            history.look(time.monotonic() - began, _nodes(scheduler, used))
        await asyncio.sleep(max(0.0, at + EVERY - (time.monotonic() - began)))


async def _used(site: Site, vms: Iterable[Json], pods: SitePods) -> Mapping[str, float]:
    """The CPU that each VM uses; those whose agents do not answer are missing."""
    limit, used = asyncio.Semaphore(AT_ONCE), dict[str, float]()

    async def ask(vm: Json) -> None:
        async with limit:
            explained = await explanation(site, vm, pods) or {}
        cores = child(explained, "metrics").get("cores_busy")
        if isinstance(cores, int | float):
            used[text(explained, "vm")] = cores

    await asyncio.gather(*map(ask, vms))
    return used


def _nodes(scheduler: Json, used: Mapping[str, float]) -> list[NodeLook]:
    """The nodes as the scheduler has them. A VM that is not known to use less counts as using what it has."""
    return [
        NodeLook(
            text(node, "name"),
            total=_cpu(node, "total"),
            watermark=_cpu(node, "watermark"),
            vms=[
                VmLook(
                    text(pod, "vm"),
                    holds=_cpu(pod, "reserved"),
                    uses=used.get(text(pod, "vm"), _cpu(pod, "reserved")),
                    lacks=_cpu(pod, "denied"),
                )
                for pod in items(node, "pods")
                if text(pod, "vm")
            ],
        )
        for node in items(scheduler, "nodes")
    ]


def _cpu(part: Json, field: str) -> float:
    return MilliCpu.parse(text(part, field, "cpu")).as_cores


def _table(history: Scarcity) -> Table:
    table = Table("what", "value", title=f"{len(history.looks)} looks, load of the machine {load_of_machine()}")
    table.add_row("denials", str(len(history.denials)))
    table.add_row("longest denial, seconds", f"{longest(history.denials):.0f}")
    table.add_row("denials beside idle neighbours", str(len(history.waits)))
    table.add_row("longest of them, seconds", f"{longest(history.waits):.0f}")
    table.add_row(f"of more than {PATIENCE:g} s", str(len(history.broken)))
    return table


if __name__ == "__main__":
    typer.run(scarcity)
