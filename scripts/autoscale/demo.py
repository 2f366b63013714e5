"""``autoscale demo``: shows a postgres, VM or pod, in a fresh local cluster that follows its load."""

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
from scripts.autoscale.demonstration.sleep.sleep_points import slept
from scripts.autoscale.demonstration.sleep.sleep_scenario import SleepScenario, let_requests_follow
from scripts.autoscale.demonstration.statements import statements
from scripts.autoscale.local import GuestKind, KubernetesVersion
from scripts.autoscale.outputs import a_file, a_picture, write_outcome
from scripts.autoscale.page import page_beside
from scripts.autoscale.running import runs
from scripts.autoscale.site import SiteError
from scripts.autoscale.stages import DemoStage, fresh_stage, show_failure
from vm_image.host import BuildError

NAME: Final = "demo"
_BUSY: Final = 2.0
"""Load average per CPU above which guests mostly wait."""
_NODE_CPU: Final = "6500m"
_NODE_MEMORY: Final = "4Gi"
"""Room for the VM at its largest and its neighbours, but not below the watermark."""

ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", callback=a_file, help="Write the outcome as JSON.")
]
PictureFile = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE", callback=a_picture, help="Draw what happened, as .png, .svg or .pdf."),
]


@runs
async def demo(  # noqa: PLR0913, PLR0917 - each is an option of the command
    report_file: ReportFile = None,
    picture_file: PictureFile = None,
    guests: Annotated[GuestKind, typer.Option(help="Real VMs, or simulated ones that play a load.")] = "qemu",
    network: Annotated[
        NetworkKind, typer.Option(help="How nodes are networked: namespaces, hub or loopback.")
    ] = NetworkKind.AUTO,
    seconds: Annotated[int, typer.Option(min=5, max=600, help="Duration of the load in seconds.")] = 25,
    migration: Annotated[
        bool, typer.Option(help="Show the second act: a neighbour moves when their node is full.")
    ] = True,
    groups: Annotated[
        bool, typer.Option("--groups", help="Show a third act: a group of VMs gains a read replica under load.")
    ] = False,
    sleep: Annotated[
        bool, typer.Option("--sleep", help="Show sleep instead: an idle VM, and two sessions that wake it.")
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
    """A real postgres VM grows under pgbench and shrinks when idle; then its node fills up and a neighbour moves.

    With --pods it is a pod, which is denied more on the full node until a neighbour leaves: pods do not move.

    With --sleep it is ordered to sleep, twice: its node gets everything back, and then a session that was open and idle
    is answered, and a new one.

    Exits 0 only if it grew, it shrank, a neighbour made room, and not one transaction failed; or, with --sleep, if the
    node got everything back and both sessions were answered with everything as it was.
    """
    if sleep:
        _refuse_beside_sleep(guests, kubernetes=kubernetes, groups=groups, picture=picture_file is not None)
    spec = _spec(guests, network, groups=groups, kubernetes=kubernetes_version if kubernetes else "", pods=pods)
    console, clock = Console(), SystemClock()
    observations = Observations(is_simulated=spec.guests == "simulated", database=(POD if pods else VM).word)
    observations.sleeps = [] if sleep else None
    began = clock.now()
    with _noting_problems(observations, console):
        if not observations.is_simulated and not sleep:
            # Without pgbench the demonstration would fail only after minutes of starting a cluster.
            find_pgbench()
        async with (
            fresh_stage(NAME, spec, console, clock, pods=pods) as stage,
            page_beside(stage.site, ClusterFlags(NAME), console) if web else nullcontext(),
        ):
            acts = _acts(stage, observations, console, began, seconds, migration=migration, groups=groups)
            await _play(stage, acts, observations, console)
    outcome = report(observations, Seconds(clock.now() - began))
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
        raise typer.BadParameter("--kubernetes shows two acts with real guests: no --groups, no --guests simulated")
    # Kubernetes' own programs and images are built from a checkout, which a wheel does not contain.
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


def _refuse_beside_sleep(guests: GuestKind, *, kubernetes: bool, groups: bool, picture: bool) -> None:
    """Raises ``typer.BadParameter`` if there is more to show than sleep."""
    if kubernetes or groups or guests != "qemu":
        raise typer.BadParameter(
            "--sleep shows real guests on the embedded cluster: no --kubernetes, no --groups, no --guests simulated"
        )
    if picture:
        raise typer.BadParameter("--sleep draws no picture; --report has its figures")


def _refuse_without_checkout() -> None:
    from deploy.images.inputs.checkout import Checkout  # noqa: PLC0415 - keeps other demonstrations quick

    try:
        Checkout()
    except BuildError as error:
        raise typer.BadParameter(f"--kubernetes builds images: {error}") from error


@contextmanager
def _noting_problems(seen: Observations, console: Console) -> Iterator[None]:
    """Notes an error that ends the demonstration as its problem."""
    try:
        yield
    # Task groups raise exception groups, whatever the number of errors.
    except* AlreadyRunningError as errors:
        seen.load_problem = f"{innermost(errors)}; `autoscale local down --name {NAME}` ends it"
    except* StepFailedError as failures:
        failure = innermost(failures)
        seen.load_problem = str(failure)
        if isinstance(failure, StepFailedError):
            show_failure(console, failure)
    except* (SiteError, PgbenchError, ControlError, ApiError) as errors:
        seen.load_problem = str(innermost(errors))


async def _play(stage: DemoStage, acts: Awaitable[None], seen: Observations, console: Console) -> None:
    """All acts, and a final summary; it is left out if the demonstration is interrupted."""
    try:
        await acts
    # An interruption is a BaseException, so it ends the demonstration without a summary.
    except Exception:
        await _summarize(stage, console, has_failed=True)
        raise
    # Clients had to give up: the VMs' own conditions may say why.
    await _summarize(stage, console, has_failed=bool(seen.load_problem or seen.client_failures))


async def _summarize(stage: DemoStage, console: Console, *, has_failed: bool) -> None:
    for line in await statements(stage.site) if has_failed else ():
        console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
    if summary := await stage.last_look():
        console.print(summary, highlight=False, soft_wrap=True, markup=False)


async def _acts(  # noqa: PLR0913 - what is shown, and where
    stage: DemoStage,
    seen: Observations,
    console: Console,
    began: Instant,
    seconds: int,
    *,
    migration: bool,
    groups: bool,
) -> None:
    seen.guests, seen.network, clock, site = stage.guests, stage.network, SystemClock(), stage.site
    async with AsyncExitStack() as stack:
        forwards = PortForwards(NAME, site, clock, stack, seen.is_simulated)
        with Screen(console, "autoscale demo") as screen:
            subject = POD if seen.database == POD.word else VM if seen.sleeps is None else SLEEPER
            scenario = Scenario(site, screen, clock, seen, forwards.load_of, seconds, began, stage.watch, subject)
            if seen.sleeps is not None:
                folder = ClusterFolder.of(NAME)
                let_requests_follow(folder)
                qemu = partial(qemu_memory, folder.root, SLEEPER.name)
                scenario.sleep = SleepScenario(site, clock, scenario.say, scenario.watcher, qemu, seen.sleeps)
            elif migration and subject is POD:
                scenario.say("live migration is left out: a pod stays on its node")
                scenario.full_node = FullNodeScenario(site, clock, scenario.say, scenario.watcher)
            elif migration:
                scenario.second = MigrationScenario(site, clock, scenario.say, forwards.clients_of)
            if groups:
                third = GroupScenario(site, clock, scenario.say, scenario.elapsed, forwards.read_load, POLICY)
                third.seen.is_simulated = seen.is_simulated
                seen.group, scenario.third = third.seen, third
            await scenario.run()
        seen.guests = stage.guests_of(scenario.watcher.found)


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
    did = "followed its load" if outcome.sleeps is None else "slept, and its sessions went on"
    followed = f"[bold green]The {outcome.database} {did}.[/]"
    console.print(followed if good else "[bold red]The demonstration has failed.[/]")
    for problem in outcome.problems:
        console.print(f"  [red]✗[/red] {problem}", soft_wrap=True)
    if outcome.grew_to is not None:
        console.print(f"  vCPU {outcome.started_at:g} → {outcome.grew_to:g} → {outcome.shrank_to or 0:g}")
    if outcome.reaction_seconds is not None:
        inside = "guest" if outcome.database == VM.word else outcome.database
        console.print(f"  more CPU in the {inside} {outcome.reaction_seconds:.1f} s after the load began")
    for move in outcome.migrations:
        console.print(f"  {_moved(move)}", soft_wrap=True)
    if outcome.room is not None:
        console.print(f"  {_waited(outcome.room)}", soft_wrap=True)
    if outcome.group is not None:
        console.print(f"  {_read(outcome.group)}", soft_wrap=True)
    for point in outcome.sleeps or ():
        console.print(f"  {slept(point)}", highlight=False, soft_wrap=True)
    if outcome.sleeps is not None:
        console.print(f"  {outcome.seconds_total:.0f} s in all")
        return
    transactions = outcome.note or f"{outcome.transactions} transactions, {outcome.failed} failed"
    console.print(f"  {transactions}; {outcome.seconds_total:.0f} s in all")
    # A busy host may explain a failure.
    if not good and (busy := _busy_host(os.getloadavg()[0], os.cpu_count() or 1)):
        console.print(f"  {busy}", soft_wrap=True)


def _waited(room: RoomPoint) -> str:
    if room.denied_seconds is None:
        return f"nothing was denied on {room.node}"
    then = "no more CPU after" if room.room_seconds is None else f"more CPU {room.room_seconds:.1f} s after"
    return f"denied {room.denied_seconds:.1f} s after the load began ({room.reason}); {then} {room.neighbour} had left"


def _read(group: GroupReport) -> str:
    reads = f": {group.transactions} reads, {group.failed} failed" if group.transactions else ""
    return f"the group grew its replica to {group.most_cpu:g} vCPU and then had {group.most_serving} serving{reads}"


def _busy_host(load: float, cpus: int) -> str:
    """A hint at other programs that keep this machine busy; empty if there are none (pure)."""
    if load <= _BUSY * cpus:
        return ""
    return f"this machine is busy (load {load:.0f} on {cpus} CPUs): guests wait for its CPUs and ask for more of them"


def _moved(move: MigrationPoint) -> str:
    if not move.succeeded:
        return f"{move.vm} did not move from {move.source or '?'}: {move.reason or 'it did not end'}"
    stall = "" if move.longest_stall_ms is None else f", its clients waited {move.longest_stall_ms:.0f} ms at most"
    took = f"in {move.total_ms} ms, stood still for {move.downtime_ms} ms"
    return f"{move.vm} moved {move.source} → {move.target} {took}{stall}"
