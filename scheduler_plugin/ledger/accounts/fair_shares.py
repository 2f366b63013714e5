"""Max-min fair shares of room by weight (B.17): nobody gets more while somebody worse off for its weight wants it.

Pure. One rule serves both directions: free room raises VMs from their present sizes, the smallest first, and a node
that asks for room back lowers them towards their needs, the tallest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from protocol.units import Bytes, ComputeUnit, MilliCpu, Resources


@dataclass(frozen=True, slots=True)
class Span:
    """Bounds of one VM's share. ``weight`` (> 0) is how much of the room it is worth beside others.

    ``rank`` is unique: of equals, the lowest gets the step that cannot be divided.
    """

    least: Resources
    most: Resources
    weight: int
    rank: tuple[float, str]


def fair_shares(room: Resources, spans: Sequence[Span], unit: ComputeUnit) -> list[Resources]:
    """The share of each span: together ``room`` of each resource, or as much as their bounds allow.

    Shares rise from ``least`` in whole units, except for the last step. Nobody gets less than ``least``, even if
    there is less room than that.

    >>> spans = [Span(Resources.parse(0, 0), Resources.parse(most, 0), 1, (0.0, str(most))) for most in (1, 5, 9)]
    >>> [share.cpu.value for share in fair_shares(Resources.parse(7, 0), spans, ComputeUnit.parse(1, "1Gi"))]
    [1000, 3000, 3000]
    """
    cpu = _shares(
        room.cpu.value, [(of.least.cpu.value, of.most.cpu.value, of.weight, of.rank) for of in spans], unit.cpu.value
    )
    mem = _shares(
        room.mem.value, [(of.least.mem.value, of.most.mem.value, of.weight, of.rank) for of in spans], unit.mem.value
    )
    return [Resources(MilliCpu(cpus), Bytes(size)) for cpus, size in zip(cpu, mem, strict=True)]


_Bounds = tuple[int, int, int, tuple[float, str]]


def _shares(room: int, bounds: list[_Bounds], step: int) -> list[int]:
    if room >= sum(most for _, most, _, _ in bounds):
        return [most for _, most, _, _ in bounds]
    shares = [least for least, _, _, _ in bounds]
    if room <= sum(shares):
        return shares
    level, scale = _level(room, bounds)
    for index, (least, most, weight, _) in enumerate(bounds):
        rise = min(most, level * weight // scale) - least
        # A VM cannot use less than a step.
        shares[index] += max(0, rise - rise % step)
    left = room - sum(shares)
    # Each lacks less than a step of its exact share, and these come before those that are above the level anyway.
    for index in sorted(range(len(bounds)), key=lambda of: (shares[of] / bounds[of][2], bounds[of][3])):
        more = min(step, bounds[index][1] - shares[index], left)
        shares[index], left = shares[index] + more, left - more
    return shares


def _level(room: int, bounds: list[_Bounds]) -> tuple[int, int]:
    """The level up to which shares for a weight of one rise until they fill ``room``, as a fraction.

    ``room`` must lie between the sums of the bounds.
    """
    # With a common multiple of all weights the edges are whole numbers, so that rounding never makes equals unequal.
    scale = lcm(*{weight for _, _, weight, _ in bounds})
    edges = [(least * scale // weight, weight) for least, _, weight, _ in bounds]
    edges += [(most * scale // weight, -weight) for _, most, weight, _ in bounds]
    ordered = iter(sorted(edges))
    (edge, change), level, slope = next(ordered), 0, 0
    missing = (room - sum(least for least, _, _, _ in bounds)) * scale
    while (filled := slope * (edge - level)) < missing:
        missing, level, slope = missing - filled, edge, slope + change
        edge, change = next(ordered)
    return level * slope + missing, slope * scale
