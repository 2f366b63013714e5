"""The Node objects with which a cluster begins (pure).

They are made before the kubelets come, which find themselves in them: so subnets of pods, labels and taints are the
plan's, and a label that NodeRestriction keeps a kubelet from setting can be asked for.
"""

from __future__ import annotations

from deploy.local.kubernetes.plan.cluster_plan import NodePlan
from protocol.kubernetes.objects import Json


def node_object(node: NodePlan) -> Json:
    """The node as it is registered. Kubernetes adds the taint of a node that is not ready, and takes it away."""
    labels = {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", **node.labels}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels},
        "spec": {"podCIDR": node.pod_subnet, "podCIDRs": [node.pod_subnet], "taints": list(node.taints)},
    }
