"""A cluster of two nodes: one that has the whole machine, and a smaller one with a label and a taint."""

from __future__ import annotations

from typing import Final

from deploy.local.kubernetes.plan.cluster_plan import ClusterPlan, NodePlan
from protocol.units import Resources

MACHINE: Final = Resources.parse("4", "8Gi")
FIRST: Final = NodePlan("node-1", 1, MACHINE, {}, ())
SECOND: Final = NodePlan(
    "node-2",
    2,
    Resources.parse("1500m", "2Gi"),
    {"zone": "b"},
    ({"key": "gpu", "value": "yes", "effect": "NoSchedule"},),
)
PLAN: Final = ClusterPlan("shop", "1.36", (FIRST, SECOND), MACHINE)
