"""The ranking section: published constants where nothing is written, and refusals that name the place."""

from __future__ import annotations

import pytest

from protocol.ranking.config import PreferredSize, Prices, RankingConfig, RankingConfigError, parse_ranking


@pytest.mark.parametrize("document", [None, {}])
def test_nothing_written_is_the_published_constants(document: object) -> None:
    config = parse_ranking(document)
    assert config == RankingConfig()
    assert config.prices == Prices(cpu=0.033174, mem_gib=0.004446, gpu=0.7, storage_50gb=0.01)
    assert [(size.nodes, size.vcpus) for size in config.preferred_sizes] == [
        *((2, 1), (6, 2), (20, 4), (80, 8), (300, 16)),
        (None, 32),
    ]


def test_everything_can_be_written() -> None:
    config = parse_ranking(
        {
            "prices": {"cpu": 1, "memGib": 2, "gpu": 3, "storage50GB": 4},
            "nodePrices": {"big": 0.5},
            "damper": {"cpu": 1, "memMib": 1},
            "suppressOver": 5,
            "preferredSizes": [{"nodes": 10, "vCPUs": 4}, {"vCPUs": 8}],
            "preferredMiBPerVCPU": 4096,
            "unwantedGPUUnfitness": 50,
            "newGroupFactor": 1,
            "score": {"empty": 0.2, "full": 0.1, "peak": 0.9},
        }
    )
    assert config.prices == Prices(cpu=1, mem_gib=2, gpu=3, storage_50gb=4)
    assert config.preferred_sizes == (PreferredSize(nodes=10, vcpus=4), PreferredSize(vcpus=8))
    assert config.node_prices == {"big": 0.5}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"price": {}}, "document: object contains unknown field price"),
        ({"prices": {"cpu": -1}}, "prices: expected prices from 0 to 1e12"),
        ({"prices": {"cpu": 1e308}}, "prices: expected prices from 0 to 1e12"),
        ({"prices": {"memGib": float("nan")}}, "prices: expected prices from 0 to 1e12"),
        ({"nodePrices": {"big": 1e13}}, "document: expected nodePrices from 0 to 1e12"),
        ({"prices": {"cpu": "1"}}, "prices.cpu: expected float, got str"),
        ({"damper": {"cpu": -1}}, "damper: expected zero or more"),
        ({"suppressOver": 0}, "document: expected suppressOver above zero"),
        ({"unwantedGPUUnfitness": 0}, "document: expected unwantedGPUUnfitness of at least 1"),
        ({"newGroupFactor": 0}, "document: expected newGroupFactor of at least 1"),
        ({"nodePrices": {"big": -1}}, "document: expected nodePrices from 0 to 1e12"),
        ({"preferredSizes": []}, "document: expected preferredSizes with rising nodes, the last without"),
        (
            {"preferredSizes": [{"nodes": 2, "vCPUs": 1}]},
            "document: expected preferredSizes with rising nodes, the last without",
        ),
        (
            {"preferredSizes": [{"nodes": 3, "vCPUs": 1}, {"nodes": 2, "vCPUs": 1}, {"vCPUs": 1}]},
            "document: expected preferredSizes with rising nodes, the last without",
        ),
        (
            {"preferredSizes": [{"vCPUs": 0}]},
            "preferredSizes[0]: expected vCPUs and nodes above zero",
        ),
        ({"score": {"peak": 1.5}}, "score: expected empty, full, peak and growth of 0 to 1"),
    ],
)
def test_a_bad_section_is_refused_with_the_place(document: object, message: str) -> None:
    with pytest.raises(RankingConfigError) as caught:
        parse_ranking(document)
    assert str(caught.value) == message
