"""``autoscale demo``: a postgres VM in a fresh local cluster follows its load, before one's eyes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console

from deploy.local.clock import Clock, SystemClock
from deploy.local.cluster.control import NoAnswerError, knock
from deploy.local.cluster.folder import AlreadyRunsError, ClusterFolder
from deploy.local.cluster.launch import launch, remove_remains
from deploy.local.cluster.progress import StepFailedError
from deploy.local.cluster.spec import ClusterSpec
from deploy.local.guests.qemu_command import DAEMON_PORT
from deploy.local.kube.client import ApiError, ApiUnavailableError
from deploy.local.kube.objects import Json, text
from deploy.local.network.chooser import NetworkKind
from protocol.units import Seconds
from scripts.autoscale.demonstration.loads import LoadMaker, PgbenchLoad, SimulatedLoad
from scripts.autoscale.demonstration.pgbench import PgbenchError, Server, find_pgbench
from scripts.autoscale.demonstration.play import Play
from scripts.autoscale.demonstration.report import Observations, Report, report
from scripts.autoscale.demonstration.screen import Screen
from scripts.autoscale.local import GuestKind
from scripts.autoscale.running import run
from scripts.autoscale.site import Site, SiteError, open_site
from scripts.autoscale.steps import StepView, show_failure

NAME: Final = "demo"
_CLIENTS: Final = 8
_SCALE: Final = 2
_POSTGRES: Final = 5432
_PICTURES: Final = (".svg", ".png")


def _in_a_folder(path: Path | None) -> Path | None:
    """Refuses, before anything is started, a file that could not be written when all is over."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(path.parent)!r}")
    return path


def _a_picture(path: Path | None) -> Path | None:
    if path is not None and path.suffix not in _PICTURES:
        raise typer.BadParameter(f"{path.name!r} does not end in {', '.join(_PICTURES)}")
    return _in_a_folder(path)


def demo(
    report_file: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", callback=_in_a_folder, help="Write the outcome as JSON."),
    ] = None,
    picture_file: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", callback=_a_picture, help="Draw what happened, as .svg or .png."),
    ] = None,
    guests: Annotated[GuestKind, typer.Option(help="Real VMs, or light ones that play a load.")] = GuestKind.QEMU,
    network: Annotated[NetworkKind, typer.Option(help="What nodes are.")] = NetworkKind.AUTO,
    seconds: Annotated[int, typer.Option(min=5, max=600, help="How long the load lasts.")] = 25,
) -> None:
    """A real postgres VM grows under pgbench and shrinks when idle.

    Exits 0 only if it grew, it shrank, and not one transaction failed.
    """
    spec = ClusterSpec(guests=guests.value, network=network.value)
    run(_demo(spec, seconds, report_file, picture_file))


async def _demo(spec: ClusterSpec, seconds: int, report_file: Path | None, picture_file: Path | None) -> int:
    console, clock, seen = Console(), SystemClock(), Observations(is_simulated=spec.guests == "simulated")
    began = clock.now()
    try:
        if not seen.is_simulated:
            find_pgbench()
        async with _fresh_cluster(spec, console) as site:
            answer = await knock(ClusterFolder.of(NAME), "status")
            seen.guests, seen.network = answer.guests, answer.network
            async with AsyncExitStack() as stack:
                with Screen(console, "autoscale demo") as screen:
                    await Play(site, screen, clock, seen, _loads(site, clock, spec, stack), seconds, began).run()
    except* AlreadyRunsError:
        seen.load_problem = "a demonstration runs already; end it with: autoscale local down --name demo"
    except* StepFailedError as failures:
        failure = _innermost(failures)
        seen.load_problem = str(failure)
        if isinstance(failure, StepFailedError):
            show_failure(console, failure)
    except* (SiteError, PgbenchError, NoAnswerError, ApiError, ApiUnavailableError) as errors:
        seen.load_problem = str(_innermost(errors))
    outcome = report(seen, Seconds(clock.now() - began))
    if report_file is not None:
        await asyncio.to_thread(report_file.write_bytes, msgspec.json.format(msgspec.json.encode(outcome)) + b"\n")
    _print(console, outcome)
    if picture_file is not None:
        await asyncio.to_thread(_draw, outcome, picture_file, console)
    return 0 if outcome.success else 1


def _draw(outcome: Report, path: Path, console: Console) -> None:
    from scripts.autoscale.demonstration.picture import (  # noqa: PLC0415 - matplotlib takes a second to import
        NothingToDrawError,
        draw,
    )

    try:
        draw(outcome, path)
    except NothingToDrawError as error:
        console.print(f"  {error}", soft_wrap=True)


def _innermost(error: BaseException) -> BaseException:
    return _innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


@asynccontextmanager
async def _fresh_cluster(spec: ClusterSpec, console: Console) -> AsyncIterator[Site]:
    """A cluster with nothing in it, which is gone again afterwards; its logs stay until the next one."""
    folder = ClusterFolder.of(NAME)
    if folder.runs():
        raise AlreadyRunsError(NAME)
    await remove_remains(folder)
    folder.remove()
    cluster = await launch(folder, spec, attached=True)
    try:
        with StepView(console) as view:
            await cluster.follow(view.show)
        async with open_site(NAME, "") as site:
            yield site
    finally:
        await cluster.end()


def _loads(
    site: Site, clock: Clock, spec: ClusterSpec, stack: AsyncExitStack
) -> Callable[[Json], Awaitable[LoadMaker]]:
    """Makes the load for the VM, once it runs."""

    async def make(vm: Json) -> LoadMaker:
        if spec.guests == "simulated":
            folder = ClusterFolder.of(NAME)
            door = await knock(folder, "expose", text(vm, "status", "podIP"), DAEMON_PORT)
            return SimulatedLoad(f"http://127.0.0.1:{door.port}", clock, 3.4, "500Mi")
        host, port = await stack.enter_async_context(site.into_vm(vm, _POSTGRES))
        return PgbenchLoad(Server(host, port), _CLIENTS, _SCALE)

    return make


def _print(console: Console, outcome: Report) -> None:
    good = outcome.success
    verdict = "[bold green]The VM followed its load.[/]" if good else "[bold red]It did not go well.[/]"
    console.print(verdict)
    for problem in outcome.problems:
        console.print(f"  [red]✗[/red] {problem}", soft_wrap=True)
    if outcome.grew_to is not None:
        console.print(f"  vCPU {outcome.started_at:g} → {outcome.grew_to:g} → {outcome.shrank_to or 0:g}")
    if outcome.reaction_seconds is not None:
        console.print(f"  more CPU in the guest {outcome.reaction_seconds:.1f} s after the load began")
    transactions = outcome.note or f"{outcome.transactions} transactions, {outcome.failed} failed"
    console.print(f"  {transactions}; {outcome.seconds_total:.0f} s in all")
