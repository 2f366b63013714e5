"""``make bench``: prints all measurements; exits 0 when all could be made, whatever they show."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from scripts.bench.agent_costs import AgentCosts, Footprint, measure_agents
from scripts.bench.guest_looks import PODS_MEASURED, Following, measure_guest_looks
from scripts.bench.load_client import BenchError
from scripts.bench.permit_batches import batches
from scripts.bench.service_bench import BenchPair, measure_services


def bench(
    only: Annotated[str, typer.Option(help="services, agents, guests, or all.", metavar="WHAT")] = "all",
) -> None:
    """Measure the scheduler's hot paths beside a handler that decides nothing, the cost of an agent, and that of guests
    in pods for their controller.
    """
    if only not in ("all", "services", "agents", "guests"):
        raise typer.BadParameter(f"expected services, agents, guests or all, got {only!r}", param_hint="--only")
    console = Console()
    try:
        if only in ("all", "services"):
            console.print("Measuring the scheduler (about 20 s) ...")
            console.print(_services(measure_services()))
            console.print(_services(asyncio.run(batches()), "one for each"))
        if only in ("all", "agents"):
            console.print("Measuring agents in a local cluster (about 2 minutes) ...")
            console.print(_agents(measure_agents()))
        if only in ("all", "guests"):
            console.print("Measuring the controller of VMs in pods (about 80 s) ...")
            console.print(_guests(measure_guest_looks()))
    except BenchError as error:
        console.print(f"bench: {error}", style="red")
        raise typer.Exit(1) from None


def _services(pairs: list[BenchPair], other: str = "decides nothing") -> Table:
    table = Table("figure", "ours", other, "ratio", title="Scheduler, medians of alternating rounds")
    for pair in pairs:
        table.add_row(
            pair.name, f"{pair.ours:.2f} {pair.unit}", f"{pair.baseline:.2f} {pair.unit}", f"{pair.ratio:.2f}"
        )
    return table


def _guests(found: list[Following]) -> Table:
    title = f"{PODS_MEASURED:,} VMs in pods, followed by one controller"
    table = Table("silent pods", "all known after", "requests", "CPU", "an order: median", "longest", title=title)
    for following in found:
        table.add_row(
            f"{following.silent}",
            f"{following.known:.1f} s",
            f"{following.requests_per_second:.1f}/s",
            f"{following.cpu_ms_per_second:.0f} ms/s",
            f"{1000 * following.order_median:.0f} ms",
            f"{1000 * max(following.orders):.0f} ms",
        )
    return table


def _agents(costs: AgentCosts) -> Table:
    table = Table("form", "VMs", "processes", "memory", "CPU", "CPU per VM", title="Agents")
    for footprint in (costs.first, costs.few, costs.many):
        table.add_row(*_row(footprint))
    table.caption = f"each further VM of a node adds {costs.mib_per_further_vm:.2f} MiB"
    return table


def _row(one: Footprint) -> list[str]:
    cpu = one.cpu_ms_per_second
    return [
        one.form,
        str(one.vms),
        str(one.processes),
        f"{one.mem_mib:.1f} MiB",
        f"{cpu:.1f} ms/s",
        f"{cpu / one.vms:.2f} ms/s",
    ]


if __name__ == "__main__":
    typer.run(bench)
