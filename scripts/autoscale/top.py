"""``autoscale top``: a live table of nodes and VMs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Annotated, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from deploy.kube.client import ApiError
from protocol.kubernetes.objects import Json, child, items, name_of, text
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import MIGRATIONS, PODS, VIRTUAL_MACHINES
from protocol.units import Bytes, Instant
from scripts.autoscale.clusters import Context, Kubeconfig
from scripts.autoscale.demonstration.fleet import node_row
from scripts.autoscale.demonstration.moves import ENDED
from scripts.autoscale.demonstration.moves import seen as seen_move
from scripts.autoscale.local import AsJson, Name
from scripts.autoscale.running import run
from scripts.autoscale.site import Site, explanation, open_site

_AT_ONCE: Final = 16
"""Number of agents that are queried at the same time."""
_LEAST_WIDTH: Final = 132


def top(  # noqa: PLR0913, PLR0917 - each is an option of the command
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit, as without a terminal.")] = False,
    as_json: AsJson = False,
    name: Name = "local",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="VMs of this namespace alone.")] = "",
) -> None:
    """Show nodes and VMs: allocated, used, permitted, under pressure, and the last decision."""
    run(_top(every, namespace, (name, kubeconfig, context), once=once, as_json=as_json))


async def _top(every: float, namespace: str, where: tuple[str, str, str], *, once: bool, as_json: bool) -> int:
    console = Console()
    async with open_site(*where) as site:
        if as_json:
            print(json.dumps(await look(site, namespace), indent=2))
            return 0
        if once or not console.is_terminal:
            console.width = max(console.width, _LEAST_WIDTH)
            console.print(picture(site.title, await look(site, namespace)))
            return 0
        first = picture(site.title, await look(site, namespace))
        with Live(first, console=console, screen=True, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(every)
                live.update(picture(site.title, await look(site, namespace)), refresh=True)


async def look(site: Site, namespace: str = "") -> Json:
    """Everything that is shown: ``nodes`` as the scheduler has them, and ``vms`` with their agents' accounts."""
    vms = (await site.client.list(VIRTUAL_MACHINES, namespace)).objects
    pods = {text(each, "metadata", "name"): each for each in (await site.client.list(PODS)).objects}
    limit = asyncio.Semaphore(_AT_ONCE)

    async def ask(vm: Json) -> Json:
        async with limit:
            return {"vm": vm, "agent": await explanation(site, vm, pods)}

    accounts = await asyncio.gather(*(ask(vm) for vm in sorted(vms, key=name_of)))
    nodes = (await site.of_scheduler("/nodes") or {}).get("nodes") or []
    return {"nodes": nodes, "vms": list(accounts), "migrations": await _migrations(site)}


async def _migrations(site: Site) -> list[Json]:
    """All that are under way; none where the cluster does not know the kind."""
    try:
        found = (await site.client.list(MIGRATIONS)).objects
    except ApiError as error:
        if error.kind is RefusalKind.NOT_FOUND:
            return []
        raise
    return [each for each in found if text(each, "status", "phase") not in ENDED]


def picture(title: str, seen: Json) -> Group:
    """The tables (pure)."""
    nodes = Table(box=None, title=title, title_justify="left")
    for heading in ("node", "vCPU reserved", "", "memory reserved", "", "pressure"):
        nodes.add_column(heading, no_wrap=True)
    for node in items(seen, "nodes"):
        nodes.add_row(*node_row(node))
    vms = Table(box=None)
    for heading in ("VM", "node", "phase", "vCPU", "busy", "memory", "used", "permit"):
        vms.add_column(heading, no_wrap=True)
    vms.add_column("last decision", no_wrap=True, overflow="ellipsis")
    reserved = {text(pod, "vm"): pod for node in items(seen, "nodes") for pod in items(node, "pods")}
    going = {name_of(each).namespace + "/" + text(each, "spec", "vmName"): each for each in items(seen, "migrations")}
    for account in items(seen, "vms"):
        vms.add_row(*vm_row(account, reserved, going))
    return Group(nodes, "", vms)


def vm_row(account: Json, reserved: Mapping[str, Json], going: Mapping[str, Json]) -> tuple[str, ...]:
    """One VM: what it has, uses and may have, and why. ``reserved`` and ``going`` (migrations) are by VM."""
    vm, agent = child(account, "vm"), child(account, "agent")
    status, metrics = child(vm, "status"), child(agent, "metrics")
    busy = metrics.get("cores_busy")
    permit = child(agent, "permit") or child(reserved.get(str(name_of(vm)), {}), "permit")
    used = text(metrics, "mem_used")
    return (
        str(name_of(vm)),
        _where(text(status, "node"), going.get(str(name_of(vm)))),
        text(status, "phase") or "Pending",
        text(status, "cpus") or "-",
        f"{busy:.2f}" if isinstance(busy, (int, float)) else "-",
        text(status, "memorySize") or "-",
        f"{Bytes.parse(used).value >> 20}Mi" if used else "-",
        f"{text(permit, 'cpu')} {text(permit, 'mem')}" if permit else "-",
        text(agent, "because") or "-",
    )


def _where(node: str, migration: Json | None) -> str:
    if migration is None:
        return node or "-"
    move = seen_move(None, migration, Instant(0.0), is_gone=False)
    return f"{node} ⇢ {move.target or '?'} {move.progress}".rstrip()
