"""Formats the results of a simulation as tables or JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from protocol.durations import format_duration
from scripts.autoscale.replay.recording import UNIT as IDLE
from scripts.autoscale.replay.recording import Floats
from scripts.autoscale.simulate.fleet import SimulatedFleet
from scripts.autoscale.simulate.run_statistics import Figures
from scripts.autoscale.terminal.printing import print_table

POINTS: Final = 288


@dataclass(frozen=True)
class SimulationOutcome:
    """Figures, curves and violations of one victim order."""

    figures: Figures
    curves: Mapping[str, Floats]
    problems: Sequence[str]


ROWS: Final[Sequence[tuple[str, Callable[[Figures], str]]]] = (
    ("growths requested", lambda figures: f"{figures.asked:,}"),
    ("granted in full", lambda figures: f"{figures.granted:,}"),
    ("in full and in place, %", lambda figures: f"{figures.in_place_percent:.2f}"),
    ("partly denied", lambda figures: f"{figures.denied:,}"),
    ("denial, VM-seconds", lambda figures: f"{figures.denied_vm_seconds:,.0f}"),
    ("worst VM's share of that, %", lambda figures: f"{figures.unfairness_percent:.1f}"),
    ("worst VM", lambda figures: figures.worst_vm or "-"),
    ("longest denial, seconds", lambda figures: f"{figures.longest_denial_seconds:,.0f}"),
    ("denial, vCPU-hours", lambda figures: f"{figures.denied_vcpu_hours:,.1f}"),
    ("shrinks for neighbours", lambda figures: f"{figures.shrinks:,}"),
    ("regrown within a minute, %", lambda figures: f"{figures.regrown_percent:.1f}"),
    ("migrations per hour", lambda figures: f"{figures.migrations_per_hour:,.1f}"),
    ("moved again within the hour", lambda figures: f"{figures.moved_again:,}"),
    ("copied, GiB", lambda figures: f"{figures.copied_gib:,.0f}"),
    ("load while migrating, vCPU-hours", lambda figures: f"{figures.disturbed_vcpu_hours:,.2f}"),
    ("failed migrations", lambda figures: f"{figures.failed:,}"),
    ("no VM could leave, node-hours", lambda figures: f"{figures.stuck_node_hours:,.1f}"),
    ("over watermark, node-hours", lambda figures: f"{figures.over_watermark_node_hours:,.1f}"),
    ("over watermark, %", lambda figures: f"{figures.over_watermark_percent:.2f}"),
    ("mean utilization, %", lambda figures: f"{100 * figures.mean_utilisation:.1f}"),
    ("peak utilization, %", lambda figures: f"{100 * figures.peak_utilisation:.1f}"),
    ("demand without CPU, %", lambda figures: f"{figures.short_percent:.3f}"),
    ("over-commit violations", lambda figures: f"{figures.violations:,}"),
    ("CPU seconds of the simulation", lambda figures: f"{figures.cpu_seconds:,.1f}"),
)
"""Rows of the table. Violations must be 0 in every column."""

GROUP_ROWS: Final[Sequence[tuple[str, Callable[[Figures], str]]]] = (
    ("groups, replicas", lambda figures: f"{figures.groups:,}, {figures.replicas:,}"),
    ("members sharing a node, %", lambda figures: f"{figures.sharing_percent:.2f}"),
)
"""Further rows for fleets with groups."""

SLEEP_ROWS: Final[Sequence[tuple[str, Callable[[Figures], str]]]] = (
    ("asleep, % of the VMs' time", lambda figures: f"{figures.asleep_percent:.1f}"),
    ("sleep saves, vCPU-hours", lambda figures: f"{figures.sleep_vcpu_hours:,.1f}"),
    ("sleep saves, GiB-hours", lambda figures: f"{figures.sleep_gib_hours:,.1f}"),
    ("sleep saves, % of all", lambda figures: f"{figures.sleep_percent:.1f}"),
)
"""Further rows with ``--sleep``."""

UPPER_BOUND: Final = "recordings do not show sessions, so these savings are upper bounds"


def print_tables(console: Console, fleet: SimulatedFleet, outcomes: Sequence[SimulationOutcome]) -> None:
    """Print a table with one column per order, and up to ten violations per order."""
    hours = max((outcome.figures.hours for outcome in outcomes), default=0.0)
    console.print(f"{describe(fleet)}; {hours:g} h counted", highlight=False, soft_wrap=True)
    table = Table("")
    for outcome in outcomes:
        table.add_column(outcome.figures.order, justify="right")
    settings = fleet.settings
    extra_rows = (*(GROUP_ROWS if settings.groups.count else ()), *(SLEEP_ROWS if settings.sleep else ()))
    for name, cell in (*ROWS, *extra_rows):
        table.add_row(name, *(cell(outcome.figures) for outcome in outcomes))
    print_table(console, table)
    if settings.sleep:
        # A polled VM looks idle, too.
        line = f"asleep: below {IDLE:g} vCPU for {format_duration(settings.sleep)}; {UPPER_BOUND}"
        console.print(line, highlight=False, soft_wrap=True)
    for outcome in outcomes:
        # A violation often repeats in each step.
        for problem in outcome.problems[:10]:
            console.print(f"[red]{outcome.figures.order}: {problem}")


def describe(fleet: SimulatedFleet) -> str:
    """Describe the fleet in one line."""
    settings = fleet.settings
    return (
        f"{settings.vms:,} VMs on {settings.nodes:,} nodes of {fleet.total.cpu.as_cores:g} vCPU and "
        f"{fleet.total.mem.as_gib:g} GiB, VM maximums {fleet.overbooking:.2f} times that, seed {settings.seed}"
    )


def as_json(fleet: SimulatedFleet, outcomes: Sequence[SimulationOutcome], *, finished: bool) -> bytes:
    """Encode all results as JSON, with curves downsampled to at most ``POINTS`` values."""
    settings = fleet.settings
    document = {
        "finished": finished,
        "nodes": settings.nodes,
        "vms": settings.vms,
        "node": {"vCPUs": fleet.total.cpu.as_cores, "mem": str(fleet.total.mem)},
        "overbooking": round(fleet.overbooking, 3),
        "seed": settings.seed,
        "step_seconds": settings.step,
        "watermark": float(settings.watermark),
        "orders": [
            {
                "figures": outcome.figures,
                "problems": list(outcome.problems),
                "curves": {name: _rounded(curve, outcome.figures.hours) for name, curve in outcome.curves.items()},
            }
            for outcome in outcomes
        ],
    }
    if settings.groups.count:
        document["groups"] = {"count": settings.groups.count, "replicas": settings.groups.replicas}
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _rounded(curve: Floats, hours: float) -> list[float]:
    return [round(float(value), 4) for value in downsampled(curve, hours, POINTS)[1]]


def downsampled(curve: Floats, hours: float, points: int) -> tuple[Floats, Floats]:
    """Downsample a curve of ``hours`` to means over at most ``points`` equal intervals: (middles in hours, means)."""
    count = min(points, len(curve))
    # An interrupted order may have no counted step.
    if not count:
        return np.zeros(0), np.zeros(0)
    edges = np.linspace(0, len(curve), count + 1).astype(np.int64)
    # Means, so that no spike is lost.
    means = np.add.reduceat(curve, edges[:-1]) / np.diff(edges)
    return (np.arange(count) + 0.5) * hours / count, np.asarray(means, dtype=np.float64)
