"""Settings that are added to a node before it reaches the ledger (S2.1, S4.6, S4.8)."""

from __future__ import annotations

import pytest

from protocol.ranking.config import MAX_PRICE
from protocol.units import Resources
from scheduler_plugin.cluster.feed import node_facts
from scheduler_plugin.cluster.translate import ClusterNode
from scheduler_plugin.ledger.facts import NodeFacts
from scheduler_plugin.settings.document import parse_settings

SETTINGS = parse_settings(
    """
nodeDefaults: {computeUnit: {vCPUs: "250m", mem: 1Gi}}
nodeOverrides: [{nodes: [big], cpu: {watermark: 0.5}}]
ranking:
  nodePrices: {big: 3.2, m5.xlarge: 0.192}
  prices: {cpu: 2, memGib: 1, gpu: 10}
"""
)
SIZE = Resources.parse(4, "16Gi")


@pytest.mark.parametrize(
    ("node", "price"),
    [
        (ClusterNode("big", SIZE, price_keys=("m5.xlarge",)), 3.2),
        (ClusterNode("other", SIZE, price_keys=("m5.xlarge",)), 0.192),
        (ClusterNode("other", SIZE, price_keys=("pool", "m5.xlarge/spot", "m5.xlarge")), 0.192),
        (ClusterNode("other", SIZE, price_keys=("m5.unknown",)), MAX_PRICE + 24.0),
        (ClusterNode("other", SIZE, is_open=False, gpus=1), MAX_PRICE + 34.0),
    ],
)
def test_node_price_by_name_type_or_parts(node: ClusterNode, price: float) -> None:
    """A node that the table lacks comes after all others, as its parts may be priced in another currency."""
    expected = NodeFacts(node.name, SIZE, SETTINGS.policy_of(node.name), node.is_open, price)
    assert node_facts(node, SETTINGS) == expected


def test_node_price_of_parts_without_table() -> None:
    without = parse_settings(
        "{nodeDefaults: {computeUnit: {vCPUs: 1, mem: 4Gi}}, ranking: {prices: {cpu: 2, memGib: 1, gpu: 10}}}"
    )
    assert node_facts(ClusterNode("n", SIZE, gpus=1), without).price == 34.0
