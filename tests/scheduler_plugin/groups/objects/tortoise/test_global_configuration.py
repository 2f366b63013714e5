"""Tortoise's global configuration is read with upstream's names; what cannot be is refused by name."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest

from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.objects.tortoise.global_configuration import ConfigurationError, read_configuration
from tests.scheduler_plugin.groups.objects.tortoise.written_configuration import write_configuration


def test_nothing_is_the_default() -> None:
    assert read_configuration({}) == Configuration()


def test_value_kinds_round_trip() -> None:
    document = {
        "RangeOfMinMaxReplicasRecommendationHours": 2,
        "GatheringDataPeriodType": "daily",
        "MaxReplicasRecommendationMultiplier": 1.5,
        "MaximumCPURequest": 5,
        "MinimumMemoryRequest": "64Mi",
        "TimeZone": "Europe/Berlin",
        "HPATargetUtilizationUpdateInterval": "12h",
    }
    found = read_configuration(document)
    assert found == replace(
        Configuration(),
        range_of_min_max_replicas_recommendation_hours=2,
        gathering_data_period_type="daily",
        max_replicas_recommendation_multiplier=Fraction("1.5"),
        maximum_cpu_request=MilliCpu(5000),
        minimum_memory_request=Bytes(64 * 2**20),
        time_zone=ZoneInfo("Europe/Berlin"),
        hpa_target_utilization_update_interval=timedelta(hours=12),
    )
    assert read_configuration(write_configuration(found)) == found
    assert found.gathering == timedelta(days=1)


def test_limits_and_exclusions_round_trip() -> None:
    document: dict[str, object] = {
        "ResourceLimitMultiplier": {"cpu": 3, "memory": 1},
        "MinimumCPULimit": "500m",
        "HPAExternalMetricExclusionRegex": "datadogmetric.*",
    }
    written = write_configuration(read_configuration(document))
    assert {name: written[name] for name in document} == document
    assert write_configuration(Configuration())["HPAExternalMetricExclusionRegex"] == ""
    assert read_configuration({"HPAExternalMetricExclusionRegex": ""}) == Configuration()


def test_upstream_fields_without_effect_are_kept() -> None:
    found = read_configuration({"FeatureFlags": ["x"], "IstioSidecarProxyDefaultCPU": "100m", "MinimumMinReplicas": 2})
    assert (found.ignored, found.minimum_min_replicas) == (("FeatureFlags", "IstioSidecarProxyDefaultCPU"), 2)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"FeatureFlag": []}, "FeatureFlag: unknown name; expected one of BufferRatioOnVerticalResource, "),
        (
            {"ResourceLimitMultiplier": 3},
            "ResourceLimitMultiplier: expected a number for each of cpu and memory, got 3",
        ),
        ({"ResourceLimitMultiplier": {"gpu": 3}}, "ResourceLimitMultiplier: expected cpu and memory, got 'gpu'"),
        (
            {"ResourceLimitMultiplier": {"cpu": 0}},
            "ResourceLimitMultiplier: expected a whole number from 1 to 10000, got 0",
        ),
        (
            {"HPAExternalMetricExclusionRegex": "("},
            "HPAExternalMetricExclusionRegex: expected a regular expression, got '('",
        ),
        (
            {"HPAExternalMetricExclusionRegex": 7},
            "HPAExternalMetricExclusionRegex: expected a regular expression, got 7",
        ),
        ({"PreferredMaxReplicas": 0}, "PreferredMaxReplicas: expected a whole number from 1 to 10000, got 0"),
        ({"PreferredMaxReplicas": True}, "PreferredMaxReplicas: expected a whole number from 1 to 10000, got True"),
        ({"ReplicaReductionFactor": "x"}, "ReplicaReductionFactor: expected a number from 0 to 10000, got 'x'"),
        ({"ReplicaReductionFactor": 1}, "ReplicaReductionFactor: expected less than 1, got 1.0"),
        ({"TimeZone": "Mars/Olympus"}, "TimeZone: expected a time zone such as Europe/Berlin, got 'Mars/Olympus'"),
        ({"TimeZone": 7}, "TimeZone: expected a time zone such as Europe/Berlin, got 7"),
        ({"GatheringDataPeriodType": "hourly"}, "GatheringDataPeriodType: expected daily or weekly, got 'hourly'"),
        ({"TortoiseUpdateInterval": "soon"}, "TortoiseUpdateInterval: expected seconds or a duration "),
        ({"MaximumCPURequest": "much"}, "MaximumCPURequest: expected a quantity "),
        (
            {"MaximumMemoryRequest": "1Ki"},
            "MinimumMemoryRequest: expected at most MaximumMemoryRequest (1Ki), got 50Mi",
        ),
        ({"MinimumMinReplicas": 11}, "MinimumMinReplicas: expected at most MaximumMinReplicas (10), got 11"),
        ({"MaximumTargetResourceUtilization": 101}, "MaximumTargetResourceUtilization: expected at most 100"),
        ({"MinReplicasRecommendationMultiplier": 0}, "MinReplicasRecommendationMultiplier: expected more than zero"),
        (
            {"RangeOfMinMaxReplicasRecommendationHours": 5},
            "RangeOfMinMaxReplicasRecommendationHours: expected 1, 2, 3, 4, 6, 8, 12 or 24 hours, got 5",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(document: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_configuration(document)
    assert str(refused.value).startswith(message)
