"""``make bench-agents``: memory and CPU of agents, as sidecars and per node, with simulated guests and with pods."""

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
WARM_UP: Final = Seconds(20.0)
WINDOW: Final = Seconds(20.0)
FEW: Final = 10
# The kubelet's default limit of pods.
MANY: Final = 110
Form = Literal["sidecar", "node"]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory and CPU of all agents in a cluster."""

    form: str
    databases: int
    processes: int
    mem_mib: float
    cpu_ms_per_second: float


async def _agent_pids() -> list[int]:
    """PIDs of the cluster's agents."""
    parts = (await ask_cluster(ClusterFolder.of(NAME), "status")).parts
    return [part.pid for part in parts if part.pid and part.name.startswith("agent ")]


def _resident_bytes(pid: int) -> int:
    # Includes shared pages.
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _measure(form: Form, databases: int, console: Console, cgroups: list[Path] | None = None) -> Footprint:
    """Start a cluster and measure its agents, with VMs or, if ``cgroups`` is given, with pods."""
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
        await asyncio.sleep(WARM_UP)
        pids = await _agent_pids()
        before, began = sum(map(cpu_of, pids)), time.monotonic()
        await asyncio.sleep(WINDOW)
        cpu = (sum(map(cpu_of, pids)) - before) / (time.monotonic() - began)
        mem = sum(map(_resident_bytes, pids)) / MIB
    return Footprint(f"{form}, pods" if cgroups else form, databases, len(pids), mem, cpu * 1000)


@runs
async def bench_agents() -> int:
    """Measure a sidecar agent with one VM, and a node agent with 10 and 110 VMs or pods."""
    console = Console()
    sizes: list[tuple[Form, int]] = [("sidecar", 1), ("node", FEW), ("node", MANY)]
    footprints = [await _measure(form, vms, console) for form, vms in sizes]
    try:
        with kubepods() as cgroups:
            # The cluster passes its environment on to the agents.
            os.environ["CGROUP_ROOT"] = str(CGROUPS)
            footprints += [await _measure("node", pods, console, cgroups) for pods in (FEW, MANY)]
    except OSError as error:
        console.print(f"skipping pods: cannot create cgroups: {error}")
    console.print(_table(footprints))
    return 0 if all(footprint.processes for footprint in footprints) else 1


def _table(footprints: list[Footprint]) -> Table:
    table = Table("form", "databases", "memory", "CPU", "CPU per database", "memory per extra database", title="Agents")
    previous: Footprint | None = None
    for footprint in footprints:
        cpu, more = footprint.cpu_ms_per_second, ""
        if previous is not None and previous.form == footprint.form:
            more = f"{(footprint.mem_mib - previous.mem_mib) / (footprint.databases - previous.databases):.2f} MiB"
        sizes = [footprint.form, str(footprint.databases), f"{footprint.mem_mib:.1f} MiB"]
        table.add_row(*sizes, f"{cpu:.0f} ms/s", f"{cpu / footprint.databases:.2f} ms/s", more)
        previous = footprint
    return table


if __name__ == "__main__":
    typer.run(bench_agents)
