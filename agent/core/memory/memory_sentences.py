"""Sentences that explain a VM's memory: the current trial, its evidence, and the next trial."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agent.core.memory.probing import Probing
from agent.core.memory.rereading import Cost
from agent.core.memory.trials import Filled, Filling, Growing, Growth, Shrink
from agent.core.memory.working_set import FailedGrowth, WorkingSetFloor
from agent.core.policy import CachePolicy
from protocol.units import Bytes, Instant

_MIB: Final = 1024.0**2
_MAX_SHOWN: Final = 1e6
"""Maximum rate shown, in MiB/s: a guest may report any number."""


def memory_sentences(probing: Probing, now: Instant, policy: CachePolicy, *, is_blind: bool) -> Iterator[str]:
    """Sentences about the learned working set and the current trial. ``is_blind``: no refault metrics."""
    if not policy.enabled:
        yield "counts the page cache as free: memory.cache.enabled is false"
        return
    match probing.phase:
        case Growing(growth):
            yield f"wants {_gib(growth.wanted)} for the page cache: {_baseline_text(growth)}"
        case Filling(growth, size) | Filled(growth, size):
            yield f"tests whether {_gib(size)} reduces rereads: {_baseline_text(growth)}"
        case Shrink() as trial:
            yield _shrink(trial, policy)
    if probing.floor is not None:
        yield _floor(probing, probing.floor, now, policy)
    if probing.failed_growth is not None and now < probing.failed_growth.retry_at:
        yield _failed_growth(probing.failed_growth, now)
    if is_blind:
        yield (
            "no refault metrics (node_vmstat_workingset_refault_file or pgpgin): "
            "page cache is protected only after a shrink has caused stalls"
        )


def _baseline_text(growth: Growth) -> str:
    return f"with {_gib(growth.base)} the database {_cost_clause(growth.baseline, 'rereads', 'stalls')}"


def _shrink(trial: Shrink, policy: CachePolicy) -> str:
    # Only time covered by metrics counts towards the watch.
    left = max(0.0, policy.watch - trial.cost.seconds)
    return f"watches for another {_span(left)} whether shrinking from {_gib(trial.before)} to {_gib(trial.after)} hurts"


def _floor(probing: Probing, floor: WorkingSetFloor, now: Instant, policy: CachePolicy) -> str:
    ago = _span(now - floor.at)
    learned = f"with {_gib(floor.too_small)}, {ago} ago, the database {_cost_clause(floor.cost, 'reread', 'stalled')}"
    # An idle guest gives memory back although it will need it under load.
    if probing.idle_since is not None and probing.is_lifted(now, policy):
        idle = _span(now - probing.idle_since)
        needed = f"under load it needed {_gib(floor.size)} ({learned})"
        return f"gives memory back: the database has been idle for {idle}; {needed}"
    again = (
        f"next shrink trial in {_span(floor.retry_at - now)}" if now < floor.retry_at else "next shrink trial is due"
    )
    return f"keeps {_gib(floor.size)}: {learned}; {again}"


def _failed_growth(learned: FailedGrowth, now: Instant) -> str:
    effect = f"the same work cost {learned.drop:.0%} less" if learned.drop > 0 else "the same work cost no less"
    return (
        f"does not grow for the page cache: with {_gib(learned.size)} instead of {_gib(learned.base)} {effect}; "
        f"retries in {_span(learned.retry_at - now)}"
    )


def _cost_clause(cost: Cost, reread: str, stalled: str) -> str:
    rate = min(cost.reread_rate / _MIB, _MAX_SHOWN)
    return f"{reread} {rate:.0f} MiB/s and {stalled} on that {cost.stall:.0%} of the time"


def _gib(amount: Bytes) -> str:
    return f"{amount.as_gib:.2f} GiB"


def _span(seconds: float) -> str:
    """``seconds`` in s below two minutes, in min below two hours, otherwise in h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
