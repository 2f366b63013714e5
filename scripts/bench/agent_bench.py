"""``make bench-agents``: memory and CPU of real agents: sidecars and per node, of simulated guests and of pods."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import typer
from rich.console import Console
from rich.table import Table

from deploy.local.cluster.control import ask_cluster
from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.spec import ClusterSpec
from deploy.neonvm.network.chooser import NetworkKind
from protocol.units import Seconds
from scripts.autoscale.running import runs
from scripts.autoscale.stages import fresh_cluster
from scripts.bench.cgroup_pods import CGROUPS, kubepods, run_pods
from scripts.process_costs import MIB, cpu_of

NAME: Final = "bench-agents"
SETTLE: Final = Seconds(20.0)
"""Warm-up of the agents before the measurement."""

SPAN: Final = Seconds(20.0)
FEW: Final = 10
MANY: Final = 110
Form = Literal["sidecar", "node"]


@dataclass(frozen=True, slots=True)
class Footprint:
    """The costs of all agents of a cluster."""

    form: str
    databases: int
    processes: int
    mem_mib: float
    cpu_ms_per_second: float


async def _agents() -> list[int]:
    """The pids of the cluster's agents."""
    parts = (await ask_cluster(ClusterFolder.of(NAME), "status")).parts
    return [part.pid for part in parts if part.pid and part.name.startswith("agent ")]


def _resident(pid: int) -> int:
    # Includes shared pages.
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _footprint(form: Form, databases: int, console: Console, cgroups: list[Path] | None = None) -> Footprint:
    """The costs with VMs, or with pods if there are ``cgroups`` for them."""
    spec = ClusterSpec(
        guests="simulated",
        nodes=1,
        node_cpu="64",
        node_memory="256Gi",
        agents=form,
        network=NetworkKind.LOOPBACK.value,
        vms=0 if cgroups else databases,
    )
    async with fresh_cluster(NAME, spec, console) as site:
        if cgroups:
            await run_pods(site.client, spec.node_specs[0].name, databases, cgroups)
        await asyncio.sleep(SETTLE)
        agents = await _agents()
        before, began = sum(map(cpu_of, agents)), time.monotonic()
        await asyncio.sleep(SPAN)
        cpu = (sum(map(cpu_of, agents)) - before) / (time.monotonic() - began)
        mem = sum(map(_resident, agents)) / MIB
    return Footprint(f"{form}, pods" if cgroups else form, databases, len(agents), mem, cpu * 1000)


@runs
async def bench_agents() -> int:
    """Measure the sidecar of one VM, and the agent of a node with 10 and with 110 VMs or pods."""
    console = Console()
    sizes: list[tuple[Form, int]] = [("sidecar", 1), ("node", FEW), ("node", MANY)]
    costs = [await _footprint(form, vms, console) for form, vms in sizes]
    try:
        with kubepods() as cgroups:
            # Agents inherit it through the cluster.
            os.environ["CGROUP_ROOT"] = str(CGROUPS)
            costs += [await _footprint("node", pods, console, cgroups) for pods in (FEW, MANY)]
    except OSError as error:
        console.print(f"without pods: their cgroups cannot be created: {error}")
    console.print(_table(costs))
    return 0 if all(cost.processes for cost in costs) else 1


def _table(costs: list[Footprint]) -> Table:
    table = Table("form", "databases", "memory", "CPU", "CPU each", "memory of each more", title="Agents")
    few: Footprint | None = None
    for cost in costs:
        cpu, more = cost.cpu_ms_per_second, ""
        if few is not None and few.form == cost.form:
            more = f"{(cost.mem_mib - few.mem_mib) / (cost.databases - few.databases):.2f} MiB"
        sizes = [cost.form, str(cost.databases), f"{cost.mem_mib:.1f} MiB"]
        table.add_row(*sizes, f"{cpu:.0f} ms/s", f"{cpu / cost.databases:.2f} ms/s", more)
        few = cost
    return table


if __name__ == "__main__":
    typer.run(bench_agents)
