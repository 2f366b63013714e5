"""An HPA's utilisation over its target: known to the point where the HPA says both, unknown otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_plugin.groups.core.workload import HorizontalRecommendation
from scheduler_plugin.groups.objects.autoscalers import horizontal_of


def hpa(target: dict[str, Any], current: dict[str, Any], name: str = "cpu") -> dict[str, Any]:
    return {
        "spec": {"maxReplicas": 9, "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]},
        "status": {"desiredReplicas": 3, "currentMetrics": [{"resource": {"name": name, "current": current}}]},
    }


@pytest.mark.parametrize(
    ("found", "ratios", "cuts"),
    [
        (hpa({"averageUtilization": 50}, {"averageUtilization": 80}), (("cpu", 1.6),), (("cpu", 0.02),)),
        (hpa({"averageUtilization": 50}, {"averageUtilization": 0}), (("cpu", 0.0),), (("cpu", 0.02),)),
        (hpa({"averageUtilization": 50}, {"averageValue": "80m"}), (), ()),
        (hpa({"averageValue": "1"}, {"averageUtilization": 80}), (), ()),
        (hpa({"averageUtilization": 50}, {"averageUtilization": 80}, "memory"), (), ()),
        ({"spec": {"maxReplicas": 9}, "status": {"desiredReplicas": 3}}, (), ()),
    ],
)
def test_a_ratio_needs_a_use_and_a_target(
    found: dict[str, Any], ratios: tuple[tuple[Any, float], ...], cuts: tuple[tuple[Any, float], ...]
) -> None:
    """A percentage is cut to a whole number: 80 of 50 may be nearly 81."""
    assert horizontal_of(found) == HorizontalRecommendation(3, 1, 9, ratios=ratios, cuts=cuts)
