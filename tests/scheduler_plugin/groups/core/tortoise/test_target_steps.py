"""An HPA's target changes once an update interval, in both directions (S3.3)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from scheduler_plugin.groups.core.tortoise.autoscaler import Autoscaler, ContainerTarget, Place, Scaling
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.horizontal import next_targets
from scheduler_plugin.groups.core.tortoise.tortoise_memory import TortoiseMemory

NOON = datetime(2026, 5, 6, 12, tzinfo=UTC)


def hpa(target: int) -> Autoscaler:
    return Autoscaler(3, 12, (ContainerTarget("app", "cpu", target),))


@pytest.mark.parametrize(
    ("hours", "wanted", "target"),
    [(None, 90, 75), (None, 65, 65), (1, 90, 70), (1, 65, 70), (23.99, 65, 70), (24, 65, 65), (24, 90, 75)],
)
def test_target_stays_for_update_interval(hours: float | None, wanted: int, target: int) -> None:
    """A lower one too: computed again from the same recommendation, it would end at the least within a minute."""
    configuration = Configuration()
    last = None if hours is None else NOON - timedelta(hours=hours)
    policies: dict[Place, Scaling] = {("app", "cpu"): Scaling.HORIZONTAL}
    memory = replace(TortoiseMemory.empty(configuration), policies=policies, targets_at=last)
    found, after = next_targets(hpa(70), hpa(wanted), configuration, memory, NOON)
    assert found == hpa(target)
    assert after.targets_at == (memory.targets_at if target == 70 else NOON)
