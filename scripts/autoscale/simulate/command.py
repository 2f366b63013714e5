"""``autoscale simulate``: options, progress and output. ``Run`` is the simulation."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deploy.neonvm.simulated.recording_rows import RecordingError
from protocol.units import Bytes, QuantityError, Seconds
from scripts.autoscale.outputs import (
    JsonFlag,
    OutputFiles,
    Recordings,
    ReportForm,
    SleepAfter,
    Speed,
    check_picture_path,
    parse_sleep_after,
    reporting_bad_input,
    write_report,
)
from scripts.autoscale.running import INTERRUPTED
from scripts.autoscale.simulate.fleet import SimulatedFleet, SimulationSettings, SimulationSettingsError, make_fleet
from scripts.autoscale.simulate.migration_model import LEAST_COST, ORDERS
from scripts.autoscale.simulate.run import Run
from scripts.autoscale.simulate.simulated_groups import SimulatedGroups
from scripts.autoscale.simulate.tables import SimulationOutcome, as_json, print_tables

DEFAULTS: Final = SimulationSettings()
GC_THRESHOLDS: Final = (50_000, 20, 1_000)

VictimOrders = Annotated[
    list[str] | None,
    typer.Option(help=f"Victim order: {', '.join(ORDERS)} (repeatable). Default: all; with --sleep only {LEAST_COST}."),
]
PeakShare = Annotated[
    float,
    typer.Option(min=0.05, max=1, help="Share of all nodes that the fleet needs at its peak; sets the node size."),
]


def simulate(  # noqa: PLR0913, PLR0917 - typer makes an option of every parameter
    nodes: Annotated[int, typer.Option(min=1, max=100_000, help="Number of nodes, all of one size.")] = DEFAULTS.nodes,
    vms: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of VMs.")] = DEFAULTS.vms,
    hours: Annotated[
        float, typer.Option(min=0.05, max=2000, help="Hours to simulate after one hour of warm-up.")
    ] = 24.0,
    step: Annotated[float, typer.Option(min=1, max=30, help="Simulated seconds per step.")] = 15.0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed; the same seed gives the same result.")] = DEFAULTS.seed,
    trace: Recordings = None,
    order: VictimOrders = None,
    watermark: Annotated[
        float, typer.Option(min=0.05, max=1, help="Share of a node above which VMs migrate away.")
    ] = 0.9,
    fill: PeakShare = DEFAULTS.fill,
    spread: Annotated[
        float, typer.Option(min=0, max=24, help="Shift the VMs' daily peaks by up to this many hours.")
    ] = 4.0,
    groups: Annotated[int, typer.Option(min=0, max=100_000, help="Number of groups: a primary and read replicas.")] = 0,
    replicas: Annotated[int, typer.Option(min=0, max=64, help="Read replicas per group, as additional VMs.")] = 2,
    sleep: SleepAfter = "0",
    bandwidth: Annotated[str, typer.Option(help="Bytes per second that a migration copies.")] = "256Mi",
    speed: Speed = 1.0,
    output: ReportForm = "text",
    as_json_: JsonFlag = False,
    plot: Annotated[
        Path | None, typer.Option(callback=check_picture_path, help="Write a plot to this file (PNG, SVG or PDF).")
    ] = None,
) -> None:
    """Simulate a day of a whole fleet in virtual time, with the real agents, ledger and migration planner.

    Compares victim orders: rules that choose which VM migrates. With --nodes 50 --vms 1000, each order takes six to ten
    minutes of CPU for 24 hours. Ctrl-C prints the results so far. Exits with 1 if a node was overcommitted.
    """
    with reporting_bad_input("autoscale simulate", RecordingError, SimulationSettingsError):
        sleep_delay = parse_sleep_after(sleep)
        # Savings hardly depend on the victim order.
        orders = _orders(order or ([LEAST_COST] if sleep_delay else list(ORDERS)))
        _check_finite(hours=hours, step=step, watermark=watermark, fill=fill, spread=spread)
        settings = SimulationSettings(
            nodes=nodes,
            vms=vms,
            hours=hours,
            step=Seconds(step),
            seed=seed,
            traces=tuple(trace or ()),
            speed=speed,
            watermark=Fraction(str(watermark)),
            fill=fill,
            spread=spread,
            bandwidth=_bandwidth(bandwidth),
            groups=SimulatedGroups(groups, replicas),
            sleep=sleep_delay,
        )
        # One fleet, so that all orders run the same day.
        with Console(stderr=True).status("preparing the fleet"):
            fleet = make_fleet(settings)
        outcomes, finished = _simulate_all(fleet, orders)
        _report(fleet, outcomes, "json" if as_json_ else output, plot, finished=finished)
    # An interrupted run is neither a success nor a failure.
    raise typer.Exit(int(any(outcome.problems for outcome in outcomes)) if finished else INTERRUPTED)


def _report(
    fleet: SimulatedFleet, outcomes: list[SimulationOutcome], form: OutputFiles, plot: Path | None, *, finished: bool
) -> None:
    if form == "text":
        print_tables(Console(), fleet, outcomes)
    else:
        write_report(as_json(fleet, outcomes, finished=finished), form)
    if plot is not None:
        from scripts.autoscale.simulate.plot import draw  # noqa: PLC0415 - matplotlib takes a second to import

        draw(fleet, outcomes, plot)


def _orders(names: list[str]) -> list[str]:
    unknown = [name for name in names if name not in ORDERS]
    if unknown:
        raise SimulationSettingsError(f"--order: expected any of {', '.join(ORDERS)}, got {unknown[0]!r}")
    # Drops duplicates and keeps the order.
    return list(dict.fromkeys(names))


def _check_finite(**numbers: float) -> None:
    for name, value in numbers.items():
        # NaN passes click's checks.
        if not isfinite(value):
            raise SimulationSettingsError(f"--{name}: {value} is not a finite number")


def _bandwidth(text: str) -> Bytes:
    try:
        rate = Bytes.parse(text)
    except QuantityError as error:
        raise SimulationSettingsError(f"--bandwidth: {error}") from None
    if not rate:
        raise SimulationSettingsError("--bandwidth: must be more than zero")
    return rate


def _simulate_all(fleet: SimulatedFleet, orders: list[str]) -> tuple[list[SimulationOutcome], bool]:
    """Simulate all orders; return their outcomes, and True unless interrupted."""
    outcomes: list[SimulationOutcome] = []
    with _progress() as progress, _rare_collections():
        for order in orders:
            outcome, finished = _simulate(fleet, order, progress)
            outcomes += [outcome] if outcome is not None else []
            if not finished:
                return outcomes, False
    return outcomes, True


def _simulate(fleet: SimulatedFleet, order: str, progress: Progress) -> tuple[SimulationOutcome | None, bool]:
    """Simulate one order; return its outcome (None if no step began), and True unless interrupted."""
    began, run = time.process_time(), None
    task = progress.add_task(order, total=None)
    try:
        run = Run(fleet, order)
        # The fleet lives until the end: exclude it from garbage collection.
        gc.freeze()
        for steps_done in run.execute():
            progress.update(task, completed=steps_done, total=run.steps)
        finished = True
    except KeyboardInterrupt:
        finished = False
    # Interrupted while placing VMs.
    if run is None:
        return None, finished
    return SimulationOutcome(run.figures(time.process_time() - began), run.curves, run.problems), finished


def _progress() -> Progress:
    # stdout is for tables or JSON.
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description:>12}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Make garbage collections rare while the context is open: most of the large heap lives until the end."""
    before = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
