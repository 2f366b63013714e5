"""Settings of all Tortoises of a cluster, with upstream's names and defaults (S3.2-S3.6).

Upstream's ``PreferredMaxReplicas`` is ``preferred_max_replicas`` here. ``objects.tortoise.global_configuration`` reads
upstream's file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from typing import Final
from zoneinfo import ZoneInfo

from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.tortoise.slots import Period, SlotLayout
from scheduler_plugin.groups.core.workload import Resource, ResourceList, SizeBounds

SLOT_DECAY: Final = Fraction("0.95")
"""Factor of a slot's number each time that the slot recurs."""

INITIAL_TARGET: Final = 70
"""Target utilization of a new metric, in percent."""

DOWN_INTERVAL: Final = timedelta(hours=1)
"""Minimum interval between decreases of a container's request, because each may replace every pod."""

GROWTH: Final = Fraction("1.3")
"""Factor of a container's growth while there are too many replicas."""

GROWTH_INTERVAL: Final = timedelta(minutes=30)
"""How long there must be too many replicas before a container grows, or grows again."""

CLOSE: Final = Fraction("0.8")
"""Above this fraction of ``preferred_max_replicas`` no container shrinks: that would add replicas."""

UNDER_USED: Final = Fraction("0.9")
"""Below this fraction of its target utilization a container is under-used."""

FLOOR_SHARE: Final = Fraction("0.5")
"""A VM's floor as a fraction of the slot's peak (S3.7)."""

FLOOR_LEAD: Final = timedelta(minutes=5)
"""A VM's floor rises this long before its slot."""

FLOOR_LIFE: Final = timedelta(hours=2)
"""A VM's floor expires this long after its last renewal."""

NO_METRIC: Final = re.compile(r"(?!)")
"""Matches no name."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The global configuration. Percentages are integers, ratios exact.

    ``ignored`` are upstream's settings in the file that have no effect here.
    """

    range_of_min_max_replicas_recommendation_hours: int = 1
    gathering_data_period_type: Period = "weekly"
    max_replicas_recommendation_multiplier: Fraction = Fraction(2)
    min_replicas_recommendation_multiplier: Fraction = Fraction("0.5")
    replica_reduction_factor: Fraction = Fraction("0.95")
    minimum_target_resource_utilization: int = 65
    maximum_target_resource_utilization: int = 90
    minimum_min_replicas: int = 3
    maximum_min_replicas: int = 10
    preferred_max_replicas: int = 30
    maximum_max_replicas: int = 100
    maximum_cpu_request: MilliCpu = MilliCpu(10_000)
    minimum_cpu_request: MilliCpu = MilliCpu(50)
    maximum_memory_request: Bytes = Bytes(10 * 1024**3)
    minimum_memory_request: Bytes = Bytes(50 * 1024**2)
    time_zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("Asia/Tokyo"))
    tortoise_update_interval: timedelta = timedelta(seconds=15)
    hpa_target_utilization_max_increase: int = 5
    hpa_target_utilization_update_interval: timedelta = timedelta(hours=24)
    max_allowed_scaling_down_ratio: Fraction = Fraction("0.8")
    buffer_ratio_on_vertical_resource: Fraction = Fraction("0.1")
    emergency_mode_grace_period: timedelta = timedelta(minutes=5)
    resource_limit_multiplier: Mapping[Resource, int] = field(default_factory=dict)
    minimum_cpu_limit: MilliCpu = MilliCpu(0)
    hpa_external_metric_exclusion_regex: re.Pattern[str] = NO_METRIC
    ignored: tuple[str, ...] = ()

    @property
    def layout(self) -> SlotLayout:
        """The slots."""
        return SlotLayout(
            self.range_of_min_max_replicas_recommendation_hours, self.gathering_data_period_type, self.time_zone
        )

    @property
    def sizes(self) -> SizeBounds:
        """Bounds of container requests."""
        return SizeBounds(
            ResourceList(self.minimum_cpu_request, self.minimum_memory_request),
            ResourceList(self.maximum_cpu_request, self.maximum_memory_request),
        )

    @property
    def gathering(self) -> timedelta:
        """Time to gather data before a resource is scaled: a day or a week."""
        return timedelta(days=7 if self.gathering_data_period_type == "weekly" else 1)
