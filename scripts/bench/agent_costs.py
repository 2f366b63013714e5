"""``make bench-agents``: memory and CPU of real agents with simulated guests, as sidecars and per node."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import typer
from rich.console import Console
from rich.table import Table

from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.launch import launch
from deploy.local.cluster.spec import ClusterSpec
from deploy.neonvm.network.chooser import NetworkKind
from protocol.units import Seconds
from scripts.bench.load_client import BenchError
from scripts.bench.process_costs import MIB, cpu_of

SETTLE: Final = Seconds(20.0)
"""How long agents run before they are measured, so that all have settled."""

SPAN: Final = Seconds(20.0)
FEW: Final = 10
MANY: Final = 110
Form = Literal["sidecar", "node"]


@dataclass(frozen=True, slots=True)
class Footprint:
    """The cost of all agents of a cluster together."""

    form: Form
    vms: int
    processes: int
    mem_mib: float
    cpu_ms_per_second: float


@dataclass(frozen=True, slots=True)
class AgentCosts:
    """The cost of one VM's sidecar, and of a node's agent with few and with many VMs."""

    first: Footprint
    few: Footprint
    many: Footprint

    @property
    def mib_per_further_vm(self) -> float:
        """The resident memory in MiB that each further VM adds to a node's agent."""
        return (self.many.mem_mib - self.few.mem_mib) / (self.many.vms - self.few.vms)


def _agents_below(root: int) -> list[int]:
    """The process ids of the agents among the descendants of a process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                # After the last parenthesis: a program's name may itself contain spaces and parentheses.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    agents, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        waiting += below
        agents += [pid for pid in below if _command(pid)[1:4] == [b"-P", b"-m", b"agent"]]
    return agents


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _resident(pid: int) -> int:
    # Includes shared pages, which thus count once for every agent.
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def _cluster(spec: ClusterSpec, home: Path) -> AsyncIterator[int]:
    """Runs a cluster; yields the id of the process that owns all others."""
    folder = ClusterFolder("bench", home / "bench")
    cluster = await launch(folder, spec, attached=True)
    try:
        # Returns once the cluster is up.
        await cluster.follow(lambda _: None)
        owner = folder.owner()
        if owner is None:
            raise BenchError("the cluster ended as soon as it was up")
        yield owner
    finally:
        await cluster.end()


async def _footprint(form: Form, vms: int) -> Footprint:
    spec = ClusterSpec(
        guests="simulated",
        nodes=1,
        node_cpu="64",
        node_memory="256Gi",
        agents=form,
        network=NetworkKind.LOOPBACK,
        vms=vms,
    )
    # A folder of its own, so that the bench does not touch the user's clusters.
    with tempfile.TemporaryDirectory(prefix="autoscale-bench-") as home:
        async with _cluster(spec, Path(home)) as owner:
            await asyncio.sleep(SETTLE)
            agents = _agents_below(owner)
            if not agents:
                raise BenchError("no agent runs in the cluster")
            before, began = sum(map(cpu_of, agents)), time.monotonic()
            await asyncio.sleep(SPAN)
            cpu = (sum(map(cpu_of, agents)) - before) / (time.monotonic() - began)
            mem = sum(map(_resident, agents)) / MIB
    return Footprint(form, vms, len(agents), mem, cpu * 1000)


async def _measured() -> AgentCosts:
    return AgentCosts(await _footprint("sidecar", 1), await _footprint("node", FEW), await _footprint("node", MANY))


def bench_agents() -> None:
    """Measure the sidecar of one VM, and the agent of a node with few and with many VMs."""
    console = Console()
    console.print("Measuring agents in a local cluster (about 2 minutes) ...")
    try:
        console.print(_table(asyncio.run(_measured())))
    except BenchError as error:
        console.print(f"bench: {error}", style="red")
        raise typer.Exit(1) from None


def _table(costs: AgentCosts) -> Table:
    table = Table("form", "VMs", "processes", "memory", "CPU", "CPU per VM", title="Agents")
    for cost in (costs.first, costs.few, costs.many):
        cpu = cost.cpu_ms_per_second
        sizes = [cost.form, str(cost.vms), str(cost.processes), f"{cost.mem_mib:.1f} MiB"]
        table.add_row(*sizes, f"{cpu:.1f} ms/s", f"{cpu / cost.vms:.2f} ms/s")
    table.caption = f"each further VM of a node adds {costs.mib_per_further_vm:.2f} MiB"
    return table


if __name__ == "__main__":
    typer.run(bench_agents)
