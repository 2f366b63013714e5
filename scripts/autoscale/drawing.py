"""The style of all pictures, and reproducible files."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def style_panel(panel: Axes) -> None:
    """Adds horizontal grid lines, and removes the top and right of the frame."""
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    """Writes the picture in the format of the suffix of ``path``. Raises ``OSError``."""
    # With a salt and without a date, equal inputs give equal files. Text stays text.
    with rc_context({"svg.hashsalt": "autoscale", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
