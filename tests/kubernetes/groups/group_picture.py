"""The picture of a group beside the real autoscalers: use and orders, and the number and size of its replicas.

Drawn from what ``tests/kubernetes/groups/test_when_load_doubles.py`` has recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.autoscale.drawing import save
from scripts.autoscale.replay.plot import ALLOCATION, DEMAND, RIVAL, SIZE

TICK: Final = 60


@dataclass(frozen=True, slots=True)
class Moment:
    """A group ``at`` seconds after the beginning: replicas ordered and ready, the size of each as ordered, and what the
    ready ones use together as its HPA knows it; in thousandths of a vCPU.
    """

    at: float
    replicas: int
    ready: int
    size: int
    used: int

    @property
    def ordered(self) -> int:
        """CPU that is ordered for all replicas together."""
        return self.replicas * self.size


def draw(moments: Sequence[Moment], doubled: float, path: Path) -> None:
    """Writes the picture as SVG; the load was doubled this many seconds after the beginning."""
    figure = Figure(figsize=(12, 4.2), dpi=110, layout="constrained")
    capacity, replicas = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    at = [moment.at for moment in moments]
    used = [moment.used / 1000 for moment in moments]
    capacity.fill_between(at, used, step="post", color=DEMAND, linewidth=0, label="used, as the HPA knows it")
    ordered = [moment.ordered / 1000 for moment in moments]
    capacity.plot(at, ordered, color=ALLOCATION, linewidth=1.3, drawstyle="steps-post", label="ordered")
    _dress(capacity, "vCPU", doubled)
    for label, color, values in (
        ("replicas ordered", ALLOCATION, [moment.replicas for moment in moments]),
        ("replicas ready", RIVAL, [moment.ready for moment in moments]),
    ):
        replicas.plot(at, values, color=color, linewidth=1.2, drawstyle="steps-post", label=label)
    _dress(replicas, "replicas", doubled)
    sizes = replicas.twinx()
    sizes.plot(at, [moment.size for moment in moments], color=SIZE, linewidth=1.2, drawstyle="steps-post")
    # Only for the legend, which is collected from this panel: the sizes themselves are on the twin axis.
    replicas.plot([], [], color=SIZE, linewidth=1.2, label="size of each")
    sizes.set_ylabel("thousandths of a vCPU", color=SIZE)
    sizes.set_ylim(bottom=0)
    sizes.spines[["top"]].set_visible(False)
    replicas.set_xticks(range(0, int(at[-1]) + TICK, TICK), [f"{tick} min" for tick in range(int(at[-1]) // TICK + 2)])
    handles, labels = capacity.get_legend_handles_labels()
    replica_handles, replica_labels = replicas.get_legend_handles_labels()
    figure.legend(
        handles + replica_handles, labels + replica_labels, loc="outside lower left", ncols=5, frameon=False, fontsize=9
    )
    save(figure, path)


def _dress(panel: Axes, unit: str, doubled: float) -> None:
    panel.axvline(doubled, color=RIVAL, linewidth=0.8, linestyle=":")
    panel.set_ylabel(unit)
    panel.set_ylim(bottom=0)
    panel.spines[["top", "right"]].set_visible(False)
