"""Bars and lines of characters (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_TICKS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 32


def bar(used: float | None, allocated: float, most: float, width: int = _WIDTH) -> str:
    """A bar of ``width`` for ``most``: full blocks for what is used, shaded ones for what is allocated."""
    scale = width / most if most > 0 else 0.0
    filled = min(width, round((used or 0.0) * scale))
    # A guest may briefly use more than it is allocated; the bar never shrinks below the used part.
    shaded = min(width, max(filled, round(allocated * scale)))
    return "█" * filled + "▒" * (shaded - filled) + "·" * (width - shaded)


def sparkline(values: Sequence[float]) -> str:
    """One tick for each value, in proportion to the greatest."""
    top = max(values, default=0.0) or 1.0
    # Adding 0.5 rounds to the nearest tick.
    return "".join(_TICKS[min(len(_TICKS) - 1, int(value / top * (len(_TICKS) - 1) + 0.5))] for value in values)
