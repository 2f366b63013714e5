"""``autoscale demo``: shows a postgres VM or pod that scales with its load, in a fresh local cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from deploy.local.cluster.control import ControlError
from deploy.local.cluster.folder import AlreadyRunningError, ClusterFolder
from deploy.local.cluster.progress import StepFailedError
from deploy.local.cluster.spec import ClusterSpec
from deploy.local.kubernetes.programs.versions import SUPPORTED
from deploy.neonvm.network.chooser import NetworkKind
from protocol.kubernetes.api import ApiError
from protocol.runtime.clock import SystemClock
from protocol.runtime.error_groups import innermost
from protocol.units import Instant, Seconds
from scripts.autoscale.clusters import ClusterFlags
from scripts.autoscale.demonstration.group_scenario import GroupScenario
from scripts.autoscale.demonstration.migration_scenario import MigrationScenario
from scripts.autoscale.demonstration.pgbench import PgbenchError, find_pgbench
from scripts.autoscale.demonstration.pods.full_node import FullNodeScenario
from scripts.autoscale.demonstration.port_forwards import PortForwards
from scripts.autoscale.demonstration.report import GroupReport, MigrationPoint, Observations, Report, RoomPoint, report
from scripts.autoscale.demonstration.scenario import POD, POLICY, SLEEPER, VM, Scenario
from scripts.autoscale.demonstration.screen import Screen
from scripts.autoscale.demonstration.sleep.qemu_process import qemu_memory
from scripts.autoscale.demonstration.sleep.sleep_points import sleep_line
from scripts.autoscale.demonstration.sleep.sleep_scenario import SleepScenario, let_requests_follow
from scripts.autoscale.demonstration.statements import statements
from scripts.autoscale.local import GuestKind, KubernetesVersion
from scripts.autoscale.outputs import check_output_path, check_picture_path, write_outcome
from scripts.autoscale.page import serving_page
from scripts.autoscale.running import runs
from scripts.autoscale.site import SiteError
from scripts.autoscale.stages import DemoStage, fresh_stage, show_failure
from vm_image.host import BuildError

NAME: Final = "demo"
_BUSY: Final = 2.0
"""Load average per CPU above which guests mostly wait."""
_NODE_CPU: Final = "6500m"
_NODE_MEMORY: Final = "4Gi"
"""Enough for the VM at its largest and its neighbours, but above the watermark."""

ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", callback=check_output_path, help="Write the outcome as JSON.")
]
PictureFile = Annotated[
    Path | None,
    typer.Option(
        "--picture", metavar="FILE", callback=check_picture_path, help="Plot the run to this file (.png, .svg or .pdf)."
    ),
]


@runs
async def demo(  # noqa: PLR0913, PLR0917 - each is an option of the command
    report_file: ReportFile = None,
    picture_file: PictureFile = None,
    guests: Annotated[GuestKind, typer.Option(help="Real VMs, or simulated ones that replay a load.")] = "qemu",
    network: Annotated[
        NetworkKind, typer.Option(help="How nodes are networked: namespaces, hub or loopback.")
    ] = NetworkKind.AUTO,
    seconds: Annotated[int, typer.Option(min=5, max=600, help="Duration of the load in seconds.")] = 25,
    migration: Annotated[
        bool, typer.Option(help="Also show a live migration: a neighbour moves away when the node is full.")
    ] = True,
    groups: Annotated[
        bool, typer.Option("--groups", help="Also show a group of VMs that adds a read replica under load.")
    ] = False,
    sleep: Annotated[
        bool, typer.Option("--sleep", help="Show sleep instead: a sleeping VM, and two sessions that wake it.")
    ] = False,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Use real Kubernetes with two nodes (as root) and VMs in pods.")
    ] = False,
    pods: Annotated[
        bool, typer.Option("--pods", help="With --kubernetes: a postgres in an ordinary pod, resized in place.")
    ] = False,
    kubernetes_version: KubernetesVersion = SUPPORTED[0],
    web: Annotated[bool, typer.Option(help="Also serve the live page, and print its link first.")] = True,
) -> int:
    """Show a real postgres VM that grows under pgbench and shrinks when idle; then a neighbour leaves its full node.

    With --pods, postgres runs in a pod. Pods do not migrate, so on a full node its growth is denied until a neighbour
    leaves.

    With --sleep, the VM is put to sleep twice, and its node gets all of its resources back. An open, idle session wakes
    it first, then a new one.

    Exits 0 only if the database grew and shrank, a neighbour made room, and no transaction failed; with --sleep, only
    if the node got everything back and both sessions were answered with their state intact.
    """
    if sleep:
        _check_sleep_options(guests, kubernetes=kubernetes, groups=groups, picture=picture_file is not None)
    spec = _spec(guests, network, groups=groups, kubernetes=kubernetes_version if kubernetes else "", pods=pods)
    console, clock = Console(), SystemClock()
    observed = Observations(is_simulated=spec.guests == "simulated", database=(POD if pods else VM).word)
    observed.sleeps = [] if sleep else None
    began = clock.now()
    with _recording_problems(observed, console):
        if not observed.is_simulated and not sleep:
            # Fail now rather than after minutes of starting a cluster.
            find_pgbench()
        async with (
            fresh_stage(NAME, spec, console, clock, pods=pods) as stage,
            serving_page(stage.site, ClusterFlags(NAME), console) if web else nullcontext(),
        ):
            scenario = _run_scenario(stage, observed, console, began, seconds, migration=migration, groups=groups)
            await _play(stage, scenario, observed, console)
    outcome = report(observed, Seconds(clock.now() - began))
    await write_outcome(outcome, report_file)
    _print(console, outcome)
    if picture_file is not None:
        await asyncio.to_thread(_draw, outcome, picture_file, console)
    return 0 if outcome.success else 1


def _spec(guests: GuestKind, network: NetworkKind, *, groups: bool, kubernetes: str, pods: bool = False) -> ClusterSpec:
    """The cluster for the demonstration. Raises ``typer.BadParameter``."""
    if pods and not kubernetes:
        raise typer.BadParameter("--pods needs --kubernetes: the embedded cluster runs no containers")
    if kubernetes and (groups or guests != "qemu"):
        raise typer.BadParameter("--kubernetes cannot be combined with --groups or --guests simulated")
    # Images are built from a checkout, which a wheel does not contain.
    if kubernetes:
        _refuse_without_checkout()
    return ClusterSpec(
        guests=guests,
        network=network.value,
        # A VM can only move if there is another node.
        nodes=2,
        node_cpu=_NODE_CPU,
        node_memory=_NODE_MEMORY,
        groups=groups,
        kubernetes=kubernetes,
    )


def _check_sleep_options(guests: GuestKind, *, kubernetes: bool, groups: bool, picture: bool) -> None:
    """Raises ``typer.BadParameter`` for options that ``--sleep`` excludes."""
    if kubernetes or groups or guests != "qemu":
        raise typer.BadParameter("--sleep cannot be combined with --kubernetes, --groups or --guests simulated")
    if picture:
        raise typer.BadParameter("--sleep draws no picture; --report has its figures")


def _refuse_without_checkout() -> None:
    from deploy.images.inputs.checkout import Checkout  # noqa: PLC0415 - keeps other demonstrations quick

    try:
        Checkout()
    except BuildError as error:
        raise typer.BadParameter(f"--kubernetes builds images: {error}") from error


@contextmanager
def _recording_problems(observed: Observations, console: Console) -> Iterator[None]:
    """Records an error that ends the demonstration as its problem."""
    try:
        yield
    # Task groups raise exception groups even for a single error.
    except* AlreadyRunningError as errors:
        observed.load_problem = f"{innermost(errors)}; stop it: autoscale local down --name {NAME}"
    except* StepFailedError as failures:
        failure = innermost(failures)
        observed.load_problem = str(failure)
        if isinstance(failure, StepFailedError):
            show_failure(console, failure)
    except* (SiteError, PgbenchError, ControlError, ApiError) as errors:
        observed.load_problem = str(innermost(errors))


async def _play(stage: DemoStage, scenario: Awaitable[None], observed: Observations, console: Console) -> None:
    """Awaits the scenario, and prints a summary unless the demonstration is interrupted."""
    try:
        await scenario
    # An interruption is a BaseException, so it ends the demonstration without a summary.
    except Exception:
        await _summarize(stage, console, has_failed=True)
        raise
    # If clients gave up, the VMs' conditions may say why.
    await _summarize(stage, console, has_failed=bool(observed.load_problem or observed.client_failures))


async def _summarize(stage: DemoStage, console: Console, *, has_failed: bool) -> None:
    for line in await statements(stage.site) if has_failed else ():
        console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
    if summary := await stage.final_summary():
        console.print(summary, highlight=False, soft_wrap=True, markup=False)


async def _run_scenario(  # noqa: PLR0913 - what is shown, and where
    stage: DemoStage,
    observed: Observations,
    console: Console,
    began: Instant,
    seconds: int,
    *,
    migration: bool,
    groups: bool,
) -> None:
    observed.guests, observed.network, clock, site = stage.guests, stage.network, SystemClock(), stage.site
    async with AsyncExitStack() as stack:
        forwards = PortForwards(NAME, site, clock, stack, observed.is_simulated)
        with Screen(console, "autoscale demo") as screen:
            database = POD if observed.database == POD.word else VM if observed.sleeps is None else SLEEPER
            scenario = Scenario(site, screen, clock, observed, forwards.load_of, seconds, began, stage.watch, database)
            if observed.sleeps is not None:
                folder = ClusterFolder.of(NAME)
                let_requests_follow(folder)
                qemu = partial(qemu_memory, folder.root, SLEEPER.name)
                scenario.sleep = SleepScenario(site, clock, scenario.announce, scenario.watcher, qemu, observed.sleeps)
            elif migration and database is POD:
                scenario.announce("no live migration: a pod stays on its node")
                scenario.full_node = FullNodeScenario(site, clock, scenario.announce, scenario.watcher)
            elif migration:
                scenario.migration = MigrationScenario(site, clock, scenario.announce, forwards.clients_of)
            if groups:
                group = GroupScenario(site, clock, scenario.announce, scenario.elapsed, forwards.read_load, POLICY)
                group.observed.is_simulated = observed.is_simulated
                observed.group, scenario.group = group.observed, group
            await scenario.run()
        observed.guests = stage.guests_of(scenario.watcher.database)


def _draw(outcome: Report, path: Path, console: Console) -> None:
    from scripts.autoscale.demonstration.pictures import (  # noqa: PLC0415 - matplotlib takes a second to import
        NothingToDrawError,
        draw,
        draw_group,
        group_path,
    )

    try:
        draw(outcome, path)
        if outcome.group is not None:
            draw_group(outcome.group, group_path(path))
    except NothingToDrawError as error:
        console.print(f"  {error}", soft_wrap=True)


def _print(console: Console, outcome: Report) -> None:
    good = outcome.success
    result = "scaled with its load" if outcome.sleeps is None else "slept and kept its sessions"
    headline = f"[bold green]The {outcome.database} {result}.[/]"
    console.print(headline if good else "[bold red]The demonstration has failed.[/]")
    for problem in outcome.problems:
        console.print(f"  [red]✗[/red] {problem}", soft_wrap=True)
    if outcome.grew_to is not None:
        console.print(f"  vCPU {outcome.started_at:g} → {outcome.grew_to:g} → {outcome.shrank_to or 0:g}")
    if outcome.reaction_seconds is not None:
        inside = "guest" if outcome.database == VM.word else outcome.database
        console.print(f"  more CPU in the {inside} {outcome.reaction_seconds:.1f} s after the load began")
    for move in outcome.migrations:
        console.print(f"  {_migration_text(move)}", soft_wrap=True)
    if outcome.room is not None:
        console.print(f"  {_denial_text(outcome.room)}", soft_wrap=True)
    if outcome.group is not None:
        console.print(f"  {_reads_text(outcome.group)}", soft_wrap=True)
    for point in outcome.sleeps or ():
        console.print(f"  {sleep_line(point)}", highlight=False, soft_wrap=True)
    if outcome.sleeps is not None:
        console.print(f"  {outcome.seconds_total:.0f} s in total")
        return
    transactions = outcome.note or f"{outcome.transactions} transactions, {outcome.failed} failed"
    console.print(f"  {transactions}; {outcome.seconds_total:.0f} s in total")
    # A busy host may explain a failure.
    if not good and (busy := _busy_host(os.getloadavg()[0], os.cpu_count() or 1)):
        console.print(f"  {busy}", soft_wrap=True)


def _denial_text(room: RoomPoint) -> str:
    if room.denied_seconds is None:
        return f"nothing was denied on {room.node}"
    then = "no more CPU after" if room.room_seconds is None else f"more CPU {room.room_seconds:.1f} s after"
    return f"denied {room.denied_seconds:.1f} s after the load began ({room.reason}); {then} {room.neighbour} left"


def _reads_text(group: GroupReport) -> str:
    reads = f": {group.transactions} reads, {group.failed} failed" if group.transactions else ""
    return f"the group's replica grew to {group.most_cpu:g} vCPU, then {group.most_serving} replicas served{reads}"


def _busy_host(load: float, cpus: int) -> str:
    """A hint that other programs keep this machine busy; empty if it is not (pure)."""
    if load <= _BUSY * cpus:
        return ""
    return f"this machine is busy (load {load:.0f} on {cpus} CPUs): guests wait for CPU time and request more CPUs"


def _migration_text(move: MigrationPoint) -> str:
    if not move.succeeded:
        return f"{move.vm} did not move from {move.source or '?'}: {move.reason or 'the migration did not finish'}"
    stall = "" if move.longest_stall_ms is None else f", longest client stall {move.longest_stall_ms:.0f} ms"
    duration = f"in {move.total_ms} ms, downtime {move.downtime_ms} ms"
    return f"{move.vm} moved {move.source} → {move.target} {duration}{stall}"
