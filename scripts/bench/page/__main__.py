"""``make bench-page``: delay until an open page shows a permit, and CPU of its program with 0, 1 and 5 open pages.

A permit's time begins when our own watch of the API server hears of it, and ends when a page shows it. How long a
write takes to reach a watch is measured beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.launch import launch
from deploy.local.cluster.spec import ClusterSpec, usual_node_cpu
from scripts.bench.kubernetes.process_costs import load_of_machine
from scripts.bench.load_client import BenchError
from scripts.bench.page.page_figures import PageLatency
from scripts.bench.page.page_rounds import PageRound, measured

OWN: Final = "bench-page"


def bench_page(  # noqa: PLR0913, PLR0917 - each is an option
    name: Annotated[str, typer.Option(help="A local cluster that runs; without it one is brought up.")] = "",
    nodes: Annotated[int, typer.Option(min=1, help="Of the cluster that is brought up.")] = 100,
    vms: Annotated[int, typer.Option(min=1, help="Likewise.")] = 2000,
    seconds: Annotated[float, typer.Option(min=5, help="How long each round lasts.")] = 40.0,
    pages: Annotated[str, typer.Option(help="How many pages are open in each round.")] = "0,1,5",
    settle: Annotated[float, typer.Option(min=0, help="Seconds between the start of the program and the rounds.")] = 15,
) -> None:
    """Measure the live page on a local cluster."""
    console = Console()
    try:
        asyncio.run(_bench(console, name, (nodes, vms), (seconds, settle), [int(count) for count in pages.split(",")]))
    except BenchError as error:
        console.print(f"bench: {error}", style="red", markup=False)
        raise typer.Exit(1) from None


async def _bench(
    console: Console, name: str, size: tuple[int, int], spans: tuple[float, float], pages: list[int]
) -> None:
    async with _cluster(console, name, *size) as folder:
        rounds, writes = await measured(folder, spans[0], spans[1], pages)
    console.print(_table(rounds))
    console.print(f"A write reaches a watch after {_shown(writes)}. The machine's load is {load_of_machine()}.")


@asynccontextmanager
async def _cluster(console: Console, name: str, nodes: int, vms: int) -> AsyncIterator[ClusterFolder]:
    folder = ClusterFolder.of(name or OWN)
    # A cluster of somebody else's is left as it was.
    if name:
        yield folder
        return
    spec = ClusterSpec(guests="simulated", nodes=nodes, vms=vms, node_cpu=usual_node_cpu(vms, nodes))
    cluster = await launch(folder, spec, attached=True)
    try:
        await cluster.follow(lambda step: console.print(f"  {step.name} {step.state.value} {step.text}", markup=False))
        yield folder
    finally:
        await cluster.end()
        folder.remove()


def _table(rounds: list[PageRound]) -> Table:
    table = Table("pages", "VMs", "permits", "from permit to page", "page's program", "scheduler", "to a page")
    for one in rounds:
        table.add_row(
            str(one.pages),
            str(one.vms),
            str(one.permits),
            _shown(one.latency) if one.pages else "-",
            f"{one.program:.1%} of a core",
            f"{one.scheduler:.1%} of a core",
            f"{one.kib_per_page:.1f} KiB/s" if one.pages else "-",
        )
    return table


def _shown(latency: PageLatency) -> str:
    median, p95, longest = (f"{1000 * seconds:.0f}" for seconds in (latency.median, latency.p95, latency.longest))
    lost = f", {latency.lost} not shown" if latency.lost else ""
    return f"{median} ms (p95 {p95}, longest {longest}, of {latency.count}{lost})"


if __name__ == "__main__":
    typer.run(bench_page)
