"""What all pictures have in common: panels without a frame, and files that equal inputs make equal."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def dress(panel: Axes) -> None:
    """Lines for the eye instead of a frame."""
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Writes the picture, in the format that the end of ``path`` names. Raises ``OSError``."""
    # With a salt and without a date, equal inputs make equal files. Text stays text.
    with rc_context({"svg.hashsalt": "autoscale", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=dpi)
