"""The desired size of a VM and its reason, before the scheduler grants a permit (S4.5, S4.6).

Rules that hold here:

- Each resource follows the target of its policy, which decides growth and proves that less is enough.
- Without metrics, compute unit or proof, a resource keeps its size.
- A VM that gives room back keeps only its recent need, not what its policy would keep; in a cluster without headroom,
  not what a compute unit contains besides (``state.GiveBack``).
- Bounds and floor apply without proof, but never take away memory in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from agent.core.goal import NO_GOAL, NOTHING, Goal, Part
from agent.core.memory.kills import MEMORY_KILLS
from agent.core.memory.memory_view import kernel_share
from agent.core.monitor.monitor_plan import mem_to_propose, requested_size, retained_mem, retention_reason
from agent.core.pods.requests import cpu_first
from agent.core.stabilizer import Stabilizer
from agent.core.state import State
from agent.core.vm import Sizes, Vm, whole_slots
from protocol.units import Amount, Bytes, ComputeUnit, Instant, MilliCpu, Resources, Seconds

ASLEEP: Final = "asleep: holds no permit and requests this size on wake"
FROZEN: Final = "frozen: the scheduler forbids resizing this pod and explains why"
MIGRATING: Final = "migrating: size frozen until the scheduler releases it"
WAKING: Final = "waking: requesting a permit for this size"
SHORT_NODE_GIVES: Final = "its node is short of room: keeping only its recent need"
SHORT_NODE_STAYS: Final = "its node is short of room: growing only by its recent need"

A = TypeVar("A", bound=Amount)


@dataclass(frozen=True, slots=True)
class DesiredSize:
    """The desired size and its reason in one line. ``proposed`` is the size to propose to the guest's monitor."""

    size: Resources
    because: str
    proposed: Resources


def desired_size(state: State, vm: Vm, now: Instant) -> DesiredSize:
    """The desired size of the VM at ``now``."""
    base, because = _without_monitor(state, vm, now)
    unit, monitor = state.scheduler.compute_unit, state.monitor
    # Ignore the monitor's requests while the VM cannot be resized.
    if unit is None or state.scheduler.migrate or not vm.resizable:
        return DesiredSize(base, because, base)
    give_back = state.scheduler.give_back
    sizes = vm.sizes(unit, apart=give_back.is_lean(now) and give_back.sizes_apart(now))
    requested, reasons = requested_size(monitor, vm, sizes, now)
    wanted = base.at_least(requested)
    proposed = cpu_first(vm, state.vm.pauses.limits(wanted, vm, now)) if vm.is_pod else wanted
    # The VM keeps its memory until the monitor has agreed.
    size = proposed.at_least(Resources(NOTHING.cpu, retained_mem(monitor, vm, now)))
    if size != proposed:
        because = retention_reason(monitor, vm)
    elif wanted != base:
        because = f"growing: {reasons}" if not size.within(vm.use) else f"holding: {reasons}"
    mem = mem_to_propose(monitor, vm, vm.sizes(unit), proposed.mem, now)
    return DesiredSize(size, because, Resources(proposed.cpu, mem))


def _without_monitor(state: State, vm: Vm, now: Instant) -> tuple[Resources, str]:
    unit = state.scheduler.compute_unit
    if state.scheduler.migrate:
        return vm.use, FROZEN if vm.is_pod else MIGRATING
    if vm.sleeps:
        return vm.use, ASLEEP if vm.is_asleep else WAKING
    if not vm.resizable:
        return vm.use, "not resizable: its phase forbids it, or its opt-in label is missing"
    if unit is None:
        return vm.use, "no compute unit yet: requesting its current size"
    size, because = _policy_size(state, vm, vm.sizes(unit, vm.bounds_at(now)), now)
    give_back = state.scheduler.give_back
    if give_back.is_lean(now):
        sizes = vm.sizes(unit, vm.bounds_at(now), apart=give_back.sizes_apart(now))
        least, _ = _policy_size(state, vm, sizes, now, is_lean=True)
        most = least.at_least(_size_to_keep(vm, give_back.shrink_to))
        if not size.within(most):
            size = size.at_most(most)
            return size, SHORT_NODE_STAYS if vm.use.within(size) else SHORT_NODE_GIVES
    return size, because


def _size_to_keep(vm: Vm, shrink_to: Resources | None) -> Resources:
    """The part of its size that the VM was not asked to give back."""
    least = vm.use if shrink_to is None else shrink_to.at_most(vm.use)
    # No permit contains a pod's memory beyond whole slots, so the scheduler does not ask for it.
    is_whole = least.mem >= whole_slots(vm.use, vm.slot_size).mem
    return Resources(least.cpu, vm.use.mem) if is_whole else least


def least_size(state: State, report: Resources, now: Instant) -> Resources | None:
    """The size to which the VM could shrink immediately if its node is short of room; None if it has nothing to offer.

    It does not offer a resource of which it requests more than it has (``report``).
    """
    vm, scheduler = state.vm.observed, state.scheduler
    # Only this project's scheduler, which stores permits, asks for room back.
    if vm is None or scheduler.compute_unit is None or not scheduler.stores_permits:
        return None
    if not vm.resizable or scheduler.migrate or not scheduler.give_back.offers(now):
        return None
    apart = scheduler.give_back.sizes_apart(now)
    sizes = vm.sizes(scheduler.compute_unit, vm.bounds_at(now), apart=apart)
    least, _ = _policy_size(state, vm, sizes, now, is_lean=True)
    requested, _ = requested_size(state.monitor, vm, vm.sizes(sizes.unit, apart=apart), now)
    # A monitor that refused recently would refuse this shrink, too, and so might one that reconnects.
    if state.monitor.refusal is not None or state.monitor.version is None:
        requested = requested.at_least(Resources(NOTHING.cpu, retained_mem(state.monitor, vm, now)))
    least = least.at_least(requested).at_most(vm.use)
    least = Resources(
        report.cpu if report.cpu > vm.use.cpu else least.cpu, report.mem if report.mem > vm.use.mem else least.mem
    )
    return None if vm.use.within(least) else least


def _policy_size(state: State, vm: Vm, sizes: Sizes, now: Instant, *, is_lean: bool = False) -> tuple[Resources, str]:
    """The size from the policy, or from the recent need if ``is_lean``, and the reason."""
    current, used = _fresh_goal(state, now), in_use(state, vm, now)
    target = (
        state.guest.stabilizer.recent_need(state.guest.awake_time(now)) if is_lean else state.guest.stabilizer.target
    )
    size, is_for_cache = _target_size(state, vm, sizes, target, now)
    if vm.floor is not None:
        # Name the floor as the reason only if the size would be smaller without it.
        without, _ = _target_size(state, vm, vm.sizes(sizes.unit, apart=sizes.apart), target, now)
        if not size.within(without.at_least(used)):
            return size.at_least(used), f"not below its floor of {sizes.bounds.min} "
    size = size.at_least(used)
    return size, _cache_reason(vm, size) if is_for_cache else _because(vm, size, current, sizes)


def _target_size(state: State, vm: Vm, sizes: Sizes, target: Resources | None, now: Instant) -> tuple[Resources, bool]:
    """The size for ``target`` within the bounds of ``sizes``, and whether the page cache determines its memory."""
    goal = _fresh_goal(state, now)
    size = _size(vm, sizes, goal, state.guest.stabilizer, target)
    # Kills count even with stale metrics, because a thrashing guest responds late.
    killed = state.guest.kills.needed(now)
    if killed:
        size = size.at_least(sizes.covering(Resources(NOTHING.cpu, killed)))
    with_cache = size.at_least(_cache_memory(state, vm, sizes, goal)).at_most(vm.bounds.max)
    return with_cache, with_cache.mem > size.mem


def _size(vm: Vm, sizes: Sizes, goal: Goal, stabilizer: Stabilizer, target: Resources | None) -> Resources:
    """The smoothed target. If a need is unknown: the known needs, but at least the current size."""
    # A target computed when the VM was smaller proves nothing about the current size.
    proven = stabilizer.observed_size is not None and vm.use.within(stabilizer.observed_size)
    if goal.need is None or target is None:
        return sizes.covering(goal.at_least).at_least(vm.use)
    grown = Resources(
        _grown(goal.need.cpu, target.cpu, vm.use.cpu, stabilizer.hold.cpu),
        _grown(goal.need.mem, target.mem, vm.use.mem, stabilizer.hold.mem),
    )
    return sizes.covering(grown).at_least(sizes.covering(target).at_most(vm.use) if proven else vm.use)


def _grown(need: A, target: A, has: A, hold: A) -> A:
    """The target if it is above ``has``, otherwise at most the need, so that a held size is never rounded up."""
    return target if target > has and need >= hold else min(need, target)


def _cache_memory(state: State, vm: Vm, sizes: Sizes, goal: Goal) -> Resources:
    """The memory to keep or grow to for the page cache, with zero CPU."""
    keep = state.guest.probing.keep
    if goal.need is None:
        return NOTHING
    return sizes.not_less(Resources(NOTHING.cpu, keep)) if keep > vm.use.mem else Resources(NOTHING.cpu, keep)


def in_use(state: State, vm: Vm, now: Instant) -> Resources:
    """The memory that must not be taken away: memory in use, or all of it if the guest does not report usage."""
    observed = state.guest.observed
    if observed is None or not is_current(state, now) or observed.sample.mem_used is None:
        return Resources(NOTHING.cpu, vm.use.mem)
    # Of the size at the time of the sample, the kernel uses what the guest does not report.
    has = state.guest.sampled_size or vm.actual
    used = observed.sample.mem_used + kernel_share(observed.sample, has, state.policy.memory)
    return Resources(NOTHING.cpu, min(vm.use.mem, used.up_to(vm.slot_size)))


def _fresh_goal(state: State, now: Instant) -> Goal:
    # Stale metrics are not evidence.
    return state.guest.goal if is_current(state, now) else NO_GOAL


def is_current(state: State, now: Instant) -> bool:
    """Return True if the need and the use of memory in the last sample still count."""
    timing = state.policy.timing
    # A need lasts until the next scrape: otherwise, between two scrapes, a VM would withdraw a denied request, and a
    # pod would call off the trial of less memory.
    return _is_sampled_within(state, max(timing.stale, Seconds(2 * timing.scrape)), now)


def is_fresh(state: State, now: Instant) -> bool:
    """Return True if the last sample is recent enough to count as evidence."""
    return _is_sampled_within(state, state.policy.timing.stale, now)


def _is_sampled_within(state: State, age: Seconds, now: Instant) -> bool:
    observed = state.guest.observed
    return observed is not None and now - observed.last <= age


def _because(vm: Vm, size: Resources, goal: Goal, sizes: Sizes) -> str:
    if not size.within(vm.use):
        return f"growing for {_strongest(goal, vm, sizes, size) or MEMORY_KILLS}"
    if goal.need is None:
        what = "no metrics" if not goal.parts else "some metrics are missing"
        return f"{what}: not below its current size"
    if size != vm.use:
        return f"shrinking: {size} is proven to be enough"
    if size.within(sizes.covering(goal.need)):
        return f"sized for {_strongest(goal, vm, sizes, size)}"
    return "holding: less has not been proven to be enough"


def _cache_reason(vm: Vm, size: Resources) -> str:
    if size.mem > vm.use.mem:
        return "growing memory for the page cache"
    what = "shrinking in steps, " if size.mem < vm.use.mem else ""
    return f"{what}keeping memory for the page cache"


def _strongest(goal: Goal, vm: Vm, sizes: Sizes, size: Resources) -> str:
    """Names of the parts that determine the size: those with the most compute units.

    For a pod, the largest part of each resource that grows to ``size``, or of both if none does.
    """
    if vm.is_pod:
        grows: tuple[tuple[type[Amount], bool], ...] = (MilliCpu, size.cpu > vm.use.cpu), (Bytes, size.mem > vm.use.mem)
        kinds = [kind for kind, is_growing in grows if is_growing] or [kind for kind, _ in grows]
        candidates = [[part for part in goal.parts if isinstance(part.need, kind)] for kind in kinds]
        return " and ".join(max(parts, key=lambda part: part.need.value).name for parts in candidates if parts)
    units = {part.name: _units(part, sizes.unit) for part in goal.parts}
    most = max(units.values(), default=0)
    return " and ".join(name for name, count in units.items() if count == most)


def _units(part: Part, unit: ComputeUnit) -> int:
    return part.need.units_up(unit.cpu) if isinstance(part.need, MilliCpu) else part.need.units_up(unit.mem)
