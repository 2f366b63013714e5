"""The requests to give a pod next, so that no change of one resource holds up the other (B.7).

The kubelet carries out a change of CPU and memory together or not at all. So

- CPU goes first: while it is to grow, memory does not shrink, and a shrink that is not finished is taken back;
- what the kubelet will not do goes back to what the pod has; what it only defers does so if it is in the way.
"""

from __future__ import annotations

from typing import Final

from agent.core.pods.pauses import Resource, amount, with_amount
from agent.core.vm import Vm
from protocol.pod_database import DEFERRED, ERROR
from protocol.units import Resources

ORDER: Final[tuple[Resource, Resource]] = ("mem", "cpu")
"""Of two resources in question memory is put back first: postgres needs CPU sooner, and then CPU is tried alone."""


def cpu_first(vm: Vm, size: Resources) -> Resources:
    """``size`` with no less memory than the pod has while CPU is to grow."""
    if not size.cpu > vm.actual.cpu:
        return size
    return Resources(size.cpu, max(size.mem, vm.actual.mem))


def put_back(vm: Vm, size: Resources) -> Resource | None:
    """The resource whose requests go back to what the pod has, since the kubelet objects; ``size`` is wanted."""
    if vm.objection is None:
        return None
    verdict = vm.objection.verdict
    changed = [resource for resource in ORDER if amount(vm.use, resource) != amount(vm.actual, resource)]
    growing = [resource for resource in changed if amount(vm.use, resource) > amount(vm.actual, resource)]
    # It is growth that does not fit. An error comes later, from what the kubelet has begun, which may be a shrink.
    stuck = changed if verdict == ERROR else growing or changed
    first = next(iter(stuck), None)
    if first is None or verdict != DEFERRED or len(stuck) > 1:
        return first
    other: Resource = "cpu" if first == "mem" else "mem"
    return first if amount(size, other) > amount(vm.actual, other) else None


def grown_by(vm: Vm, target: Resources) -> Resource | None:
    """The resource of a pod that ``target`` raises; memory if it raises both."""
    if not vm.is_pod:
        return None
    return next((resource for resource in ORDER if amount(target, resource) > amount(vm.holds, resource)), None)


def next_requests(vm: Vm, size: Resources) -> tuple[Resources, Resource | None]:
    """The requests on the way to ``size``, which is permitted, and the resource that they put back, if any."""
    back = put_back(vm, size)
    size = cpu_first(vm, size if back is None else with_amount(size, back, vm.actual))
    if size.cpu > vm.use.cpu and size.mem < vm.use.mem:
        # One after the other. A wish for memory that is in the way of CPU goes before that.
        size = with_amount(size, "cpu" if back == "mem" else "mem", vm.use)
    return size, back
