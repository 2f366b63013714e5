"""Pictures of a demonstration's report: a VM's size and its transactions, and a group's VMs and their reads.

Equal reports give equal files.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from protocol.units import Bytes
from scripts.autoscale.demonstration.report import GroupPoint, GroupReport, Report
from scripts.autoscale.drawing import save, style_panel

BEFORE, AFTER = 10.0, 8.0
"""Seconds shown before the load, and after the last change."""
GAP = 5.0
"""A longer gap in seconds between reports of the load generator separates two loads."""
INK, SKY, LEAF, RED, SHADE, GREY = "#1d3557", "#8fb8de", "#2a9d8f", "#e63946", "#f3efe4", "#555555"


def style() -> AbstractContextManager[None]:
    """The style of a demonstration's pictures."""
    return mpl.rc_context(
        {"font.size": 10, "axes.edgecolor": "#888888", "axes.labelcolor": INK, "xtick.color": GREY, "ytick.color": GREY}
    )


Point = tuple[float, float]
"""Seconds since the load began, and transactions per second."""


class NothingToDrawError(Exception):
    """The report has no load or no sizes; the message says why."""


def draw(report: Report, path: Path) -> None:
    """Draws a VM's or pod's report. Raises ``NothingToDrawError`` if there was no load, and ``OSError``."""
    began, ended = report.load_began, report.load_ended
    if began is None or ended is None or not report.sizes:
        why = report.problems[0] if report.problems else "the run ended before the load"
        raise NothingToDrawError(f"no picture: {why}")
    with style():
        figure = Figure(figsize=(9, 5.6), layout="constrained", facecolor="white")
        panels = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
        until = max(report.sizes[-1].seconds, ended, *(point.seconds for point in report.load)) + AFTER
        # Zero on the axis is the start of the load.
        times = [*(point.seconds - began for point in report.sizes), until - began]
        _stairs(panels[0], times, [point.cpu for point in report.sizes], "vCPU")
        _stairs(panels[1], times, [Bytes(point.memory).as_gib for point in report.sizes], "memory, GiB")
        loads = _loads([(point.seconds - began, point.tps) for point in report.load])
        _transactions(panels[2], loads, report.note)
        for panel in panels:
            frame(panel, [(0, ended - began), *((load[0][0], load[-1][0]) for load in loads[1:])])
        # Without the boot, which would squeeze the rest.
        panels[2].set_xlim(max(times[0], -BEFORE), until - began)
        panels[2].set_xlabel("seconds since the load began")
        _label(panels[0], report, ended - began)
        save(figure, path)


def _stairs(panel: Axes, times: Sequence[float], sizes: Sequence[float], label: str) -> None:
    heights = [*sizes, sizes[-1]]
    # Steps, because sizes do not change gradually.
    panel.fill_between(times, heights, step="post", color=SKY, alpha=0.6, linewidth=0)
    panel.plot(times, heights, drawstyle="steps-post", color=INK, linewidth=1.6)
    panel.set_ylabel(label)
    panel.set_ylim(0, max(heights) * 1.25)


def _loads(points: Sequence[Point]) -> list[list[Point]]:
    """Groups the points by load (pure)."""
    groups: list[list[Point]] = []
    for point in points:
        if not groups or point[0] - groups[-1][-1][0] > GAP:
            groups.append([])
        groups[-1].append(point)
    return groups


def _transactions(panel: Axes, loads: Sequence[Sequence[Point]], note: str) -> None:
    for load in loads:
        panel.plot(
            [at for at, _ in load], [tps for _, tps in load], color=LEAF, linewidth=1.6, marker=".", markersize=4
        )
    panel.set_ylabel("pgbench, tps")
    # Matplotlib warns about an axis without height, even for 0 tps.
    panel.set_ylim(0, max((tps for load in loads for _, tps in load), default=1.0) * 1.25 or 1.0)
    if not loads:
        panel.text(0.5, 0.5, note or "no transactions", transform=panel.transAxes, ha="center", color="#888888")


def frame(panel: Axes, loads: Sequence[tuple[float, float]]) -> None:
    """Shades the spans of loads, given as begin and end."""
    for begin, end in loads:
        panel.axvspan(begin, end, color=SHADE, zorder=0, linewidth=0)
    style_panel(panel)


def _label(panel: Axes, report: Report, load: float) -> None:
    """Labels the load and the growth, and adds the outcome as the title."""
    top = panel.get_ylim()[1]
    panel.text(load / 2, top * 0.99, f"load for {load:.0f} s", ha="center", va="top", color="#8a7a4a")
    if report.reaction_seconds is not None and report.started_at is not None:
        reaction = report.reaction_seconds
        panel.axvline(reaction, ymax=0.94, color=RED, linewidth=1.0, linestyle=":")
        panel.annotate(
            f"more CPU after {reaction:.1f} s",
            xy=(reaction, report.started_at),
            xytext=(14, 14),
            textcoords="offset points",
            color=RED,
            arrowprops={"arrowstyle": "->", "color": RED},
        )
    done = report.note or f"{report.transactions:,} transactions, {report.failed} failed"
    kind = report.guests.partition(" (")[0]
    panel.set_title(f"One postgres {report.database} ({kind}): {done}", loc="left", fontsize=11, color=INK)


_COLOURS = (INK, LEAF, RED, SKY)


def group_path(path: Path) -> Path:
    """Path of the group's picture, next to the other one.

    >>> str(group_path(Path("demo.svg")))
    'demo-group.svg'
    """
    return path.with_name(f"{path.stem}-group{path.suffix}")


def draw_group(report: GroupReport, path: Path) -> None:
    """Draws a group's report. Raises ``NothingToDrawError`` if there was no load, and ``OSError``."""
    began, ended = report.load_began, report.load_ended
    if began is None or ended is None or not report.points:
        raise NothingToDrawError(f"no picture of the group: {report.problems[0] if report.problems else 'no load ran'}")
    with style():
        figure = Figure(figsize=(9, 5.6), layout="constrained", facecolor="white")
        sizes, serving, reads = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.4, 2))
        until = max(report.points[-1].seconds, ended) + AFTER
        _sizes(sizes, report.points, began, until)
        _steps(serving, report.points, [float(point.serving) for point in report.points], (began, until), INK)
        serving.set_ylabel("serving\nreplicas")
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
    # Sorted, so that a VM has the same colour in each picture of a report.
    names = sorted({name for point in points for name in point.cpus})
    for number, name in enumerate(names):
        heights = [point.cpus.get(name, 0.0) for point in points]
        colour = _COLOURS[number % len(_COLOURS)]
        _steps(panel, points, heights, (began, until), colour, name)
    panel.set_ylabel("vCPU")
    panel.set_ylim(bottom=0)


def _steps(  # noqa: PLR0913, PLR0917 - a line of a picture
    panel: Axes, points: Sequence[GroupPoint], heights: Sequence[float], span: tuple[float, float], colour: str,
    label: str = "",
) -> None:  # fmt: skip
    """Draws a step line."""
    began, until = span
    times = [*(point.seconds - began for point in points), until - began]
    # An additional point extends the last height to the end of the picture.
    panel.plot(times, [*heights, heights[-1]], drawstyle="steps-post", color=colour, linewidth=1.6, label=label or None)
