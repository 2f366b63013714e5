"""The Node objects with which a cluster begins (pure).

They are created before the kubelets register, which adopt them: so pod subnets, labels and taints are the plan's, even
labels that NodeRestriction keeps a kubelet from setting.
"""

from __future__ import annotations

from deploy.local.kubernetes.plan.cluster_plan import NodePlan
from protocol.kubernetes.objects import Json


def node_object(node: NodePlan) -> Json:
    """The node as it is registered. Kubernetes itself adds and removes the taint of a node that is not ready."""
    labels = {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", **node.labels}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels},
        "spec": {"podCIDR": node.pod_subnet, "podCIDRs": [node.pod_subnet], "taints": list(node.taints)},
    }
