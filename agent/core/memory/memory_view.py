"""From a guest's page to one look at its memory: what is used, what is page cache, what holds nothing (B.16)."""

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

    ``use`` of at most ``most`` is ordered, in steps of ``step``; ``need`` is what is needed for certain. ``free`` and
    ``cached`` are unused memory and page cache, None if the guest has no refault metrics. ``cost`` is that of the
    time since the last view, None if unknown.
    """

    use: Bytes
    most: Bytes
    step: Bytes
    need: Bytes
    free: Bytes | None = None
    cached: Bytes = NONE
    cost: Cost | None = None


def memory_view(sample: GuestSample, spent: Cost | None, vm: Vm, known: Goal, unit: ComputeUnit | None) -> MemoryView:
    """The view of one sample. ``spent`` is the cost of the time since the last one, None if that is no evidence."""
    need, used = known.at_least.mem, _used(known)
    # A size must be a multiple of both the compute unit and the slot.
    step = vm.slot_size if unit is None else vm.sizes(unit).mem_step
    # A pod's wish may wait for room: no trial has begun before the pod has the memory.
    use = vm.has_mem if vm.is_pod else vm.use.mem
    view = MemoryView(use, vm.bounds.max.mem, step, need, cost=spent)
    if sample.shows_rereading and sample.mem_free is not None and sample.mem_available is not None:
        # A guest is not trusted: it cannot have more available than it has.
        available = min(sample.mem_available, vm.actual.mem)
        # Memory that is being unplugged is still reported as free, but is not there to fill.
        free, leaving = min(sample.mem_free, available), vm.actual.mem.minus_or_zero(vm.use.mem)
        return replace(view, free=min(vm.use.mem, free.minus_or_zero(leaving)), cached=available - free)
    # A guest that does not show what it rereads is judged by pressure alone, and only where its programs leave some
    # memory.
    is_crowded = used > vm.use.mem
    return replace(view, need=NOTHING.mem if is_crowded or need <= used else need, cost=None if is_crowded else spent)


def _used(known: Goal) -> Bytes:
    needs = (part.need for part in known.parts if part.name == MEMORY_USED)
    return next((need for need in needs if isinstance(need, Bytes)), NOTHING.mem)


def kernel_share(sample: GuestSample, has: Resources, policy: MemoryPolicy) -> Bytes:
    """Memory of the VM that the guest does not report because its kernel took it at boot; the greater estimate."""
    if sample.mem_total is None:
        return policy.kernel_allowance
    return max(policy.kernel_allowance, has.mem.minus_or_zero(sample.mem_total))
