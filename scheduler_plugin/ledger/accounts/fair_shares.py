"""Fair shares of scarce room by weight, max-min fair (B.17). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from protocol.units import Bytes, ComputeUnit, MilliCpu, Resources


@dataclass(frozen=True, slots=True)
class VmShare:
    """Bounds of one VM's share. ``weight`` (> 0) is its part relative to others.

    ``rank`` is unique: among equals, the lowest gets the indivisible step.
    """

    minimum: Resources
    maximum: Resources
    weight: int
    rank: tuple[float, str]


def fair_shares(room: Resources, claimants: Sequence[VmShare], unit: ComputeUnit) -> list[Resources]:
    """Divide ``room`` by weight among ``claimants``, each within its bounds.

    Shares rise from ``minimum`` in whole units, except for the last step. No VM gets less than ``minimum``, even with
    too little room.

    >>> spans = [VmShare(Resources.parse(0, 0), Resources.parse(cpus, 0), 1, (0.0, str(cpus))) for cpus in (1, 5, 9)]
    >>> [share.cpu.value for share in fair_shares(Resources.parse(7, 0), spans, ComputeUnit.parse(1, "1Gi"))]
    [1000, 3000, 3000]
    """
    cpu = _shares(
        room.cpu.value,
        [(share.minimum.cpu.value, share.maximum.cpu.value, share.weight, share.rank) for share in claimants],
        unit.cpu.value,
    )
    mem = _shares(
        room.mem.value,
        [(share.minimum.mem.value, share.maximum.mem.value, share.weight, share.rank) for share in claimants],
        unit.mem.value,
    )
    return [Resources(MilliCpu(cpus), Bytes(size)) for cpus, size in zip(cpu, mem, strict=True)]


_Bounds = tuple[int, int, int, tuple[float, str]]


def _shares(room: int, bounds: list[_Bounds], step: int) -> list[int]:
    if room >= sum(maximum for _, maximum, _, _ in bounds):
        return [maximum for _, maximum, _, _ in bounds]
    shares = [minimum for minimum, _, _, _ in bounds]
    if room <= sum(shares):
        return shares
    level, scale = _level(room, bounds)
    for index, (minimum, maximum, weight, _) in enumerate(bounds):
        rise = min(maximum, level * weight // scale) - minimum
        # A VM cannot use a part of a step.
        shares[index] += max(0, rise - rise % step)
    left = room - sum(shares)
    # Each lacks less than one step of its exact share, and sorts before those above the level.
    for index in sorted(range(len(bounds)), key=lambda of: (shares[of] / bounds[of][2], bounds[of][3])):
        more = min(step, bounds[index][1] - shares[index], left)
        shares[index], left = shares[index] + more, left - more
    return shares


def _level(room: int, bounds: list[_Bounds]) -> tuple[int, int]:
    """The level, as a fraction, up to which shares for weight one rise to fill ``room``.

    ``room`` must lie between the sums of the bounds.
    """
    # Scaled by a common multiple of all weights, edges are integers, so rounding never separates equals.
    scale = lcm(*{weight for _, _, weight, _ in bounds})
    edges = [(minimum * scale // weight, weight) for minimum, _, weight, _ in bounds]
    edges += [(maximum * scale // weight, -weight) for _, maximum, weight, _ in bounds]
    ordered = iter(sorted(edges))
    (edge, change), level, slope = next(ordered), 0, 0
    missing = (room - sum(minimum for minimum, _, _, _ in bounds)) * scale
    while (filled := slope * (edge - level)) < missing:
        missing, level, slope = missing - filled, edge, slope + change
        edge, change = next(ordered)
    return level * slope + missing, slope * scale
