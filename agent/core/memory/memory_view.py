"""A view of a guest's memory, extracted from its metrics: used, page cache, unused (B.16)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from agent.core.goal import MEMORY_USED, NOTHING, Goal
from agent.core.guest import GuestSample
from agent.core.memory.rereading import Cost
from agent.core.policy import MemoryPolicy
from agent.core.vm import Vm
from protocol.units import Bytes, ComputeUnit, Resources

NONE: Final = Bytes(0)


@dataclass(frozen=True, slots=True)
class MemoryView:
    """A VM's memory at one moment.

    ``use`` is the ordered size, up to ``maximum`` in steps of ``step``; ``need`` is the proven need. ``free`` is unused
    memory, None without refault metrics, and ``cached`` the page cache. ``cost`` covers the time since the last view,
    None if unknown.
    """

    use: Bytes
    maximum: Bytes
    step: Bytes
    need: Bytes
    free: Bytes | None = None
    cached: Bytes = NONE
    cost: Cost | None = None


def memory_view(sample: GuestSample, spent: Cost | None, vm: Vm, goal: Goal, unit: ComputeUnit | None) -> MemoryView:
    """The view of a sample. ``spent`` is the cost since the last sample; None if that is not evidence."""
    need, used = goal.at_least.mem, _used(goal)
    # Sizes are multiples of both the compute unit and the memory slot.
    step = vm.slot_size if unit is None else vm.sizes(unit).mem_step
    # A pod's request may be deferred, and a trial starts only once the pod has the memory.
    use = vm.has_mem if vm.is_pod else vm.use.mem
    view = MemoryView(use, vm.bounds.max.mem, step, need, cost=spent)
    if sample.shows_rereading and sample.mem_free is not None and sample.mem_available is not None:
        # The guest is not trusted: available memory cannot exceed the VM's.
        available = min(sample.mem_available, vm.actual.mem)
        # Memory that is being unplugged is still reported as free, but cannot be filled.
        free, leaving = min(sample.mem_free, available), vm.actual.mem.minus_or_zero(vm.use.mem)
        return replace(view, free=min(vm.use.mem, free.minus_or_zero(leaving)), cached=available - free)
    # Without refault metrics only memory pressure is evidence, and only if programs leave some memory free.
    is_crowded = used > vm.use.mem
    return replace(view, need=NOTHING.mem if is_crowded or need <= used else need, cost=None if is_crowded else spent)


def _used(goal: Goal) -> Bytes:
    needs = (part.need for part in goal.parts if part.name == MEMORY_USED)
    return next((need for need in needs if isinstance(need, Bytes)), NOTHING.mem)


def kernel_share(sample: GuestSample, has: Resources, policy: MemoryPolicy) -> Bytes:
    """Memory that the kernel reserved at boot and the guest does not report: the larger of two estimates."""
    if sample.mem_total is None:
        return policy.kernel_allowance
    return max(policy.kernel_allowance, has.mem.minus_or_zero(sample.mem_total))
