"""The size that a VM should have now, and why, before anyone was asked (S4.5, S4.6).

Rules that hold here:

- Each resource by itself: it grows as soon as the need is greater, and shrinks only to what is proven to be enough.
- What is unknown holds: without metrics, without a compute unit or without proof, a resource stays as it is.
- The bounds are orders and need no proof. Memory that is in use is never taken away, not even by them.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.core.goal import NO_GOAL, Goal, Part
from agent.core.sizing import Sizes
from agent.core.state import State
from agent.core.vm import Vm
from protocol.units import ComputeUnit, Instant, MilliCpu, Resources


@dataclass(frozen=True, slots=True)
class Wish:
    """The wanted size, and in one line why it is not another."""

    size: Resources
    because: str


def wish(state: State, vm: Vm, now: Instant) -> Wish:
    """What the VM should have, as far as is known at ``now``."""
    unit = state.scheduler.compute_unit
    if state.scheduler.migrate:
        return Wish(vm.use, "migrating: nothing changes until the scheduler says so")
    if not vm.resizable:
        return Wish(vm.use, "the VM may not be resized: its phase forbids it, or its opt-in label is missing")
    if unit is None:
        return Wish(vm.use, "no compute unit yet: asking for what the VM has")
    sizes = Sizes(unit, vm.bounds, vm.slot_size)
    known = current_goal(state, now)
    need = sizes.covering(state.guest.guard.growth(known.at_least, now))
    proven = state.guest.guard.floor(now) if known.need is not None else None
    low = vm.use if proven is None else sizes.covering(proven)
    size = need.at_least(low.at_most(vm.use)).at_most(vm.bounds.max).at_least(in_use(state, vm, now))
    return Wish(size, _because(vm, size, known, proven, unit))


def current_goal(state: State, now: Instant) -> Goal:
    """The goal of the last metrics; nothing where they are too old to speak for now."""
    return state.guest.goal if _fresh(state, now) else NO_GOAL


def in_use(state: State, vm: Vm, now: Instant) -> Resources:
    """What must not be taken away: the memory in use, and all of it where the guest does not say how much that is."""
    seen = state.guest.seen
    used = seen.sample.mem_used if seen is not None and _fresh(state, now) else None
    mem = vm.use.mem if used is None else min(vm.use.mem, used.up_to(vm.slot_size))
    return Resources(MilliCpu(0), mem)


def _fresh(state: State, now: Instant) -> bool:
    seen = state.guest.seen
    return seen is not None and now - seen.at <= state.policy.timing.stale


def _because(vm: Vm, size: Resources, known: Goal, proven: Resources | None, unit: ComputeUnit) -> str:
    if known.need is None:
        what = "no metrics" if not known.parts else "some metrics are missing"
        return f"{what}: not below what the VM has"
    if not size.within(vm.use):
        return f"growing for {_strongest(known, unit)}"
    if size != vm.use:
        return f"shrinking: no more than {proven or 'the bounds'} is needed"
    if proven is not None or size.within(unit * known.need.units_up(unit)):
        return f"right for {_strongest(known, unit)}"
    return "holding: less has not been proven to be enough"


def _strongest(known: Goal, unit: ComputeUnit) -> str:
    """The parts that decide: those that need as many compute units as all of them together."""
    units = {part.name: _units(part, unit) for part in known.parts}
    return " and ".join(name for name, count in units.items() if count == max(units.values()))


def _units(part: Part, unit: ComputeUnit) -> int:
    return part.need.units_up(unit.cpu) if isinstance(part.need, MilliCpu) else part.need.units_up(unit.mem)
