"""Plots the curves of a simulation.

Curves are means over equal intervals, so that no spike is lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from scripts.autoscale.drawing import save, style_panel
from scripts.autoscale.replay.recording import Floats
from scripts.autoscale.simulate.fleet import SimulatedFleet
from scripts.autoscale.simulate.tables import SimulationOutcome, describe, downsampled

POINTS: Final = 192
INK, DEMAND = "#1d3557", "#cfe0f0"


def draw(fleet: SimulatedFleet, outcome: SimulationOutcome, path: Path) -> None:
    """Write the plot to ``path``; its panels are empty if no hours are counted."""
    figure = Figure(figsize=(13, 11.5), layout="constrained")
    over, migrations, denied, utilisation = figure.subplots(4, 1, sharex=True, height_ratios=[3, 2.4, 2.4, 2])
    hours, curves, nodes = outcome.figures.hours, outcome.curves, fleet.settings.nodes
    if hours:
        over.plot(*downsampled(100 * curves["over_watermark"] / nodes, hours, POINTS), color=INK)
        migrations.plot(*_per_hour(curves["migrations"], hours), color=INK)
        denied.plot(*downsampled(curves["denied"], hours, POINTS), color=INK)
        utilisation.plot(*downsampled(100 * curves["utilisation"], hours, POINTS), color=INK)
        vcpus = fleet.total.cpu.as_cores * nodes
        at, demand = downsampled(100 * curves["demand"] / vcpus, hours, POINTS)
        utilisation.fill_between(at, demand, color=DEMAND, linewidth=0, zorder=0)
    _format_panel(over, "nodes over watermark, %", f"watermark: {100 * float(fleet.settings.watermark):g} %")
    _format_panel(migrations, "migrations started per hour", "")
    _format_panel(denied, "denied VMs", "log scale")
    # Denials range from zero to thousands; `log` has no zero.
    denied.set_yscale("symlog", linthresh=1, linscale=0.5)
    # Plain numbers instead of powers of ten.
    denied.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _format_panel(utilisation, "mean utilization of nodes, %", "shaded: CPU demand of all guests")
    utilisation.set_xlabel("hours")
    utilisation.set_xlim(0, hours or 1.0)
    figure.suptitle(describe(fleet), color=INK, fontsize=13)
    save(figure, path)


def _per_hour(started: Floats, hours: float) -> tuple[Floats, Floats]:
    """Hourly rate of a cumulative count, for each quarter of an hour: (hours, rates)."""
    count = max(1, min(round(hours * 4), len(started)))
    at = np.linspace(0, len(started) - 1, count + 1).astype(np.int64)
    return (np.arange(count) + 0.5) * hours / count, np.diff(started[at]) * count / hours


def _format_panel(panel: Axes, title: str, subtitle: str) -> None:
    panel.set_title(title, loc="left", fontsize=10.5, color=INK)
    panel.set_title(subtitle, loc="right", fontsize=9, color="#8d99ae")
    panel.set_ylim(bottom=0)
    style_panel(panel)
