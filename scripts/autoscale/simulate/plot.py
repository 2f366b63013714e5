"""The plot of a simulation: the curves of every victim order over the same day.

Each panel shows means over equal intervals, so that spikes stay readable and none is left out.
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
from scripts.autoscale.simulate.tables import SimulationOutcome, describe, thinned

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
    """Writes the plot. Orders without counted hours are left out."""
    counted = [outcome for outcome in orders if outcome.figures.hours > 0]
    figure = Figure(figsize=(13, 11.5), dpi=110, layout="constrained")
    over, migrations, denied, filled = figure.subplots(4, 1, sharex=True, height_ratios=[3, 2.4, 2.4, 2])
    nodes = fleet.settings.nodes
    for outcome in counted:
        name, hours, curves = outcome.figures.order, outcome.figures.hours, outcome.curves
        style = {"color": COLOURS.get(name, "#6c757d"), "linewidth": WIDTHS.get(name, 1.4)}
        over.plot(
            *thinned(100 * curves["over_watermark"] / nodes, hours, POINTS), label=_in_words(outcome.figures), **style
        )
        denied.plot(*thinned(curves["denied"], hours, POINTS), **style)
        filled.plot(*thinned(100 * curves["utilisation"], hours, POINTS), **style)
        # Without migration the rate would be a line at zero.
        if name != "none":
            migrations.plot(*_per_hour(curves["migrations"], hours), **style)
    _finish(over, "nodes over the watermark, %", f"{100 * float(fleet.settings.watermark):g} % of what can be reserved")
    _finish(migrations, "migrations begun per hour", "")
    _finish(denied, "VMs that lack what they asked for", "by powers of ten")
    # Denials range from none to thousands, and a logarithm has no zero.
    denied.set_yscale("symlog", linthresh=1, linscale=0.5)
    # Numbers in digits, not as powers of ten.
    denied.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _finish(filled, "reserved of all nodes, %", "the shade: demand of all guests, of all vCPUs")
    # Demand is the same under every order, so it is drawn once.
    _demand(filled, fleet, counted[:1])
    filled.set_xlabel("hours")
    filled.set_xlim(0, max((outcome.figures.hours for outcome in counted), default=1.0))
    _head(figure, over, f"Who moves when a node fills up?  {describe(fleet)}")
    figure.savefig(path)


def _head(figure: Figure, panel: Axes, title: str) -> None:
    """The title and the legend, above all panels, where they cover no curve."""
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


def _demand(panel: Axes, fleet: SimulatedFleet, shown: Sequence[SimulationOutcome]) -> None:
    vcpus = fleet.total.cpu.as_cores * fleet.settings.nodes
    for outcome in shown:
        hours, demand = thinned(100 * outcome.curves["demand"] / vcpus, outcome.figures.hours, POINTS)
        panel.fill_between(hours, demand, color=DEMAND, linewidth=0, zorder=0)


def _per_hour(begun: Floats, hours: float) -> tuple[Floats, Floats]:
    """The hourly rate of a monotonic count, per quarter of an hour."""
    count = max(1, min(round(hours * 4), len(begun)))
    at = np.linspace(0, len(begun) - 1, count + 1).astype(np.int64)
    return (np.arange(count) + 0.5) * hours / count, np.diff(begun[at]) * count / hours


def _finish(panel: Axes, title: str, beside: str) -> None:
    panel.set_title(title, loc="left", fontsize=10.5, color=INK)
    panel.set_title(beside, loc="right", fontsize=9, color="#8d99ae")
    panel.set_ylim(bottom=0)
    style_panel(panel)


def _in_words(figures: Figures) -> str:
    return (
        f"{figures.order}: {figures.over_watermark_percent:.2f} % of node-hours over, "
        f"{figures.migrations_per_hour:,.0f} migrations/h, {figures.denied_vcpu_hours:,.0f} vCPU-hours denied"
    )
