"""The picture of a replay: one panel per recording with its demand, what was allocated, and where that was too little.

A panel has far fewer columns than a recording has steps. Every column shows the range of demand and allocation within
it, and any shortfall however short, so that nothing is hidden by averaging.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.autoscale.replay.play import Played
from scripts.autoscale.replay.recording import Floats
from scripts.autoscale.replay.score import Score

COLUMNS: Final = 1200
DEMAND, ALLOCATION, SHORTFALL, RIVAL = "#8fb8de", "#1d3557", "#e63946", "#b8b8b8"
"""Sky, ink, red, and grey for the policy that ours is compared with."""


def draw(played: Sequence[Played], path: Path) -> None:
    """Writes the picture; the first policy is drawn boldly, the second, if any, thinly behind it."""
    figure = Figure(figsize=(15, 1.1 + 2.3 * len(played)), dpi=110, layout="constrained")
    panels = figure.subplots(len(played), 1, squeeze=False)[:, 0]
    names = list(played[0].scores)
    for panel, one in zip(panels, played, strict=True):
        _draw_panel(panel, one, names[:2])
    panels[-1].set_xlabel("hours, from where scoring begins")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False, fontsize=10)
    figure.savefig(path)


def _draw_panel(panel: Axes, one: Played, names: Sequence[str]) -> None:
    begin = one.timeline.warm_up
    demand = one.timeline.demand[begin:]
    edges = np.linspace(0, len(demand), min(COLUMNS, len(demand)) + 1).astype(int)[:-1]
    hours = edges * one.timeline.step / 3600
    most = np.maximum.reduceat(demand, edges)
    first = one.allocations[names[0]][begin:]
    panel.fill_between(hours, most, step="post", color=DEMAND, linewidth=0, label="demand")
    for rival in names[1:]:
        panel.plot(
            hours,
            _most(one.allocations[rival][begin:], edges),
            color=RIVAL,
            linewidth=0.9,
            drawstyle="steps-post",
            label=rival,
        )
    given = _most(first, edges)
    panel.plot(hours, given, color=ALLOCATION, linewidth=1.2, drawstyle="steps-post", label=f"allocated by {names[0]}")
    short = np.maximum.reduceat(np.maximum(0.0, demand - first), edges)
    panel.fill_between(
        hours,
        most - short,
        most,
        where=short > 1e-9,
        step="post",
        color=SHORTFALL,
        linewidth=0.6,
        edgecolor=SHORTFALL,
        label="shortfall",
    )
    panel.set_title(
        f"{one.timeline.name}   {_in_words(one.scores[names[0]])}", loc="left", fontsize=10, color=ALLOCATION
    )
    panel.set_ylabel("vCPU")
    panel.set_xlim(0, max(hours[-1], 1e-9))
    panel.set_ylim(bottom=0)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _most(values: Floats, edges: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
    return np.asarray(np.maximum.reduceat(values, edges), dtype=np.float64)


def _in_words(score: Score) -> str:
    return (
        f"{score.cost:.2f} x oracle  ·  {score.insufficient_percent:.2f} % of demand short  ·  "
        f"{score.actions_per_hour:.0f} actions/h"
    )
