"""``make bench-kubernetes``: see ``--help``. Exits with 0 if all measurements ran; results are not judged.

Needs root to create network, PID and mount namespaces.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from deploy.local.kubernetes.programs.ensure import NoProgramsError, Programs, ensure_programs
from deploy.local.kubernetes.programs.versions import SUPPORTED
from protocol.runtime.clock import SystemClock
from scripts.autoscale.running import run
from scripts.bench.kubernetes.bulk_client import BulkClient
from scripts.bench.kubernetes.control_plane import ControlPlane, control_plane, set_up_network
from scripts.bench.kubernetes.scheduler_speed import measure_permits, measure_start
from scripts.bench.kubernetes.scheduling_rounds import Rounds
from scripts.bench.kubernetes.speed_figures import ALONE, OURS, scheduling_table, start_table
from scripts.bench.load_client import BenchError

_PROGRAMS: Final = "AUTOSCALE_BENCH_PROGRAMS"
"""Set inside our namespaces: image reference and folders of the programs as JSON."""

_UNSHARE: Final = ("unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "--")
NODES: Final = (200, 2000)
PODS: Final = 1000
ROUNDS: Final = 4
"""Pairs of rounds, with and without our extender; the first pair is a warm-up."""

VMS: Final = 10_000


def bench_kubernetes(
    only: Annotated[list[str] | None, typer.Option(help="scheduling, permits or start; repeatable.")] = None,
    kubernetes: Annotated[str, typer.Option(help=f"Minor version: {' or '.join(SUPPORTED)}.")] = SUPPORTED[0],
) -> None:
    """Measure our scheduler with a real etcd, kube-apiserver and kube-scheduler, and fake nodes.

    Measures pods bound per second with and without our extender, latencies of permits, and startup time and memory.
    Needs root and takes ten minutes.
    """
    selected = only or [*MEASUREMENTS]
    if set(selected) - MEASUREMENTS.keys():
        raise typer.BadParameter(f"expected {', '.join(MEASUREMENTS)}, got {', '.join(selected)}", param_hint="--only")
    if _PROGRAMS in os.environ:
        # ``run`` exits the process.
        run(_bench(selected, kubernetes))
    _reexec(kubernetes)


def _reexec(kubernetes: str) -> None:
    """Replace this process with one in new namespaces."""
    if os.geteuid() != 0:
        typer.echo("bench: must run as root to create namespaces", err=True)
        raise typer.Exit(1)
    try:
        # Download now: the new network namespace has no internet access.
        programs = asyncio.run(ensure_programs(kubernetes, (), typer.echo))
    except NoProgramsError as error:
        typer.echo(f"bench: {error}", err=True)
        raise typer.Exit(1) from None
    paths = {"images": str(programs.images), **{name: str(path) for name, path in programs.folders.items()}}
    environment = {**os.environ, _PROGRAMS: msgspec.json.encode(paths).decode()}
    program = (sys.executable, "-m", "scripts.bench.kubernetes", *sys.argv[1:])
    command = ("setpriv", "--pdeathsig", "KILL", "--", *_UNSHARE, *program)
    os.execvpe(command[0], command, environment)  # noqa: S606 - a fixed list, never a shell


async def _bench(selected: Collection[str], kubernetes: str) -> int:
    """Run each measurement on a new control plane."""
    console, status = Console(), 1
    paths = {name: Path(path) for name, path in msgspec.json.decode(os.environ[_PROGRAMS]).items()}
    programs, clock = Programs(images=paths.pop("images"), folders=paths), SystemClock()
    set_up_network()
    try:
        with tempfile.TemporaryDirectory(prefix="autoscale-bench-") as folder:
            for name, measure in MEASUREMENTS.items():
                if name in selected:
                    async with control_plane(Path(folder) / name, programs, clock) as plane:
                        table = await measure(plane, BulkClient.of(plane), console)
                    table.caption = f"Kubernetes {kubernetes} on {os.cpu_count()} cores"
                    console.print(table)
        status = 0
    # Task groups raise exception groups.
    except* BenchError as errors:
        console.print(f"bench: {errors.exceptions[0]}", style="red")
    return status


async def _scheduling(plane: ControlPlane, bulk: BulkClient, console: Console) -> Table:
    existing, rounds_by_nodes = 0, []
    console.print(f"creating {PODS} VMs ...")
    vms = await bulk.create_vms(range(PODS))
    # In ascending order: nodes are never deleted.
    for nodes in NODES:
        console.print(f"creating {nodes - existing} nodes ...")
        await bulk.create_nodes(range(existing, nodes))
        existing, rounds, results = nodes, Rounds(plane, bulk, nodes, vms), []
        for number in range(ROUNDS):
            for side in (OURS, ALONE):
                result = await rounds.measure(side)
                console.print(
                    f"  {nodes} nodes, {side:5}: {result.pods_per_second:6.1f} pods/s {result.cpu_ms_per_pod}"
                )
                # Drop the first pair: it warms up the API server's caches.
                results += [result] if number else []
        rounds_by_nodes.append(results)
    return scheduling_table(rounds_by_nodes)


async def _permits(plane: ControlPlane, bulk: BulkClient, console: Console) -> Table:
    console.print("measuring permits ...")
    return await measure_permits(plane, bulk)


async def _start(plane: ControlPlane, bulk: BulkClient, console: Console) -> Table:
    console.print(f"creating {VMS} VMs (takes some minutes) ...")
    return start_table(await measure_start(plane, bulk, VMS))


MEASUREMENTS: Final[dict[str, Callable[[ControlPlane, BulkClient, Console], Awaitable[Table]]]] = {
    "scheduling": _scheduling,
    "permits": _permits,
    "start": _start,
}


if __name__ == "__main__":
    typer.run(bench_kubernetes)
