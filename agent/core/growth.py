"""Latency of growth: from the need to the permit, and to the size (B.6).

A wait begins when the need first exceeds the VM's size, and ends when the VM has that size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from agent.core.state import State
from protocol.units import Instant, Resources, Seconds

MAX_OPEN: Final = 8
"""Maximum open waits; a further rise of the need starts a wait only after one of them has ended."""


class WaitStage(StrEnum):
    """The stage that a wait reached."""

    PERMIT = "permit"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class PendingGrowth:
    """A size needed since ``since``; ``is_permitted``: a permit covers it."""

    size: Resources
    since: Instant
    is_permitted: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """The time from the need to ``stage``."""

    stage: WaitStage
    took: Seconds


def follow(
    state: State, pending: tuple[PendingGrowth, ...], now: Instant
) -> tuple[tuple[PendingGrowth, ...], tuple[Wait, ...]]:
    """The growths still pending, oldest first, and the waits that ended now."""
    vm, need = state.vm.observed, state.guest.goal.need
    # Nothing waits for this agent if the VM is another agent's, is not autoscaled, or sleeps.
    if vm is None or not (vm.ours and vm.enabled) or vm.sleeps:
        return (), ()
    # A need beyond the VM's maximum is never met, and does not count as a wait.
    wanted = vm.actual if need is None else need.at_most(vm.bounds.max)
    open_now: list[PendingGrowth] = []
    ended: list[Wait] = []
    for growth in pending:
        left, waits = _step(state, growth, vm.actual, wanted, now)
        open_now += left
        ended += waits
    covered = vm.actual if not open_now else open_now[-1].size.at_least(vm.actual)
    if not wanted.within(covered) and len(open_now) < MAX_OPEN:
        # If the ceiling already covers it, its permit took no time.
        left, waits = _step(state, PendingGrowth(wanted, now), vm.actual, wanted, now)
        open_now += left
        ended += waits
    return tuple(open_now), tuple(ended)


def _step(
    state: State, growth: PendingGrowth, has: Resources, wanted: Resources, now: Instant
) -> tuple[list[PendingGrowth], list[Wait]]:
    took, ceiling = Seconds(now - growth.since), state.scheduler.ceiling
    is_over = growth.size.within(has)
    # A VM of that size had a permit for it, even if the answer was lost.
    is_permitted = growth.is_permitted or is_over or (ceiling is not None and growth.size.within(ceiling))
    ended = [Wait(WaitStage.PERMIT, took)] if is_permitted and not growth.is_permitted else []
    if is_over:
        return [], [*ended, Wait(WaitStage.SIZE, took)]
    # If the need falls, reduce the pending size but keep its start; drop it once the VM has that size.
    left = replace(growth, size=growth.size.at_most(wanted), is_permitted=is_permitted)
    return ([] if left.size.within(has) else [left]), ended
