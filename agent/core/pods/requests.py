"""The next requests of a pod, such that neither resource blocks the other (B.7).

The kubelet applies a resize of CPU and memory as a whole or not at all. Therefore

- CPU has priority: while it needs to grow, memory does not shrink, and an unfinished shrink is reverted;
- an infeasible or failed resize is reverted to the actual size, a deferred one only if it blocks the other resource.
"""

from __future__ import annotations

from typing import Final

from agent.core.pods.pauses import Resource, amount, with_amount
from agent.core.vm import Vm
from protocol.pod_database import DEFERRED, ERROR
from protocol.units import Resources

ORDER: Final[tuple[Resource, Resource]] = ("mem", "cpu")
"""If both could be reverted, revert memory first: postgres needs CPU more urgently, and CPU is then tried alone."""


def cpu_first(vm: Vm, size: Resources) -> Resources:
    """``size``, but without shrinking memory while CPU grows."""
    if not size.cpu > vm.actual.cpu:
        return size
    return Resources(size.cpu, max(size.mem, vm.actual.mem))


def resource_to_revert(vm: Vm, size: Resources) -> Resource | None:
    """The resource to revert because the kubelet objected, if any. ``size`` is the desired size."""
    if vm.objection is None:
        return None
    verdict = vm.objection.verdict
    changed = [resource for resource in ORDER if amount(vm.use, resource) != amount(vm.actual, resource)]
    growing = [resource for resource in changed if amount(vm.use, resource) > amount(vm.actual, resource)]
    # Deferred and Infeasible concern growth. An Error comes from actuation, which may be a shrink.
    stuck = changed if verdict == ERROR else growing or changed
    first = next(iter(stuck), None)
    if first is None or verdict != DEFERRED or len(stuck) > 1:
        return first
    other: Resource = "cpu" if first == "mem" else "mem"
    return first if amount(size, other) > amount(vm.actual, other) else None


def raised_resource(vm: Vm, target: Resources) -> Resource | None:
    """The resource that ``target`` raises; memory if both."""
    return next((resource for resource in ORDER if amount(target, resource) > amount(vm.holds, resource)), None)


def lowered_resource(vm: Vm, target: Resources) -> Resource | None:
    """The resource that ``target`` lowers; memory if both."""
    return next((resource for resource in ORDER if amount(target, resource) < amount(vm.use, resource)), None)


def next_requests(vm: Vm, size: Resources) -> tuple[Resources, Resource | None]:
    """The next requests towards the permitted ``size``, and the resource that they revert, if any."""
    back = resource_to_revert(vm, size)
    size = cpu_first(vm, size if back is None else with_amount(size, back, vm.actual))
    if size.cpu > vm.use.cpu and size.mem < vm.use.mem:
        # One after the other; memory that blocks CPU is reverted first.
        size = with_amount(size, "cpu" if back == "mem" else "mem", vm.use)
    return size, back
