"""Effective intervals: one number of replicas and one size for each total need (S1.12).

Rules that hold here:

- A need has a part that every replica has anyway (``base``) and a part that replicas share (``total``). Neither
  depends on how many replicas there are, so the plan does not depend on the order in which recommendations arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from protocol.units import Amount
from scheduler_plugin.groups.core.hvpa.rules import NO_PARAMS, ChangeParams, Exact, ResourceChangeParams
from scheduler_plugin.groups.core.workload import NOTHING, ReplicaBounds, Resource, ResourceList

_TEN_PERCENT: Final = ChangeParams(percentage=Fraction(10))
DEFAULT_OVERLAP: Final = ResourceChangeParams(_TEN_PERCENT, _TEN_PERCENT)


@dataclass(frozen=True, slots=True)
class ScalingInterval:
    """Up to ``max_replicas`` replicas, each may have at most ``most``; what is missing is bounded by maxAllowed."""

    max_replicas: int | None = None
    most: ResourceList = NOTHING


@dataclass(frozen=True, slots=True)
class EffectiveIntervals:
    """The intervals, in any order; what every replica has for itself; and the overlap when scaling in."""

    intervals: tuple[ScalingInterval, ...] = ()
    base: ResourceChangeParams = NO_PARAMS
    overlap: ResourceChangeParams = DEFAULT_OVERLAP

    def most(self, replicas: int) -> ResourceList:
        """The most that each of ``replicas`` replicas may have: that of the first interval that reaches so far."""
        reached = [
            interval
            for interval in self.intervals
            if interval.max_replicas is None or replicas <= interval.max_replicas
        ]
        # An interval without an end comes last: it holds for all larger counts.
        ordered = sorted(reached, key=lambda interval: (interval.max_replicas is None, interval.max_replicas or 0))
        return ordered[0].most if ordered else NOTHING


@dataclass(frozen=True, slots=True)
class ContainerNeed:
    """Need of one resource of one container, in thousandths of a vCPU or bytes.

    ``base`` is what each replica has for itself, ``total`` what all of them share. ``sure`` is the part of the total
    that is certain: for less than that no replica is added. Sizes grow for ``grown`` of it. None is all of it.
    """

    container: str
    resource: Resource
    base: int
    total: int
    sure: int | None = None
    grown: int | None = None

    def each(self, replicas: int) -> int:
        """The size of each of ``replicas`` (> 0) replicas, rounded up."""
        return self._shared(self.total, replicas)

    def grows_to(self, replicas: int) -> int:
        """The size to which each of ``replicas`` (> 0) replicas may grow."""
        return self._shared(self.total if self.grown is None else self.grown, replicas)

    def fits(self, replicas: int, most: int, overlap: ChangeParams, current: int) -> bool:
        """Return True if ``replicas`` of at most ``most`` each are enough while there are ``current``."""
        if replicas >= current:
            # Scale out only for what is sure and in only with room to spare, so that nothing flaps at a boundary.
            return self._shared(self.total if self.sure is None else self.sure, replicas) <= most
        room = max(0, most - self.base) * replicas
        return self.each(replicas) <= most and self.total <= scale_in_boundary(room, overlap)

    def _shared(self, total: int, replicas: int) -> int:
        # Floor division of the negative rounds up.
        return self.base - (-total // replicas)


def base_of(params: ChangeParams, target: int) -> int:
    """Base share of a replica of size ``target``: the larger of value and percentage, at most all of it."""
    return min(target, int(max([Fraction(0), *params.parts(target)])))


def scale_in_boundary(most: Exact, overlap: ChangeParams) -> Fraction:
    """The total up to which scaling in to replicas that can have ``most`` in total is planned (>= 0)."""
    return max(Fraction(0), most - max([Fraction(0), *overlap.parts(most)]))


def planned_replicas(
    needs: Sequence[ContainerNeed],
    most: Callable[[ContainerNeed, int], Amount | None],
    overlap: ResourceChangeParams,
    current: int,
    bounds: ReplicaBounds,
) -> int:
    """The fewest replicas within ``bounds`` that fit every need; ``bounds.max`` if none do.

    ``most`` gives the largest size of a need's resource at this many replicas; None is no bound.
    """

    def fits(need: ContainerNeed, replicas: int) -> bool:
        size = most(need, replicas)
        return size is None or need.fits(replicas, size.value, overlap[need.resource], current)

    # Ascending: vertical first, so the fewest replicas that are large enough win.
    counts = range(bounds.min, bounds.max + 1)
    return next((count for count in counts if count > 0 and all(fits(need, count) for need in needs)), bounds.max)
