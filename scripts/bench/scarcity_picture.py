"""The picture of ``scripts.bench.scarcity``: each node's CPU over the minutes, and the VMs that were denied."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.autoscale.drawing import dress, save
from scripts.bench.scarcity_rule import NodeLook, Scarcity

INK, USED, RED, GREY = "#1d3557", "#cfe0f0", "#e63946", "#6c757d"
COLUMNS: Final = 5


def draw(history: Scarcity, path: Path) -> None:
    """Draws one panel for each node into ``path``."""
    minutes = [at / 60 for at, _ in history.looks]
    names = sorted({node.name for _, nodes in history.looks for node in nodes}, key=lambda name: (len(name), name))
    rows = ceil(len(names) / COLUMNS)
    figure = Figure(figsize=(13, 1.2 + 2.1 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False).flatten().tolist()
    for panel in panels:
        panel.set_visible(False)
    for name, panel in zip(names, panels, strict=False):
        panel.set_visible(True)
        _panel(panel, minutes, [next(node for node in nodes if node.name == name) for _, nodes in history.looks])
        panel.set_title(name, loc="left", fontsize=9)
    figure.supylabel("vCPU", fontsize=9)
    figure.supxlabel("minutes", fontsize=9)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=4, frameon=False, fontsize=9.5
    )
    save(figure, path)


def _panel(panel: Axes, minutes: list[float], looks: list[NodeLook]) -> None:
    panel.fill_between(minutes, [look.uses for look in looks], color=USED, linewidth=0, label="used by its VMs")
    panel.step(minutes, [look.holds for look in looks], color=INK, linewidth=1.2, where="post", label="held by them")
    panel.axhline(looks[0].watermark, color=GREY, linewidth=0.8, linestyle="--", label="watermark")
    lacks = [sum(vm.lacks for vm in look.vms) for look in looks]
    panel.fill_between(
        minutes,
        [look.holds for look in looks],
        [look.holds + lack for look, lack in zip(looks, lacks, strict=True)],
        step="post",
        color=RED,
        linewidth=0,
        label="denied",
    )
    dress(panel)
    panel.tick_params(labelsize=8)
