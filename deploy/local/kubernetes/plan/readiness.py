"""Whether objects of a cluster are ready, as they say themselves (pure)."""

from __future__ import annotations

from deploy.local.kubernetes.plan.cluster_plan import ClusterPlan
from protocol.kubernetes.objects import Json, items, name_of, text


def holds(thing: Json, condition: str) -> bool:
    """Return True if a condition of the object's status is true."""
    found = items(thing, "status", "conditions")
    return any(text(each, "type") == condition and text(each, "status") == "True" for each in found)


def unready(objects: list[Json], condition: str) -> list[str]:
    """The names of those of which the condition does not hold, in order."""
    return sorted(name_of(each).name for each in objects if not holds(each, condition))


def missing_nodes(plan: ClusterPlan, nodes: list[Json]) -> list[str]:
    """The planned nodes that are not Ready, or not there."""
    ready = {name_of(node).name for node in nodes if holds(node, "Ready")}
    return [node.name for node in plan.nodes if node.name not in ready]
