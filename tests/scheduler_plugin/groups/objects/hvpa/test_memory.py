"""An Hvpa's memory is stored in its status, and restored after a restart."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from protocol.units import MilliCpu
from scheduler_plugin.groups.controllers.policies import memory_json, memory_of
from scheduler_plugin.groups.core.hvpa.spec import (
    MeasuredCount,
    PastPods,
    PastReplicas,
    PastTarget,
    PodsMemory,
    PossibleSize,
    ScalingTimes,
    Shrinking,
)
from scheduler_plugin.groups.core.workload import ResourceList, SizedContainer


def test_memory_survives_a_restart() -> None:
    at = datetime(2026, 1, 1, 12, 30, 15, 250_000, tzinfo=UTC)
    memory = ScalingTimes(at, None, (PastTarget("app", "cpu", 500, 2),), (PastReplicas(at, 3), PastReplicas(at, 2)))
    said = memory_json(memory)
    assert said == {
        "lastScaleUpTime": "2026-01-01T12:30:15.250000Z",
        "pastTargets": [{"container": "app", "resource": "cpu", "target": 500, "replicas": 2}],
        "pastReplicas": [
            {"since": "2026-01-01T12:30:15.250000Z", "replicas": 3},
            {"since": "2026-01-01T12:30:15.250000Z", "replicas": 2},
        ],
    }
    assert memory_of(said) == memory
    waits = replace(memory, shrinking=(Shrinking("app/cpu", at, 700), Shrinking("replicas", at, 3)))
    assert memory_of(memory_json(waits)) == waits
    pods = PodsMemory(
        (PastPods(at, 2, (SizedContainer("app", ResourceList(MilliCpu(500))),)), PastPods(at, 0)),
        at,
        (PossibleSize("app", "cpu", 500, at),),
        (MeasuredCount(at, 2, "cpu", 450),),
        45,
    )
    assert memory_of(memory_json(replace(memory, pods=pods))) == replace(memory, pods=pods)
    assert memory_of(memory_json(ScalingTimes())) == ScalingTimes()


@pytest.mark.parametrize(
    "status",
    [
        {"lastScaleUpTime": "yesterday"},
        {"pastTargets": [{"resource": "gpu", "replicas": 1}, {"resource": "cpu", "replicas": 0}]},
        {"shrinking": [{"subject": "app/cpu", "highest": 3}, {"since": "2026-01-01T12:30:15Z", "highest": -1}]},
        {"pastReplicas": [{"replicas": 2}, {"since": "2026-01-01T12:30:15Z"}]},
        {"pods": {"past": [{"ready": 2}], "differSince": "yesterday", "possible": [{"resource": "cpu", "most": 5}]}},
        {"pods": {"metricsLagSeconds": -1}},
        {"pods": {"metricsLagSeconds": 1.5}},
        {"pods": {"counts": [{"until": "2026-01-01T12:30:15Z", "ready": 0, "resource": "cpu", "use": 1}]}},
        {
            "pods": {
                "past": [{"since": "2026-01-01T12:30:15Z", "sizes": [{"resources": {"requests": {"cpu": "much"}}}]}]
            }
        },
        {"pods": {"possible": [{"resource": "gpu", "most": 5, "at": "2026-01-01T12:30:15Z"}]}},
    ],
)
def test_what_is_no_memory_was_never_remembered(status: dict[str, Any]) -> None:
    assert memory_of(status) == ScalingTimes()
