"""Uses that an HPA reports as amounts: mean use over target, of whole pods or of one container."""

from __future__ import annotations

from fractions import Fraction

import pytest

from protocol.kubernetes.objects import Json
from scheduler_plugin.groups.core.workload import MeasuredUse
from scheduler_plugin.groups.objects.autoscalers import horizontal_of


def metric(source: str, name: str, part: str, value: Json, **about: str) -> Json:
    return {source: {"name": name, part: value, **about}}


def uses(target: Json, current: Json) -> tuple[MeasuredUse, ...]:
    found = horizontal_of(
        {
            "spec": {"maxReplicas": 9, "metrics": [target]},
            "status": {"desiredReplicas": 3, "currentMetrics": [current]},
        }
    )
    assert found is not None
    return found.uses


def cpu(**current: object) -> Json:
    return metric("resource", "cpu", "current", dict(current))


OF_PODS = metric("resource", "cpu", "target", {"averageUtilization": 80})


def test_use_over_target_is_exact() -> None:
    assert uses(OF_PODS, cpu(averageUtilization=133, averageValue="667m")) == (
        MeasuredUse("cpu", Fraction(66_700, 80)),
    )
    memory = metric("resource", "memory", "target", {"averageUtilization": 50})
    current = metric("resource", "memory", "current", {"averageUtilization": 50, "averageValue": "1Ki"})
    assert uses(memory, current) == (MeasuredUse("memory", Fraction(2048)),)


def test_one_container_is_measured_alone() -> None:
    target = metric("containerResource", "cpu", "target", {"averageUtilization": 50}, container="app")
    value = {"averageUtilization": 100, "averageValue": "1"}
    current = metric("containerResource", "cpu", "current", value, container="app")
    assert uses(target, current) == (MeasuredUse("cpu", Fraction(2000), "app"),)
    other = metric("containerResource", "cpu", "current", value, container="log")
    assert uses(target, other) == ()


@pytest.mark.parametrize(
    "current",
    [
        cpu(averageUtilization=133),
        cpu(averageValue="667m"),
        cpu(averageUtilization=133, averageValue="much"),
        metric("resource", "gpu", "current", {"averageUtilization": 133, "averageValue": "1"}),
        {"external": {}},
    ],
)
def test_what_is_not_said_whole_is_no_use(current: Json) -> None:
    assert uses(OF_PODS, current) == ()
