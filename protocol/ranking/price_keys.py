"""The keys under which a price table may have a node (S2.1). The same in the expander, in reports and on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocol.names import LABEL_MACHINE, LABEL_MACHINE_OLD, LABEL_NODE_GROUP

NODE_GROUP_LABELS: Final = (
    LABEL_NODE_GROUP,
    "agentpool",
    "alpha.eksctl.io/nodegroup-name",
    "cloud.google.com/gke-nodepool",
    "doks.digitalocean.com/node-pool",
    "eks.amazonaws.com/nodegroup",
    "ibm-cloud.kubernetes.io/worker-pool-name",
    "k8s.scaleway.com/pool-name",
    "karpenter.sh/nodepool",
    "karpenter.sh/provisioner-name",
    "kops.k8s.io/instancegroup",
    "kubernetes.azure.com/agentpool",
    "lke.linode.com/pool-id",
    "yandex.cloud/node-group-id",
)
"""Labels whose value is the name of a node's group: ours, which anybody may set, and those of the clouds."""

SPOT_LABELS: Final[Mapping[str, str]] = {
    "cloud.google.com/gke-preemptible": "true",
    "cloud.google.com/gke-provisioning": "spot",
    "cloud.google.com/gke-spot": "true",
    "eks.amazonaws.com/capacityType": "spot",
    "karpenter.sh/capacity-type": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "node.kubernetes.io/lifecycle": "spot",
}
"""Labels of nodes that the cloud may take back, with their values in lower case."""

SPOT_SUFFIX: Final = "/spot"
"""Follows an instance type in the key of its spot price. No instance type has a slash."""

PRICE_LABELS: Final = (*NODE_GROUP_LABELS, *SPOT_LABELS, LABEL_MACHINE, LABEL_MACHINE_OLD)
"""All labels that ``price_keys`` reads."""


def price_keys(labels: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of a node with these labels, most specific first: its groups, ``TYPE/spot``, its type.

    >>> price_keys({"karpenter.sh/nodepool": "cheap", "karpenter.sh/capacity-type": "spot", LABEL_MACHINE: "m5"})
    ('cheap', 'm5/spot', 'm5')
    """
    groups = [group for label in NODE_GROUP_LABELS if (group := labels.get(label))]
    machine = labels.get(LABEL_MACHINE) or labels.get(LABEL_MACHINE_OLD)
    # Without a price as a spot instance, the ordinary one is better than none.
    is_spot = any((labels.get(label) or "").lower() == value for label, value in SPOT_LABELS.items())
    types = [] if not machine else [f"{machine}{SPOT_SUFFIX}", machine] if is_spot else [machine]
    # A group may be named like an instance type, and a node may have several labels of one group.
    return tuple(dict.fromkeys((*groups, *types)))
