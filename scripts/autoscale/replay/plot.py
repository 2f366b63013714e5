"""The plot of a replay: a panel per recording with demand, allocation and shortfalls; for a group also a panel with the
number and size of its replicas.

Columns show maxima, because means would hide spikes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from scripts.autoscale.drawing import save, style_panel
from scripts.autoscale.replay.groups.group_model import GroupReplay
from scripts.autoscale.replay.play import ReplayResult, S, totals
from scripts.autoscale.replay.recording import Floats

COLUMNS: Final = 1200
SIZE: Final = "#5b9a68"
# The colours differ in lightness as well as hue, for colour-blind readers and print.
DEMAND, ALLOCATION, SHORTFALL, RIVAL = "#9ccbea", "#12304f", "#d55e00", "#8a8a8a"
"""Light blue, ink, vermilion, and grey for the policy that the first one is compared with."""

SPANS: Final = ((86_400.0 * 3, 86_400.0, "d"), (3600.0 * 2, 3600.0, "h"), (0.0, 60.0, "min"))
"""Minimum length in seconds of a panel whose axis uses a unit, its seconds, and its name."""

Edges = np.ndarray[tuple[int], np.dtype[np.int64]]


def draw(results: Sequence[ReplayResult[S]], path: Path, speed: float) -> None:
    """Writes the plot; the first policy has a bold line, and the second, if any, a thin one behind it."""
    names, groups = list(results[0].scores)[:2], [result for result in results if isinstance(result, GroupReplay)]
    heights = ([3, 1] if groups else [1]) * len(results)
    figure = Figure(figsize=(14, 1.5 + (3.1 if groups else 2.3) * len(results)), dpi=110, layout="constrained")
    panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, result in zip(panels[:: len(heights) // len(results)], results, strict=True):
        _draw_panel(panel, result, names)
        _label_panel(panel, result, names)
    for panel, group in zip(panels[1::2] if groups else (), groups, strict=True):
        _draw_replicas(panel, group, names[0])
    figure.suptitle(_title(results, names, speed), x=0.01, ha="left", fontsize=13, color=ALLOCATION)
    legends = [panel.get_legend_handles_labels() for panel in panels[: 2 if groups else 1]]
    handles, labels = ([part for legend in legends for part in legend[which]] for which in (0, 1))
    figure.legend(handles, labels, loc="outside lower left", ncols=6, frameon=False, fontsize=10)
    save(figure, path)


def _title(results: Sequence[ReplayResult[S]], names: Sequence[str], speed: float) -> str:
    faster = f", played {speed:g} times faster" if speed != 1 else ""
    lines = [f"vCPUs needed and vCPUs given by {' and '.join(names)}{faster}"]
    if len(results) > 1:
        overall = totals(results)
        lines += [f"overall, {name}: {overall[name]}" for name in names]
    return "\n".join(lines)


def _columns(result: ReplayResult[S]) -> tuple[Edges, Floats]:
    """The start indices of columns, and their times in seconds."""
    length = len(result.timeline.demand) - result.timeline.warm_up
    edges = np.linspace(0, length, min(COLUMNS, length) + 1).astype(int)[:-1]
    return edges, edges * result.timeline.step


def _draw_panel(panel: Axes, result: ReplayResult[S], names: Sequence[str]) -> None:
    begin, (edges, at) = result.timeline.warm_up, _columns(result)
    demand, first = result.timeline.demand[begin:], result.allocations[names[0]][begin:]
    needed = column_maxima(demand, edges)
    panel.fill_between(at, needed, step="post", color=DEMAND, linewidth=0, label="needed")
    # The first policy last, on top of the others.
    for name, color, width in reversed([*zip(names, (ALLOCATION, RIVAL), (1.3, 1.0), strict=False)]):
        allocated = column_maxima(result.allocations[name][begin:], edges)
        panel.plot(at, allocated, color=color, linewidth=width, drawstyle="steps-post", label=f"given by {name}")
    short = column_maxima(np.maximum(0.0, demand - first), edges)
    panel.fill_between(
        at,
        needed - short,
        needed,
        where=(short > 1e-9).tolist(),
        step="post",
        color=SHORTFALL,
        linewidth=0.9,
        zorder=3,
        label=f"needed and not given by {names[0]}",
    )


def _label_panel(panel: Axes, result: ReplayResult[S], names: Sequence[str]) -> None:
    """Adds titles and axes."""
    panel.set_title(f"{result.timeline.name}   {result.scores[names[0]]}", loc="left", fontsize=10, color=ALLOCATION)
    for rival in names[1:]:
        panel.set_title(f"{rival}: {result.scores[rival]}", loc="right", fontsize=9, color=RIVAL)
    style_axes(panel, result.timeline.scored_hours * 3600)


def _draw_replicas(panel: Axes, group: GroupReplay, name: str) -> None:
    begin, (edges, at) = group.timeline.warm_up, _columns(group)
    orders = group.orders[name]
    replicas = column_maxima(orders.replicas[begin:], edges)
    panel.plot(at, replicas, color=ALLOCATION, linewidth=1.0, drawstyle="steps-post", label=f"replicas of {name}")
    style_axes(panel, group.timeline.scored_hours * 3600)
    panel.set_ylabel("replicas")
    sizes = panel.twinx()
    sizes.plot(at, column_maxima(orders.size[begin:], edges), color=SIZE, linewidth=1.0, drawstyle="steps-post")
    # An empty line for the legend, which does not contain the other axis.
    panel.plot([], [], color=SIZE, linewidth=1.0, label="vCPUs of each")
    sizes.set_ylabel("vCPU each", color=SIZE)
    sizes.set_ylim(bottom=0)
    sizes.spines[["top"]].set_visible(False)


def style_axes(panel: Axes, longest: float) -> None:
    """Sets the units and ticks of a panel of vCPUs over ``longest`` seconds."""
    unit, name = next((unit, name) for shortest, unit, name in SPANS if longest >= shortest)
    panel.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 3, 5, 6, 10]))
    # Ticks at round numbers of the unit instead of seconds.
    panel.set_xticks([tick * unit for tick in panel.get_xaxis().get_major_locator().tick_values(0, longest / unit)])
    panel.set_xlim(0, max(longest, 1e-9))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at / unit:g} {name}"))
    panel.set_ylabel("vCPU")
    panel.set_ylim(bottom=0)
    panel.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    style_panel(panel)


def column_maxima(values: Floats, edges: Edges) -> Floats:
    """The maximum of each column; ``edges`` are the start indices of columns."""
    return np.asarray(np.maximum.reduceat(values, edges), dtype=np.float64)
