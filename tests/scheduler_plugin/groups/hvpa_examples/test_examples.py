"""The HVPA document's example manifests, as they are written there, decoded and decided: read them side by side.

The workload in all of them is the Deployment ``resource-consumer`` whose only container has that name. Both
recommenders want more, or both want less, and each test follows the curve that the document draws.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
import yaml

from deploy.local.apiserver.schema.structural import Schema
from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.hvpa.policy import decide
from scheduler_plugin.groups.core.hvpa.spec import ScalingTimes
from scheduler_plugin.groups.core.workload import (
    ContainerRecommendation,
    HorizontalRecommendation,
    Recommendations,
    ResourceList,
    Rule,
    SizedContainer,
    VerticalRecommendation,
    WithheldChange,
    Workload,
    WorkloadDecision,
)
from scheduler_plugin.groups.objects.hvpa.decoding import Hvpa, decode

NAME = "resource-consumer"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MI = 1024**2
ROOT = Path(__file__).parents[4]
EXAMPLES = ("stages_1", "stages_2", "stages_3", "intervals_1", "intervals_2", "intervals_3")


@cache
def manifest(example: str) -> str:
    return (Path(__file__).parent / f"{example}.yaml").read_text()


@cache
def hvpa(example: str) -> Hvpa:
    return decode(yaml.safe_load(manifest(example)))


def running(replicas: int, memory_mi: int = 1000, cpu: int = 1000) -> Workload:
    return Workload(replicas, replicas, (SizedContainer(NAME, ResourceList(MilliCpu(cpu), Bytes(memory_mi * MI))),))


def wanted(replicas: int, memory_mi: int = 1000, cpu: int = 1000) -> Recommendations:
    target = ResourceList(MilliCpu(cpu), Bytes(memory_mi * MI))
    return Recommendations(
        HorizontalRecommendation(replicas, 1, 10), VerticalRecommendation((ContainerRecommendation(NAME, target),))
    )


def decided(example: str, workload: Workload, recommended: Recommendations) -> WorkloadDecision:
    return decide(hvpa(example).spec, workload, recommended, ScalingTimes(), NOON)[0]


def memory_mi(decision: WorkloadDecision, workload: Workload) -> int:
    requests = decision.applied(workload).containers[0].requests
    assert requests.memory is not None
    return requests.memory.value // MI


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_manifest_is_read_as_it_is(example: str) -> None:
    found = hvpa(example)
    assert found.target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME}
    assert found.vpa == {
        "resourcePolicy": {
            "containerPolicies": [
                {"containerName": NAME, "minAllowed": {"memory": "400Mi"}, "maxAllowed": {"memory": "3000Mi"}}
            ]
        }
    }
    assert found.hpa is not None
    assert (found.hpa["minReplicas"], found.hpa["maxReplicas"]) == (1, 10)
    assert found.in_place is False


@pytest.mark.parametrize(
    ("example", "weights"),
    [
        ("stages_1", [0, 0, 0.4, 0.4, 0.4, 0.4, 0.4, 0, 0]),
        ("stages_2", [1, 0.4, 0.4, 0.4, 0, 0, 0, 0, 0]),
        ("stages_3", [0, 0, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4]),
        ("intervals_1", [0, 0, 0.6, 0.6, 0.6, 0.6, 0.6, 0, 0]),
        ("intervals_2", [1, 0.6, 0.6, 0.6, 0, 0, 0, 0, 0]),
        ("intervals_3", [0, 0, 0, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6]),
    ],
)
def test_sizes_grow_by_weight(example: str, weights: list[float]) -> None:
    """From 1000Mi, 2000Mi are recommended; the same number of replicas as there are. At 10, all of it is applied."""
    grown = [memory_mi(decided(example, running(count), wanted(count, 2000)), running(count)) for count in range(1, 11)]
    assert grown == [1000 + round(1000 * weight) for weight in [*weights, 1]]


@pytest.mark.parametrize(
    ("example", "replicas"),
    [
        # From each number of replicas to 10: 1 - weight of the way, and always at least one.
        ("stages_1", [10, 10, 8, 8, 8, 9, 9, 10, 10]),
        ("stages_2", [7, 7, 8, 8, 10, 10, 10, 10, 10]),
        ("stages_3", [10, 10, 8, 8, 8, 9, 9, 10, 10]),
        ("intervals_1", [10, 10, 6, 7, 7, 8, 9, 10, 10]),
        ("intervals_2", [5, 6, 6, 7, 10, 10, 10, 10, 10]),
        ("intervals_3", [10, 10, 10, 7, 7, 8, 9, 9, 10]),
    ],
)
def test_replicas_grow_by_the_rest_of_the_weight(example: str, replicas: list[int]) -> None:
    found = [decided(example, running(count), wanted(10)).replicas for count in range(1, 10)]
    assert found == replicas


def test_weight_zero_keeps_vertical_wish() -> None:
    decision = decided("intervals_1", running(8), wanted(9, 2000))
    assert decision == WorkloadDecision(
        replicas=9,
        withheld=(WithheldChange(f"{NAME}/memory", Bytes(2000 * MI), Bytes(1000 * MI), Rule.WEIGHT, "weight 0"),),
        explanation=("replicas: 8 to 9 (weight 1)",),
    )


def test_max_replicas_leaves_sizes_only() -> None:
    """Example 3's vertical line, here and in example 1, where the weight at 10 replicas is 0."""
    for example in ("stages_3", "intervals_3", "intervals_1"):
        assert memory_mi(decided(example, running(10, 1000), wanted(10, 9000)), running(10)) == 3000
    assert decided("intervals_1", running(10, 1000), wanted(10, 500)).containers == ()


def test_weighted_shrink_stops_at_minimum() -> None:
    decision = decided("intervals_1", running(5, 1400), wanted(4, 100))
    assert (decision.replicas, memory_mi(decision, running(5))) == (4, 800)
    decision = decided("intervals_2", running(1, 1400), wanted(1, 100))
    assert memory_mi(decision, running(1)) == 400


@pytest.mark.parametrize(
    ("since_up", "since_down", "up", "down"),
    [(119, 179, False, False), (120, 180, True, True), (119, 180, False, True)],
)
def test_delays_hold_each_direction_until_they_have_passed(
    since_up: int, since_down: int, up: bool, down: bool
) -> None:
    """Example 1: 2 minutes for up and 3 minutes for down. Equality passes."""
    memory = ScalingTimes(NOON - timedelta(seconds=since_up), NOON - timedelta(seconds=since_down))
    spec = hvpa("intervals_1").spec
    grown, after_up = decide(spec, running(2), wanted(3), memory, NOON)
    shrunk, after_down = decide(spec, running(2), wanted(1), memory, NOON)
    assert (grown.replicas, shrunk.replicas) == (3 if up else None, 1 if down else None)
    assert after_up == ScalingTimes(NOON if up else memory.last_up, memory.last_down)
    assert after_down == ScalingTimes(memory.last_up, NOON if down else memory.last_down)
    assert [kept.rule for kept in (*grown.withheld, *shrunk.withheld)] == [Rule.DELAY] * ([up, down].count(False))


@pytest.mark.parametrize(("target", "written"), [(1199, None), (1200, 1200), (801, None), (800, 800)])
def test_change_below_200m_is_skipped(target: int, written: int | None) -> None:
    """Example 1: 200m or 70 % of 1000m, whichever is less."""
    decision = decided("intervals_1", running(10, cpu=1000), wanted(10, cpu=target))
    grown = decided("intervals_2", running(1, cpu=1000), wanted(1, cpu=target))
    found = [container.requests.cpu for container in grown.containers]
    assert found == ([] if written is None else [MilliCpu(written)])
    assert [kept.rule for kept in grown.withheld] == ([Rule.MIN_CHANGE] if written is None else [])
    assert bool(decision.containers) is (written == 1200)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_definition_keeps_every_field_of_every_manifest(example: str) -> None:
    definition = yaml.safe_load((ROOT / "deploy/kubernetes/crds/hvpas.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    schema = Schema(version["schema"]["openAPIV3Schema"])
    body = yaml.safe_load(manifest(example))
    assert schema.without_unknown(body) == (body, [])
    assert schema.causes(body, None) == []
