"""The picture of a replay: one panel per recording with its demand, its allocation, and every shortfall."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from scripts.autoscale.drawing import dress
from scripts.autoscale.replay.play import Played, totals
from scripts.autoscale.replay.recording import Floats
from scripts.autoscale.replay.score import Score

COLUMNS: Final = 1200
# The colours differ in lightness as well as in hue, for colour-blind readers and for paper.
DEMAND, ALLOCATION, SHORTFALL, RIVAL = "#9ccbea", "#12304f", "#d55e00", "#8a8a8a"
"""Light blue, ink, vermilion, and grey for the policy that the first is compared with."""

SPANS: Final = ((86_400.0 * 3, 86_400.0, "d"), (3600.0 * 2, 3600.0, "h"), (0.0, 60.0, "min"))
"""From how many seconds on a panel counts in which unit."""

Edges = np.ndarray[tuple[int], np.dtype[np.int64]]


def draw(played: Sequence[Played], path: Path, speed: float) -> None:
    """Writes the picture; the first policy is drawn boldly, the second, if any, thinly behind it."""
    figure = Figure(figsize=(14, 1.5 + 2.3 * len(played)), dpi=110, layout="constrained")
    panels = figure.subplots(len(played), 1, squeeze=False)[:, 0]
    names = list(played[0].scores)[:2]
    for panel, one in zip(panels, played, strict=True):
        _draw_panel(panel, one, names)
        _dress_panel(panel, one, names)
    figure.suptitle(_title(played, names, speed), x=0.01, ha="left", fontsize=13, color=ALLOCATION)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=len(labels), frameon=False, fontsize=10)
    figure.savefig(path)


def _title(played: Sequence[Played], names: Sequence[str], speed: float) -> str:
    faster = f", played {speed:g} times faster" if speed != 1 else ""
    lines = [f"vCPUs needed and vCPUs given by {' and '.join(names)}{faster}"]
    if len(played) > 1:
        whole = totals(played)
        lines += [f"overall, {name}: {_in_words(whole[name])}" for name in names]
    return "\n".join(lines)


def _draw_panel(panel: Axes, one: Played, names: Sequence[str]) -> None:
    begin = one.timeline.warm_up
    demand, first = one.timeline.demand[begin:], one.allocations[names[0]][begin:]
    # A panel has far fewer columns than a recording has steps.
    edges = np.linspace(0, len(demand), min(COLUMNS, len(demand)) + 1).astype(int)[:-1]
    at, most = edges * one.timeline.step, column_most(demand, edges)
    panel.fill_between(at, most, step="post", color=DEMAND, linewidth=0, label="needed")
    for rival in names[1:]:
        allocated = column_most(one.allocations[rival][begin:], edges)
        panel.plot(at, allocated, color=RIVAL, linewidth=1.0, drawstyle="steps-post", label=f"given by {rival}")
    allocated = column_most(first, edges)
    panel.plot(at, allocated, color=ALLOCATION, linewidth=1.3, drawstyle="steps-post", label=f"given by {names[0]}")
    # The greatest shortfall of a column shows however short it is; a mean would hide it.
    short = column_most(np.maximum(0.0, demand - first), edges)
    panel.fill_between(
        at,
        most - short,
        most,
        where=(short > 1e-9).tolist(),
        step="post",
        color=SHORTFALL,
        linewidth=0.9,
        zorder=3,
        label=f"needed and not given by {names[0]}",
    )
    # A recording of a single step would have an axis without width.
    panel.set_xlim(0, max(at[-1], 1e-9))


def _dress_panel(panel: Axes, one: Played, names: Sequence[str]) -> None:
    """Titles, axes and units."""
    panel.set_title(
        f"{one.timeline.name}   {_in_words(one.scores[names[0]])}", loc="left", fontsize=10, color=ALLOCATION
    )
    for rival in names[1:]:
        panel.set_title(f"{rival}: {_in_words(one.scores[rival])}", loc="right", fontsize=9, color=RIVAL)
    dress_axes(panel, one.timeline.scored_hours * 3600)


def dress_axes(panel: Axes, longest: float) -> None:
    """Units and lines of a panel of vCPUs over ``longest`` seconds."""
    unit, name = next((unit, name) for least, unit, name in SPANS if longest >= least)
    panel.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 3, 5, 6, 10]))
    # Ticks in whole units: matplotlib's own would be round numbers of seconds.
    panel.set_xticks([tick * unit for tick in panel.get_xaxis().get_major_locator().tick_values(0, longest / unit)])
    panel.set_xlim(0, max(longest, 1e-9))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at / unit:g} {name}"))
    panel.set_ylabel("vCPU")
    panel.set_ylim(bottom=0)
    panel.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    dress(panel)


def column_most(values: Floats, edges: Edges) -> Floats:
    """The greatest value of every column; ``edges`` are the indices at which columns begin."""
    return np.asarray(np.maximum.reduceat(values, edges), dtype=np.float64)


def _in_words(score: Score) -> str:
    return (
        f"{score.cost:.2f} x oracle  ·  {score.insufficient_percent:.2f} % of demand short  ·  "
        f"{score.actions_per_hour:.0f} resizes/h"
    )
