"""How many read replicas a group should have by its own load: effective intervals, vertical first (S1.12).

- The need is what all replicas use together, over the target utilisation. Their agents size each of them; another one
  is added only when the need exceeds what those there are can have, and one is taken only when it fits the rest with
  room to spare.
- Where the load of a replica is not known, nothing changes.
- Growing waits for ``up_delay`` after the last growth (S1.8). Shrinking waits until fewer were enough for the whole of
  ``down_delay``, and as long after any scaling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from protocol.units import MilliCpu, Seconds
from scheduler_plugin.groups.core.hvpa.effective import DEFAULT_OVERLAP, Need, planned_replicas
from scheduler_plugin.groups.core.replicas.members import Member
from scheduler_plugin.groups.core.workload import ReplicaBounds, Rule


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a group scales itself.

    ``utilization`` is the share of a replica's CPU that its load may take (0..1]; ``most`` is the most CPU that a
    replica may have.
    """

    bounds: ReplicaBounds
    most: MilliCpu
    utilization: float = 0.7
    up_delay: Seconds = Seconds(30.0)
    down_delay: Seconds = Seconds(300.0)


@dataclass(frozen=True, slots=True)
class ScalingMemory:
    """What the status remembers, in seconds since 1970; None where it has not happened.

    ``fewer_since``: from when on fewer replicas have been enough at every look.
    """

    last_up: float | None = None
    last_down: float | None = None
    fewer_since: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """How many replicas there should be: ``wanted`` by the load alone (None where it is not known), ``replicas`` now.

    ``rule`` says by what the two differ, None where they do not; ``because`` is the sentence for people (S1.11).
    """

    replicas: int
    wanted: int | None
    memory: ScalingMemory
    because: str
    rule: Rule | None = None


def decide(
    scaling: Scaling, current: int, replicas: Sequence[Member], memory: ScalingMemory, now: float
) -> ScalingDecision:
    """How many replicas there should be, where there should be ``current`` so far; ``now`` in seconds since 1970."""
    bounded = scaling.bounds.clamp(current)
    if bounded != current:
        limits = f"{scaling.bounds.min} to {scaling.bounds.max} replicas are allowed"
        return ScalingDecision(bounded, bounded, replace(memory, fewer_since=None), limits)
    loads = [each.busy_cores for each in replicas if each.available and not each.leaving]
    known = [load for load in loads if load is not None]
    if len(known) < len(loads):
        unknown = f"the load of {len(loads) - len(known)} replicas is not known"
        return ScalingDecision(current, None, replace(memory, fewer_since=None), unknown)
    need = Need("vm", "cpu", 0, ceil(round(sum(known) * 1000 / scaling.utilization, 6)))
    wanted = planned_replicas([need], lambda *_: scaling.most, DEFAULT_OVERLAP, current, scaling.bounds)
    story = f"{sum(known):.1f} CPUs are busy, a replica may have {scaling.most} and use {scaling.utilization:.0%} of it"
    return _paced(scaling, current, wanted, memory, now, story)


def _paced(  # noqa: PLR0913, PLR0917 - one decision and all that it depends on
    scaling: Scaling, current: int, wanted: int, memory: ScalingMemory, now: float, story: str
) -> ScalingDecision:
    if wanted >= current:
        memory = replace(memory, fewer_since=None)
    elif memory.fewer_since is None:
        memory = replace(memory, fewer_since=now)
    if wanted == current:
        return ScalingDecision(current, wanted, memory, "the load fits the replicas that there are")
    if _is_blocked(scaling, memory, now, grows=wanted > current):
        delay = scaling.up_delay if wanted > current else scaling.down_delay
        return ScalingDecision(current, wanted, memory, f"{story}; the delay of {delay:g} s is not over", Rule.DELAY)
    done = replace(memory, last_up=now) if wanted > current else ScalingMemory(memory.last_up, now)
    return ScalingDecision(wanted, wanted, done, story)


def _is_blocked(scaling: Scaling, memory: ScalingMemory, now: float, *, grows: bool) -> bool:
    """Whether less than the delay has passed since anything that blocks a scaling in that direction."""
    if grows:
        return memory.last_up is not None and now - memory.last_up < scaling.up_delay
    blocks = (memory.last_up, memory.last_down, memory.fewer_since)
    return any(now - since < scaling.down_delay for since in blocks if since is not None)
