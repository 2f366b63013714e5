"""Text graphics: bars of sizes, and nodes with their watermarks, VMs and migrations (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from protocol.kubernetes.objects import Json, items, text
from protocol.units import Bytes, MilliCpu, QuantityError
from scripts.autoscale.demonstration.moves import ObservedMove

_TICKS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 32
_BAR: Final = 24


def bar(used: float | None, allocated: float, maximum: float, width: int = _WIDTH) -> str:
    """A bar whose ``width`` stands for ``maximum``: full blocks for used amounts, shaded ones for allocated amounts."""
    scale = width / maximum if maximum > 0 else 0.0
    filled = min(width, round((used or 0.0) * scale))
    # A guest may briefly use more than it is allocated; the bar never shrinks below the used part.
    shaded = min(width, max(filled, round(allocated * scale)))
    return "█" * filled + "▒" * (shaded - filled) + "·" * (width - shaded)


def sparkline(values: Sequence[float]) -> str:
    """A tick for each value, scaled to the greatest."""
    top = max(values, default=0.0) or 1.0
    # 0.5 rounds to the nearest tick.
    return "".join(_TICKS[min(len(_TICKS) - 1, int(value / top * (len(_TICKS) - 1) + 0.5))] for value in values)


def reserved_bars(node: Json) -> tuple[str, str]:
    """Bars of a node's reserved vCPUs and memory, with the watermark."""
    return _reserved(node, "cpu")[0], _reserved(node, "mem")[0]


def fleet_row(node: Json, moves: Sequence[ObservedMove]) -> tuple[str, str, str]:
    """A node's name, a bar of its vCPUs, and its VMs with their migrations."""
    picture, amount = _reserved(node, "cpu")
    leaving = {
        move.vm.name: f"{move.vm.name} ⇢ {move.target or '?'} {move.progress}".rstrip()
        for move in moves
        if move.is_under_way and move.source == text(node, "name")
    }
    arriving = [f"⇠ {move.vm.name}" for move in moves if move.is_under_way and move.target == text(node, "name")]
    # Without the namespace: the demonstration uses only one.
    names = [text(pod, "vm").rpartition("/")[2] for pod in items(node, "pods") if text(pod, "vm")]
    # The pod of a migrating VM may already be on the target; list it once, as arriving.
    here = [leaving.get(name, name) for name in names if f"⇠ {name}" not in arriving]
    return text(node, "name"), f"{picture} {amount} vCPU", "  ".join([*here, *arriving])


def _reserved(node: Json, key: str) -> tuple[str, str]:
    read = partial(_amount, key)
    reserved, total = read(text(node, "reserved", key)), read(text(node, "total", key))
    picture = marked(bar(reserved, reserved, total, _BAR), read(text(node, "watermark", key)), total)
    return picture, f"{reserved:.2f}/{total:.2f}"


def marked(picture: str, watermark: float, total: float) -> str:
    """A bar with a mark at the watermark."""
    # The node's size may not be known yet.
    if total <= 0:
        return picture
    # Keep the mark within the bar, also at 0 and at the total.
    at = min(len(picture) - 1, max(0, round(watermark / total * len(picture)) - 1))
    return f"{picture[:at]}│{picture[at + 1 :]}"


def _amount(key: str, quantity: str) -> float:
    """Parses vCPUs or GiB; 0 if invalid."""
    try:
        return MilliCpu.parse(quantity).as_cores if key == "cpu" else Bytes.parse(quantity).as_gib
    except QuantityError:
        return 0.0
