"""Times that a guest waits for a growth: until it is permitted, and until the VM has it (B.6).

Rules that hold here:

- A wait begins when the need first exceeds what the VM has, and ends when the VM has that much.
- A need that falls shortens the wish, not the wait; a wish that is no longer needed is forgotten without an end.
- Needs beyond the VM's maximum, and those of a VM that is not this agent's to resize, are no waits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from agent.core.state import State
from protocol.units import Instant, Resources, Seconds

MOST_OPEN: Final = 8
"""Waits at a time; a need that rises further meanwhile is counted from when one of them has ended."""


class WaitStage(StrEnum):
    """The stage that a wait ended with."""

    PERMIT = "permit"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class PendingGrowth:
    """A size needed ``since`` then; ``is_permitted`` once a permit covered it."""

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
    if vm is None or not (vm.ours and vm.enabled):
        return (), ()
    wanted = vm.actual if need is None else need.at_most(vm.bounds.max)
    open_now: list[PendingGrowth] = []
    ended: list[Wait] = []
    for wish in wishes:
        left, waits = _step(state, wish, vm.actual, wanted, now)
        open_now += left
        ended += waits
    known = vm.actual if not open_now else open_now[-1].size.at_least(vm.actual)
    if not wanted.within(known) and len(open_now) < MOST_OPEN:
        left, waits = _step(state, PendingGrowth(wanted, now), vm.actual, wanted, now)
        open_now += left
        ended += waits
    return tuple(open_now), tuple(ended)


def _step(
    state: State, wish: PendingGrowth, has: Resources, wanted: Resources, now: Instant
) -> tuple[list[PendingGrowth], list[Wait]]:
    """The part of the wish that is still open, and its waits that ended."""
    took, ceiling = Seconds(now - wish.since), state.scheduler.ceiling
    is_over = wish.size.within(has)
    is_permitted = wish.is_permitted or is_over or (ceiling is not None and wish.size.within(ceiling))
    ended = [Wait(WaitStage.PERMIT, took)] if is_permitted and not wish.is_permitted else []
    if is_over:
        return [], [*ended, Wait(WaitStage.SIZE, took)]
    left = replace(wish, size=wish.size.at_most(wanted), is_permitted=is_permitted)
    return ([] if left.size.within(has) else [left]), ended
