"""The picture of a group's replay: for each recording need and allocation, and the number and size of the replicas.

As in the picture of single policies a column shows the maximum of its range, so that averaging hides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.autoscale.drawing import save
from scripts.autoscale.replay.groups.group_model import GroupReplay, GroupScore, group_totals
from scripts.autoscale.replay.plot import ALLOCATION, DEMAND, RIVAL, SHORTFALL, Edges, column_most, dress_axes

COLUMNS: Final = 300
SIZE: Final = "#5b9a68"


def draw_groups(replays: Sequence[GroupReplay], path: Path, speed: float) -> None:
    """Writes the picture; the first policy is drawn boldly, the second, if any, thinly behind it."""
    names = list(replays[0].scores)[:2]
    figure = Figure(figsize=(12, 1.2 + 3.0 * len(replays)), dpi=110, layout="constrained")
    panels = figure.subplots(2 * len(replays), 1, squeeze=False, height_ratios=[3, 1] * len(replays))[:, 0]
    for number, replay in enumerate(replays):
        _draw_capacity(panels[2 * number], replay, names)
        _draw_replicas(panels[2 * number + 1], replay, names[0])
    figure.suptitle(_title(replays, names, speed), x=0.01, ha="left", fontsize=12, color=ALLOCATION)
    handles, labels = panels[0].get_legend_handles_labels()
    below, more = panels[1].get_legend_handles_labels()
    figure.legend(handles + below, labels + more, loc="outside lower left", ncols=6, frameon=False, fontsize=9)
    save(figure, path)


def _title(replays: Sequence[GroupReplay], names: Sequence[str], speed: float) -> str:
    faster = f", played {speed:g} times faster" if speed != 1 else ""
    lines = [f"vCPUs needed and given to a group by {' and '.join(names)}{faster}"]
    if len(replays) > 1:
        whole = group_totals(replays)
        lines += [f"overall, {name}: {_in_words(whole[name])}" for name in names]
    return "\n".join(lines)


def _columns(replay: GroupReplay) -> tuple[Edges, Edges]:
    """The indices at which columns begin, and their times in seconds."""
    length = len(replay.timeline.demand) - replay.timeline.warm_up
    edges = np.linspace(0, length, min(COLUMNS, length) + 1).astype(int)[:-1]
    return edges, edges * round(replay.timeline.step)


def _draw_capacity(panel: Axes, replay: GroupReplay, names: Sequence[str]) -> None:
    begin, (edges, at) = replay.timeline.warm_up, _columns(replay)
    demand = replay.timeline.demand[begin:]
    panel.fill_between(at, column_most(demand, edges), step="post", color=DEMAND, linewidth=0, label="needed")
    # The first policy is drawn last, above the others.
    for name, color, width in reversed([*zip(names, (ALLOCATION, RIVAL), (1.3, 0.9), strict=False)]):
        played = replay.played[name]
        allocated = column_most(played.given[begin:], edges)
        panel.plot(at, allocated, color=color, linewidth=width, drawstyle="steps-post", label=f"given by {name}")
    first = replay.played[names[0]]
    short = column_most(np.maximum(0.0, demand - first.given[begin:]), edges)
    top = column_most(demand, edges)
    is_short = (short > 1e-9).tolist()
    label = f"needed and not given by {names[0]}"
    panel.fill_between(at, top - short, top, where=is_short, step="post", color=SHORTFALL, zorder=3, label=label)
    panel.set_title(
        f"{replay.timeline.name}   {_in_words(replay.scores[names[0]])}", loc="left", fontsize=9, color=ALLOCATION
    )
    for rival in names[1:]:
        panel.set_title(f"{rival}: {_in_words(replay.scores[rival])}", loc="right", fontsize=8, color=RIVAL)
    dress_axes(panel, replay.timeline.scored_hours * 3600)


def _draw_replicas(panel: Axes, replay: GroupReplay, name: str) -> None:
    begin, (edges, at) = replay.timeline.warm_up, _columns(replay)
    played = replay.played[name]
    panel.plot(
        at,
        column_most(played.replicas[begin:], edges),
        color=ALLOCATION,
        linewidth=1.0,
        drawstyle="steps-post",
        label=f"replicas of {name}",
    )
    dress_axes(panel, replay.timeline.scored_hours * 3600)
    panel.set_ylabel("replicas")
    sizes = panel.twinx()
    sizes.plot(at, column_most(played.size[begin:], edges), color=SIZE, linewidth=1.0, drawstyle="steps-post")
    # An empty line, since the legend is made of this axis and the sizes are on another.
    panel.plot([], [], color=SIZE, linewidth=1.0, label="vCPUs of each")
    sizes.set_ylabel("vCPU each", color=SIZE)
    sizes.set_ylim(bottom=0)
    sizes.spines[["top"]].set_visible(False)


def _in_words(score: GroupScore) -> str:
    return (
        f"{score.cost:.2f} x oracle  ·  {score.insufficient_percent:.2f} % of demand short  ·  "
        f"{score.replicas_per_hour:.1f} replicas/h  ·  {score.restarts_per_hour:.1f} restarts/h"
    )
