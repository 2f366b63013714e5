"""Times that a guest waits for a growth: until it is permitted, and until the VM has it (B.6).

A wait begins when the need first exceeds what the VM has, and ends when the VM has that much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from typing import Final

from agent.core.state import State
from protocol.units import Instant, Resources, Seconds

MOST_OPEN: Final = 8
"""Open waits at a time; a further rise of the need counts only from the end of one of them."""


class WaitStage(StrEnum):
    """The stage that a wait ended with."""

    PERMIT = "permit"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class PendingGrowth:
    """A size that has been needed from ``since`` on; ``is_permitted`` once a permit covered it."""

    size: Resources
    since: Instant
    is_permitted: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait that has ended with ``stage``, counted from the need."""

    stage: WaitStage
    took: Seconds


def follow(
    state: State, wishes: tuple[PendingGrowth, ...], now: Instant
) -> tuple[tuple[PendingGrowth, ...], tuple[Wait, ...]]:
    """The wishes that are open now, oldest first, and the waits that have just ended."""
    vm, need = state.vm.seen, state.guest.goal.need
    # Another agent resizes the VM, or none does: nobody waits for this one.
    if vm is None or not (vm.ours and vm.enabled):
        return (), ()
    # Beyond its maximum the VM can never have it, so that is no wait.
    wanted = vm.actual if need is None else need.at_most(vm.bounds.max)
    open_now: list[PendingGrowth] = []
    ended: list[Wait] = []
    for wish in wishes:
        left, waits = _step(state, wish, vm.actual, wanted, now)
        open_now += left
        ended += waits
    covered = vm.actual if not open_now else open_now[-1].size.at_least(vm.actual)
    if not wanted.within(covered) and len(open_now) < MOST_OPEN:
        # A new wish may be covered by the ceiling already: then its permit took no time.
        left, waits = _step(state, PendingGrowth(wanted, now), vm.actual, wanted, now)
        open_now += left
        ended += waits
    return tuple(open_now), tuple(ended)


def _step(
    state: State, wish: PendingGrowth, has: Resources, wanted: Resources, now: Instant
) -> tuple[list[PendingGrowth], list[Wait]]:
    took, ceiling = Seconds(now - wish.since), state.scheduler.ceiling
    is_over = wish.size.within(has)
    # A VM that has the size was permitted it, even if no answer was seen.
    is_permitted = wish.is_permitted or is_over or (ceiling is not None and wish.size.within(ceiling))
    ended = [Wait(WaitStage.PERMIT, took)] if is_permitted and not wish.is_permitted else []
    if is_over:
        return [], [*ended, Wait(WaitStage.SIZE, took)]
    # A need that falls makes the wish smaller, not the wait shorter. A wish that is no longer needed is not counted.
    left = replace(wish, size=wish.size.at_most(wanted), is_permitted=is_permitted)
    return ([] if left.size.within(has) else [left]), ended


BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds. 5 is the objective."""


class GrowthTimes:
    """Counts of ended waits, by what they ended with."""

    def __init__(self) -> None:
        # One bucket more than bounds: +Inf.
        self._counts = {stage: [0] * (len(BOUNDS) + 1) for stage in WaitStage}
        self._sums = dict.fromkeys(WaitStage, 0.0)

    def add(self, waits: Iterable[Wait]) -> None:
        """Counts waits that have ended."""
        for wait in waits:
            # A bucket includes its bound (``le``): with ``bisect_left``, a wait of exactly 5 s counts as 5 s.
            self._counts[wait.stage][bisect_left(BOUNDS, wait.took)] += 1
            self._sums[wait.stage] += wait.took

    def histograms(self) -> Iterator[tuple[str, list[tuple[str, float]], float]]:
        """Each stage with its cumulative buckets, as Prometheus counts them, and the sum of its seconds."""
        names = [*map(str, BOUNDS), "+Inf"]
        for stage in WaitStage:
            yield stage.value, list(zip(names, accumulate(self._counts[stage]), strict=True)), self._sums[stage]
