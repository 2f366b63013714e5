"""Readiness of a cluster's objects, as they say themselves (pure)."""

from __future__ import annotations

from deploy.local.kubernetes.plan.cluster_plan import ClusterPlan
from protocol.kubernetes.conditions import holds
from protocol.kubernetes.objects import Json, name_of


def unready(objects: list[Json], condition: str) -> list[str]:
    """The names of the objects for which the condition does not hold, in order."""
    return sorted(name_of(obj).name for obj in objects if not holds(obj, condition))


def missing_nodes(plan: ClusterPlan, nodes: list[Json]) -> list[str]:
    """The planned nodes that are not Ready, or do not exist."""
    # Compared with the plan, because a node that has not registered yet is missing from the list.
    ready = {name_of(node).name for node in nodes if holds(node, "Ready")}
    return [node.name for node in plan.nodes if node.name not in ready]
