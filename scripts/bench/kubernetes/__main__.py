"""``make bench-kubernetes``: see ``--help``. Exits 0 when all could be measured, whatever the figures are.

Needs root: it runs itself again in network, process and mount namespaces of its own, which end with it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console

from deploy.local.kubernetes.programs.ensure import NoProgramsError, Programs, ensure_programs
from deploy.local.kubernetes.programs.versions import SUPPORTED
from protocol.runtime.clock import SystemClock
from scripts.autoscale.outputs import write_outcome
from scripts.autoscale.running import run
from scripts.bench.kubernetes.bulk_client import BulkClient
from scripts.bench.kubernetes.measured_plane import Plane, control_plane, make_network
from scripts.bench.kubernetes.scheduling_rounds import Rounds
from scripts.bench.kubernetes.service_speed import measure_permits, measure_start
from scripts.bench.kubernetes.speed_figures import ALONE, OURS, SchedulingSpeed, SpeedReport, scheduling, tables
from scripts.bench.load_client import BenchError

_APART: Final = "AUTOSCALE_BENCH_PROGRAMS"
"""Set in our own namespaces: where the programs are, as JSON."""

_UNSHARE: Final = ("unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "--")
KINDS: Final = ("scheduling", "permits", "start")


def bench_kubernetes(  # noqa: PLR0913, PLR0917 - each is an option of the command
    only: Annotated[list[str] | None, typer.Option(help="scheduling, permits or start; may be repeated.")] = None,
    nodes: Annotated[list[int] | None, typer.Option(min=1, help="Nodes; may be repeated. [default: 200, 2000]")] = None,
    pods: Annotated[int, typer.Option(min=10, help="Pods in a round.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of rounds, after one that is left out.")] = 3,
    vms: Annotated[int, typer.Option(min=10, help="VMs that are there when the service starts.")] = 10_000,
    kubernetes: Annotated[str, typer.Option(help=f"Minor version: {' or '.join(SUPPORTED)}.")] = SUPPORTED[0],
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the figures as JSON.")] = None,
) -> None:
    """Measure the service beside a real etcd, kube-apiserver and kube-scheduler, with made-up nodes.

    Pods bound per second with us over without any extender; permits through the API server; the service's start and
    its memory. Needs root and takes about ten minutes.
    """
    kinds = tuple(only or KINDS)
    if set(kinds) - set(KINDS):
        raise typer.BadParameter(f"expected {', '.join(KINDS)}, got {', '.join(kinds)}", param_hint="--only")
    if _APART in os.environ:
        wanted = Wanted(kinds, tuple(nodes or (200, 2000)), pods, rounds, vms)
        # Already in namespaces of our own; ``run`` ends the process.
        run(_bench(wanted, kubernetes, report))
    _go_apart(kubernetes)


class Wanted(msgspec.Struct, frozen=True):
    """Measurements to take."""

    kinds: tuple[str, ...]
    nodes: tuple[int, ...]
    pods: int
    rounds: int
    vms: int


def _go_apart(kubernetes: str) -> None:
    """Replaces this process by one in namespaces of its own."""
    if os.geteuid() != 0:
        typer.echo("bench: root is needed to make namespaces", err=True)
        raise typer.Exit(1)
    try:
        # Outside the namespaces: they have no network to download anything.
        programs = asyncio.run(ensure_programs(kubernetes, (), typer.echo))
    except NoProgramsError as error:
        typer.echo(f"bench: {error}", err=True)
        raise typer.Exit(1) from None
    paths = {"images": str(programs.images), **{name: str(path) for name, path in programs.folders.items()}}
    environment = {**os.environ, _APART: msgspec.json.encode(paths).decode()}
    again = (sys.executable, "-m", "scripts.bench.kubernetes", *sys.argv[1:])
    command = ("setpriv", "--pdeathsig", "KILL", "--", *_UNSHARE, *again)
    # The first process of a PID namespace takes all others with it when it ends.
    os.execvpe(command[0], command, environment)  # noqa: S606 - a fixed list, never a shell


async def _bench(wanted: Wanted, kubernetes: str, report: Path | None) -> int:
    console, figures = Console(), None
    try:
        with tempfile.TemporaryDirectory(prefix="autoscale-bench-") as folder:
            figures = await _measured(wanted, kubernetes, Path(folder), console)
    # Task groups wrap their errors.
    except* BenchError as errors:
        console.print(f"bench: {errors.exceptions[0]}", style="red")
    if figures is None:
        return 1
    for table in tables(figures):
        console.print(table)
    await write_outcome(figures, report)
    return 0


async def _measured(wanted: Wanted, kubernetes: str, folder: Path, console: Console) -> SpeedReport:
    """Each kind on a control plane of its own."""
    placed: list[SchedulingSpeed] = []
    permits, start = None, None
    paths = {name: Path(path) for name, path in msgspec.json.decode(os.environ[_APART]).items()}
    programs, clock = Programs(images=paths.pop("images"), folders=paths), SystemClock()
    make_network()
    if "scheduling" in wanted.kinds:
        async with control_plane(folder / "scheduling", programs, clock) as plane:
            placed = await _scheduling(plane, wanted, console)
    if "permits" in wanted.kinds:
        console.print("measuring permits ...")
        async with control_plane(folder / "permits", programs, clock) as plane:
            permits = await measure_permits(plane, BulkClient.of(plane))
    if "start" in wanted.kinds:
        console.print(f"making {wanted.vms} VMs, which takes some minutes ...")
        async with control_plane(folder / "start", programs, clock) as plane:
            start = await measure_start(plane, BulkClient.of(plane), wanted.vms)
    return SpeedReport(kubernetes, os.cpu_count() or 1, placed, permits, start)


async def _scheduling(plane: Plane, wanted: Wanted, console: Console) -> list[SchedulingSpeed]:
    bulk, there, speeds = BulkClient.of(plane), 0, []
    console.print(f"making {wanted.pods} VMs ...")
    vms = await bulk.make_vms(range(wanted.pods))
    # Ascending, because nodes are only ever added.
    for nodes in sorted(wanted.nodes):
        console.print(f"making {nodes - there} nodes ...")
        await bulk.make_nodes(range(there, nodes))
        there, rounds, measured = nodes, Rounds(plane, bulk, nodes, vms), []
        for number in range(wanted.rounds + 1):
            for side in (OURS, ALONE):
                result = await rounds.measure(side)
                console.print(
                    f"  {nodes} nodes, {side:5}: {result.pods_per_second:6.1f} pods/s {result.cpu_ms_per_pod}"
                )
                # The first pair warms up the caches of the API server and is left out.
                measured += [result] if number else []
        speeds.append(scheduling(measured))
    return speeds


if __name__ == "__main__":
    typer.run(bench_kubernetes)
