"""The total need of a workload, from what both recommenders say of it (S1.12)."""

from __future__ import annotations

from dataclasses import replace

from scheduler_plugin.groups.core.hvpa.effective import Need, base_of
from scheduler_plugin.groups.core.hvpa.spec import HvpaSpec
from scheduler_plugin.groups.core.hvpa.wishes import sized_containers
from scheduler_plugin.groups.core.workload import Recommendations, ReplicaBounds, Resource, Workload


def total_needs(spec: HvpaSpec, workload: Workload, recommendations: Recommendations) -> tuple[Need, ...]:
    """One need for each resource of each container that either recommender speaks of.

    A vertical target times the replicas that it describes is a total. An HPA that measures use against requests says
    that between ``desired - 1`` and ``desired`` of the present replicas are needed: the lower end holds beside a
    vertical target, the upper end stands alone.
    """
    found = _vertical(spec, workload, recommendations)
    horizontal = recommendations.horizontal
    if horizontal is None:
        return tuple(found.values())
    for container in workload.containers:
        for resource, request in container.requests:
            if resource not in spec.desired_by_utilization:
                continue
            key = (container.name, resource)
            need = found.get(key)
            if need is None:
                found[key] = Need(*key, base=0, total=horizontal.desired * request.value)
            else:
                least = (horizontal.desired - 1) * request.value - workload.replicas * need.base
                found[key] = replace(need, total=max(need.total, least))
    return tuple(found.values())


def _vertical(spec: HvpaSpec, workload: Workload, recommendations: Recommendations) -> dict[tuple[str, Resource], Need]:
    described = recommendations.vertical.replicas if recommendations.vertical else None
    replicas = workload.replicas if described is None else described
    found = {}
    for container, recommended in sized_containers(spec, workload, recommendations):
        for resource, target in recommended.uncapped.over(recommended.target):
            if resource in spec.policy(container.name).resources:
                base = base_of(spec.effective.base[resource], target.value)
                total = replicas * (target.value - base)
                found[container.name, resource] = Need(container.name, resource, base, total)
    return found


def replica_bounds(spec: HvpaSpec, recommendations: Recommendations) -> ReplicaBounds:
    """The bounds of the plan: what an HPA wants for reasons of its own is a least number of replicas."""
    horizontal = recommendations.horizontal
    if horizontal is None or spec.desired_by_utilization:
        return spec.replicas
    return ReplicaBounds(spec.replicas.clamp(horizontal.desired), spec.replicas.max)
