"""Plots the curves of all victim orders over the same day.

Curves are means over equal intervals, so that no spike is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from scripts.autoscale.drawing import style_panel
from scripts.autoscale.replay.recording import Floats
from scripts.autoscale.simulate.fleet import SimulatedFleet
from scripts.autoscale.simulate.run_statistics import Figures
from scripts.autoscale.simulate.tables import SimulationOutcome, describe, downsampled

POINTS: Final = 192
INK, DEMAND = "#1d3557", "#cfe0f0"
COLOURS: Final = {
    "least-cost": INK,
    "least-loaded": "#457b9d",
    "random": "#f4a261",
    "oldest-first": "#2a9d8f",
    "none": "#e63946",
}
WIDTHS: Final = {"least-cost": 2.2}


def draw(fleet: SimulatedFleet, orders: Sequence[SimulationOutcome], path: Path) -> None:
    """Write the plot to ``path``, without orders that have no counted hours."""
    counted = [outcome for outcome in orders if outcome.figures.hours > 0]
    figure = Figure(figsize=(13, 11.5), dpi=110, layout="constrained")
    over, migrations, denied, utilisation = figure.subplots(4, 1, sharex=True, height_ratios=[3, 2.4, 2.4, 2])
    nodes = fleet.settings.nodes
    for outcome in counted:
        name, hours, curves = outcome.figures.order, outcome.figures.hours, outcome.curves
        style = {"color": COLOURS.get(name, "#6c757d"), "linewidth": WIDTHS.get(name, 1.4)}
        over.plot(
            *downsampled(100 * curves["over_watermark"] / nodes, hours, POINTS), label=_label(outcome.figures), **style
        )
        denied.plot(*downsampled(curves["denied"], hours, POINTS), **style)
        utilisation.plot(*downsampled(100 * curves["utilisation"], hours, POINTS), **style)
        # The rate of `none` is always zero.
        if name != "none":
            migrations.plot(*_per_hour(curves["migrations"], hours), **style)
    _format_panel(over, "nodes over watermark, %", f"watermark: {100 * float(fleet.settings.watermark):g} %")
    _format_panel(migrations, "migrations started per hour", "")
    _format_panel(denied, "denied VMs", "log scale")
    # Denials range from zero to thousands; `log` has no zero.
    denied.set_yscale("symlog", linthresh=1, linscale=0.5)
    # Plain numbers instead of powers of ten.
    denied.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _format_panel(utilisation, "mean utilization of nodes, %", "shaded: CPU demand of all guests")
    # The demand is the same for every order.
    _shade_demand(utilisation, fleet, counted[:1])
    utilisation.set_xlabel("hours")
    utilisation.set_xlim(0, max((outcome.figures.hours for outcome in counted), default=1.0))
    _add_legend(figure, over, f"Victim orders compared: {describe(fleet)}")
    figure.savefig(path)


def _add_legend(figure: Figure, panel: Axes, title: str) -> None:
    """Add title and legend above the panels, where they cover no curve."""
    legend = figure.legend(
        handles=panel.get_lines(),
        loc="outside upper left",
        title=title,
        title_fontproperties={"size": 13},
        alignment="left",
        frameon=False,
        fontsize=9.5,
        labelcolor="linecolor",
        handlelength=1.2,
    )
    legend.get_title().set_color(INK)


def _shade_demand(panel: Axes, fleet: SimulatedFleet, outcomes: Sequence[SimulationOutcome]) -> None:
    vcpus = fleet.total.cpu.as_cores * fleet.settings.nodes
    for outcome in outcomes:
        hours, demand = downsampled(100 * outcome.curves["demand"] / vcpus, outcome.figures.hours, POINTS)
        panel.fill_between(hours, demand, color=DEMAND, linewidth=0, zorder=0)


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


def _label(figures: Figures) -> str:
    return (
        f"{figures.order}: {figures.over_watermark_percent:.2f} % of node-hours over, "
        f"{figures.migrations_per_hour:,.0f} migrations/h, {figures.denied_vcpu_hours:,.0f} vCPU-hours denied"
    )
