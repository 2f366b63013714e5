"""Keys of a price table from the labels of nodes, as clouds set them (S2.1)."""

from __future__ import annotations

import pytest

from protocol.ranking.prices import price_keys

TYPE = {"node.kubernetes.io/instance-type": "m5"}


@pytest.mark.parametrize(
    ("labels", "keys"),
    [
        ({}, ()),
        (TYPE, ("m5",)),
        ({"beta.kubernetes.io/instance-type": "m4"}, ("m4",)),
        ({"eks.amazonaws.com/capacityType": "SPOT", **TYPE}, ("m5/spot", "m5")),
        ({"eks.amazonaws.com/capacityType": "ON_DEMAND", **TYPE}, ("m5",)),
        ({"eks.amazonaws.com/nodegroup": "web", **TYPE}, ("web", "m5")),
        ({"cloud.google.com/gke-preemptible": "true", **TYPE}, ("m5/spot", "m5")),
        ({"cloud.google.com/gke-provisioning": "spot", **TYPE}, ("m5/spot", "m5")),
        ({"cloud.google.com/gke-provisioning": "standard", **TYPE}, ("m5",)),
        ({"agentpool": "user", "kubernetes.azure.com/agentpool": "user", **TYPE}, ("user", "m5")),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, ()),
        ({"autoscaling.neon.tech/node-group": "m5", **TYPE}, ("m5",)),
        (
            {"autoscaling.neon.tech/node-group": "mine", "karpenter.sh/nodepool": "theirs", **TYPE},
            ("mine", "theirs", "m5"),
        ),
    ],
)
def test_keys_of_labels(labels: dict[str, str], keys: tuple[str, ...]) -> None:
    assert price_keys(labels) == keys
