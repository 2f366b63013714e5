"""Which kills for lack of memory more replicas, or a larger size, can answer (S3.6)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from scheduler_plugin.groups.core.tortoise.phases import is_within
from scheduler_plugin.groups.core.tortoise.scaling_policy import Scaling
from scheduler_plugin.groups.core.tortoise.tortoise_memory import Spec, TortoiseMemory
from scheduler_plugin.groups.core.tortoise.vertical import bounds_of
from scheduler_plugin.groups.core.workload import OutOfMemory, SizeBounds, Workload


def is_emergency(spec: Spec, workload: Workload, memory: TortoiseMemory, now: datetime) -> bool:
    """Return True if a recent kill is one that replicas or a size can answer."""
    return any(
        # If the memory may grow, more replicas take the load until it has. Many pods at once mean that the load is too
        # much for all of them; a leak in one pod of twenty is only reported.
        not _why_kept(spec, workload, memory, kill) or _are_many(_pods(spec, kill, now), workload.replicas)
        for kill in _recent(spec, workload, now)
    )


def unanswered(spec: Spec, workload: Workload, memory: TortoiseMemory, now: datetime) -> Iterator[str]:
    """A sentence for each container that was killed recently and whose memory does not grow."""
    for kill in _recent(spec, workload, now):
        if why := _why_kept(spec, workload, memory, kill):
            pods = f"{_pods(spec, kill, now)} of {workload.replicas} pods"
            yield f"{kill.container} ran out of memory in {pods}, last at {kill.at:%H:%M:%S} UTC: {why}"


def _recent(spec: Spec, workload: Workload, now: datetime) -> Iterator[OutOfMemory]:
    grace = spec.configuration.emergency_mode_grace_period
    return (kill for kill in workload.out_of_memory if is_within(kill.at, grace, now))


def _pods(spec: Spec, kill: OutOfMemory, now: datetime) -> int:
    return kill.pods_since(now - spec.configuration.emergency_mode_grace_period)


def _are_many(pods: int, replicas: int) -> bool:
    """Return True if this many pods are more than a third of all, and more than one unless there is only one.

    >>> [_are_many(pods, 20) for pods in (1, 6, 7)], _are_many(1, 1), _are_many(1, 2)
    ([False, False, True], True, False)
    """
    return pods * 3 > replicas and (pods > 1 or replicas <= 1)


def _why_kept(spec: Spec, workload: Workload, memory: TortoiseMemory, kill: OutOfMemory) -> str:
    """Reason why the memory of that container does not grow; empty if it may."""
    container = workload.container(kill.container)
    size = None if container is None else container.sizes.memory
    if size is None:
        return "it has neither request nor limit for memory"
    if memory.policies.get((kill.container, "memory"), Scaling.OFF) is Scaling.OFF:
        return "autoscalingPolicy does not scale its memory"
    if not memory.works((kill.container, "memory")):
        return "data is still gathered on its memory"
    _, most = bounds_of(spec.sizes.get(kill.container, SizeBounds()), spec.configuration.sizes, "memory")
    return f"its memory is at its maximum, {size}" if size.value >= most else ""
