"""The total need of a workload, from what both recommenders say of it (S1.12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil

from scheduler_plugin.groups.core.hvpa.effective import Need, base_of
from scheduler_plugin.groups.core.hvpa.past_targets import described
from scheduler_plugin.groups.core.hvpa.spec import HvpaSpec, Memory
from scheduler_plugin.groups.core.hvpa.wishes import is_sized, sized_containers
from scheduler_plugin.groups.core.workload import Recommendations, ReplicaBounds, Resource, Workload


def total_needs(
    spec: HvpaSpec, workload: Workload, recommendations: Recommendations, memory: Memory
) -> tuple[Need, ...]:
    """One need for each resource of each container that either recommender speaks of."""
    found = _vertical(spec, workload, recommendations, memory)
    for container in workload.containers:
        for resource, request in container.sizes:
            measured = _measured(spec, workload, recommendations, resource, request.value)
            if measured is not None:
                key = (container.name, resource)
                found[key] = _both(found.get(key), Need(*key, 0, *measured), workload.replicas)
    return tuple(found.values())


def _measured(
    spec: HvpaSpec, workload: Workload, recommendations: Recommendations, resource: Resource, request: int
) -> tuple[int, int] | None:
    """The total need that an HPA measures against requests of that size, and the part of it that is sure.

    Where it does not say its ratio of use and target, it is more than ``desired - 1`` and at most ``desired`` requests.
    """
    horizontal = recommendations.horizontal
    if horizontal is None or resource not in spec.desired_by_utilization:
        return None
    ratio = dict(horizontal.ratios).get(resource)
    if ratio is None:
        return horizontal.desired * request, (horizontal.desired - 1) * request + 1
    total = ceil(Fraction(str(ratio)) * workload.replicas * request)
    return total, total


def _both(vertical: Need | None, measured: Need, replicas: int) -> Need:
    """The larger of both needs; what is measured includes what each replica has for itself."""
    if vertical is None:
        return replace(measured, sure=None)
    own = replicas * vertical.base
    total, sure = max(vertical.total, measured.total - own), max(vertical.sure or 0, (measured.sure or 0) - own)
    return replace(vertical, total=total, sure=sure)


def _vertical(
    spec: HvpaSpec, workload: Workload, recommendations: Recommendations, memory: Memory
) -> dict[tuple[str, Resource], Need]:
    exact = recommendations.vertical.replicas if recommendations.vertical else None
    found = {}
    for container, recommended in sized_containers(spec, workload, recommendations):
        for resource, target in recommended.uncapped.over(recommended.target):
            if is_sized(spec, container.name, resource):
                key = (container.name, resource)
                least, most = (exact, exact) if exact else described(memory, *key, workload.replicas)
                base = base_of(spec.effective.base[resource], target.value)
                shared = target.value - base
                found[key] = Need(*key, base, most * shared, least * shared)
    return found


def replica_bounds(
    spec: HvpaSpec, workload: Workload, recommendations: Recommendations, needs: Sequence[Need]
) -> ReplicaBounds:
    """The bounds of the plan: what an HPA wants for reasons of its own is a least number of replicas.

    Without a vertical recommendation, or while the need of anything that is sized is unknown, replicas only grow.
    """
    least, horizontal = spec.replicas.min, recommendations.horizontal
    if horizontal is not None and not spec.desired_by_utilization:
        least = max(least, horizontal.desired)
    if recommendations.vertical is None or not needs or unknown_needs(spec, workload, needs):
        least = max(least, workload.replicas)
    return ReplicaBounds(spec.replicas.clamp(least), spec.replicas.max)


def unknown_needs(spec: HvpaSpec, workload: Workload, needs: Sequence[Need]) -> tuple[str, ...]:
    """What is sized although nothing says how much of it is needed, such as ``app/memory``."""
    known = {(need.container, need.resource) for need in needs}
    return tuple(
        f"{container.name}/{resource}"
        for container in workload.containers
        for resource, _ in container.sizes
        if is_sized(spec, container.name, resource) and (container.name, resource) not in known
    )
