"""The results of a simulation, as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from scripts.autoscale.replay.recording import Floats
from scripts.autoscale.simulate.figures import Figures
from scripts.autoscale.simulate.fleet import SimulatedFleet

POINTS: Final = 288


@dataclass(frozen=True)
class SimulationOutcome:
    """One order's figures, its curves over the hours counted, and the violations found."""

    figures: Figures
    curves: Mapping[str, Floats]
    problems: Sequence[str]


ROWS: Final[Sequence[tuple[str, Callable[[Figures], str]]]] = (
    ("permits asked", lambda found: f"{found.asked:,}"),
    ("granted in full", lambda found: f"{found.granted:,}"),
    ("partly denied", lambda found: f"{found.denied:,}"),
    ("denial, VM-seconds", lambda found: f"{found.denied_vm_seconds:,.0f}"),
    ("longest denial of a VM, seconds", lambda found: f"{found.longest_denial_seconds:,.0f}"),
    ("denial, vCPU-hours", lambda found: f"{found.denied_vcpu_hours:,.1f}"),
    ("migrations per hour", lambda found: f"{found.migrations_per_hour:,.1f}"),
    ("of VMs that moved within the hour before", lambda found: f"{found.moved_again:,}"),
    ("copied, GiB", lambda found: f"{found.copied_gib:,.0f}"),
    ("load on the move, vCPU-hours", lambda found: f"{found.disturbed_vcpu_hours:,.2f}"),
    ("failed", lambda found: f"{found.failed:,}"),
    ("no VM could leave, node-hours", lambda found: f"{found.stuck_node_hours:,.1f}"),
    ("over the watermark, node-hours", lambda found: f"{found.over_watermark_node_hours:,.1f}"),
    ("over the watermark, % of node-hours", lambda found: f"{found.over_watermark_percent:.2f}"),
    ("mean utilisation, %", lambda found: f"{100 * found.mean_utilisation:.1f}"),
    ("peak utilisation, %", lambda found: f"{100 * found.peak_utilisation:.1f}"),
    ("demand without CPU, %", lambda found: f"{found.short_percent:.3f}"),
    ("over-commit violations", lambda found: f"{found.violations:,}"),
    ("CPU seconds to play it", lambda found: f"{found.cpu_seconds:,.1f}"),
)
"""The rows of the table. Violations must be 0 in every column."""

GROUP_ROWS: Final[Sequence[tuple[str, Callable[[Figures], str]]]] = (
    ("groups, and their replicas", lambda found: f"{found.groups:,}, {found.replicas:,}"),
    ("beside another of their group, % of member-hours", lambda found: f"{found.sharing_percent:.2f}"),
)
"""Rows of fleets that have groups."""


def print_tables(console: Console, fleet: SimulatedFleet, outcomes: Sequence[SimulationOutcome]) -> None:
    """The orders side by side, and the violations found."""
    hours = max((each.figures.hours for each in outcomes), default=0.0)
    console.print(f"{describe(fleet)}; {hours:g} h counted", highlight=False, soft_wrap=True)
    table = Table("")
    for each in outcomes:
        table.add_column(each.figures.order, justify="right")
    for name, cell in (*ROWS, *(GROUP_ROWS if fleet.settings.groups.count else ())):
        table.add_row(name, *(cell(each.figures) for each in outcomes))
    console.print(table)
    for each in outcomes:
        for problem in each.problems[:10]:
            console.print(f"[red]{each.figures.order}: {problem}")


def describe(fleet: SimulatedFleet) -> str:
    """The fleet in one line."""
    settings = fleet.settings
    return (
        f"{settings.vms:,} VMs on {settings.nodes:,} nodes of {fleet.total.cpu.as_cores:g} vCPU and "
        f"{fleet.total.mem.as_gib:g} GiB, bounds {fleet.overbooking:.2f} times that, seed {settings.seed}"
    )


def as_json(fleet: SimulatedFleet, outcomes: Sequence[SimulationOutcome], *, finished: bool) -> bytes:
    """All results as JSON; each curve as means over at most ``POINTS`` equal intervals."""
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
                "figures": each.figures,
                "problems": list(each.problems),
                "curves": {name: _rounded(curve, each.figures.hours) for name, curve in each.curves.items()},
            }
            for each in outcomes
        ],
    }
    if settings.groups.count:
        document["groups"] = {"count": settings.groups.count, "replicas": settings.groups.replicas}
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _rounded(curve: Floats, hours: float) -> list[float]:
    return [round(float(value), 4) for value in thinned(curve, hours, POINTS)[1]]


def thinned(curve: Floats, hours: float, points: int) -> tuple[Floats, Floats]:
    """The means of at most ``points`` equal intervals of a curve of ``hours``: (middles in hours, means)."""
    count = min(points, len(curve))
    if not count:
        return np.zeros(0), np.zeros(0)
    edges = np.linspace(0, len(curve), count + 1).astype(np.int64)
    means = np.add.reduceat(curve, edges[:-1]) / np.diff(edges)
    return (np.arange(count) + 0.5) * hours / count, np.asarray(means, dtype=np.float64)
