"""Draws the third act: the vCPUs of every VM of the group, how many replicas serve, and the reads that they answer.

The rules are those of the first picture: only what the report says is drawn, and equal reports make equal files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.autoscale.demonstration.groups.group_report import GroupPoint, GroupReport
from scripts.autoscale.demonstration.pictures.picture import (
    AFTER,
    BEFORE,
    INK,
    LEAF,
    RED,
    SKY,
    NothingToDrawError,
    frame,
    style,
)
from scripts.autoscale.drawing import save

_COLOURS = (INK, LEAF, RED, SKY)


def group_path(path: Path) -> Path:
    """Path of the second picture: beside the first.

    >>> str(group_path(Path("demo.svg")))
    'demo-group.svg'
    """
    return path.with_name(f"{path.stem}-group{path.suffix}")


def draw_group(report: GroupReport, path: Path) -> None:
    """Writes the picture. Raises ``NothingToDrawError`` if the load did not run, ``OSError`` if it cannot."""
    began, ended = report.load_began, report.load_ended
    if began is None or ended is None or not report.points:
        raise NothingToDrawError(f"no picture of the group: {report.problems[0] if report.problems else 'no load ran'}")
    with style():
        figure = Figure(figsize=(9, 5.6), layout="constrained", facecolor="white")
        sizes, serving, reads = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.4, 2))
        until = max(report.points[-1].seconds, ended) + AFTER
        _sizes(sizes, report.points, began, until)
        _stairs(serving, report.points, [float(point.serving) for point in report.points], (began, until), INK)
        serving.set_ylabel("replicas\nthat serve")
        serving.set_ylim(0, report.most_serving + 0.6)
        reads.plot([at - began for at, _ in report.load], [tps for _, tps in report.load], color=LEAF, linewidth=1.6)
        reads.set_ylabel("reads/s")
        reads.set_ylim(bottom=0)
        reads.set_xlabel("seconds since the reads began")
        reads.set_xlim(-BEFORE, until - began)
        for panel in (sizes, serving, reads):
            frame(panel, [(0, ended - began)])
        done = f"{report.transactions:,} reads, {report.failed} failed" if report.transactions else "simulated"
        figure.legend(loc="outside upper right", ncols=4, frameon=False, fontsize=9)
        sizes.set_title(f"A primary and its read replicas: {done}", loc="left", fontsize=11, color=INK)
        save(figure, path)


def _sizes(panel: Axes, points: Sequence[GroupPoint], began: float, until: float) -> None:
    # Sorted, so that a VM has the same colour in every picture of one report.
    names = sorted({name for point in points for name in point.cpus})
    for number, name in enumerate(names):
        heights = [point.cpus.get(name, 0.0) for point in points]
        colour = _COLOURS[number % len(_COLOURS)]
        _stairs(panel, points, heights, (began, until), colour, name)
    panel.set_ylabel("vCPU")
    panel.set_ylim(bottom=0)


def _stairs(  # noqa: PLR0913, PLR0917 - one line of a picture
    panel: Axes, points: Sequence[GroupPoint], heights: Sequence[float], span: tuple[float, float], colour: str,
    label: str = "",
) -> None:  # fmt: skip
    """A line that has one height until it has another."""
    began, until = span
    times = [*(point.seconds - began for point in points), until - began]
    # The last height holds until the end of the picture, which needs one more point.
    panel.plot(times, [*heights, heights[-1]], drawstyle="steps-post", color=colour, linewidth=1.6, label=label or None)
