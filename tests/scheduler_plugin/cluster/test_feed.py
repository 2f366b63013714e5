"""What the settings add to a node before the ledger hears of it (S2.1, S4.6, S4.8)."""

from __future__ import annotations

import pytest

from protocol.units import Resources
from scheduler_plugin.cluster.feed import node_facts
from scheduler_plugin.cluster.translate import ClusterNode
from scheduler_plugin.ledger import NodeFacts
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
        (ClusterNode("big", SIZE, machine="m5.xlarge"), 3.2),
        (ClusterNode("other", SIZE, machine="m5.xlarge"), 0.192),
        (ClusterNode("other", SIZE, machine="m5.unknown"), 24.0),
        (ClusterNode("other", SIZE, is_open=False, gpus=1), 34.0),
    ],
)
def test_a_nodes_price_is_that_of_its_name_else_of_its_type_else_of_its_parts(node: ClusterNode, price: float) -> None:
    expected = NodeFacts(node.name, SIZE, SETTINGS.policy_of(node.name), node.is_open, price)
    assert node_facts(node, SETTINGS) == expected
