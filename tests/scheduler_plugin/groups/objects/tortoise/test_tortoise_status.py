"""A restart forgets nothing: what a status says is the memory that it was made of."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kubernetes.objects import Json
from protocol.units import Bytes, MilliCpu, Resources
from scheduler_plugin.groups.core.tortoise.autoscaler import (
    Autoscaler,
    ContainerTarget,
    OtherMetric,
    ResourceTarget,
    Scaling,
)
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.decide import TortoiseDecision
from scheduler_plugin.groups.core.tortoise.floor import Peaks
from scheduler_plugin.groups.core.tortoise.slots import SlotLayout
from scheduler_plugin.groups.core.tortoise.tortoise_memory import (
    Phase,
    ReplicaMemory,
    ResourcePhase,
    ResourceState,
    TortoiseMemory,
    TortoiseMode,
)
from scheduler_plugin.groups.core.workload import ResourceList, SizedContainer, WorkloadDecision
from scheduler_plugin.groups.objects.autoscalers import (
    metrics_missing_since,
    read_autoscaler,
    write_autoscaler,
)
from scheduler_plugin.groups.objects.tortoise.tortoise_status import (
    read_memory,
    read_peaks,
    read_slots,
    write_peaks,
    write_status,
)
from tests.examples import examples

USUAL = Configuration()
MONDAY = datetime(2026, 5, 4, 10, tzinfo=UTC)
TARGET = ContainerTarget("app", "cpu", 70)
PROPOSED = Autoscaler(3, 9, (TARGET, OtherMetric({"type": "External"})))
SIZED = (SizedContainer("app", ResourceList(MilliCpu(1500), Bytes(2**30))),)
DECISION = TortoiseDecision(WorkloadDecision(), PROPOSED, PROPOSED, SIZED)


def memory(hours: int = 200) -> TortoiseMemory:
    replicas = ReplicaMemory.empty(USUAL.layout)
    for hour in range(hours):
        replicas = replicas.learned(hour % 24, USUAL, MONDAY + timedelta(hours=hour))
    return TortoiseMemory(
        replicas=replicas,
        phase=Phase.PARTLY_WORKING,
        policies={("app", "cpu"): Scaling.HORIZONTAL, ("app", "memory"): Scaling.OFF},
        resources={
            ("app", "cpu"): ResourcePhase(ResourceState.WORKING, MONDAY),
            ("app", "memory"): ResourcePhase(ResourceState.OFF, MONDAY),
        },
        recommended={"app": ResourceList(MilliCpu(700), Bytes(3 * 2**20))},
        targets_at=MONDAY,
        too_many_since=MONDAY + timedelta(seconds=1),
        shrunk_at=MONDAY + timedelta(seconds=2),
    )


def through_json(status: Json) -> Json:
    found: Json = msgspec.json.decode(msgspec.json.encode(status))
    return found


def test_a_memory_comes_back_as_it_was() -> None:
    assert read_memory(through_json(write_status(memory(), DECISION)), USUAL) == memory()


def test_a_new_tortoise_has_an_empty_memory() -> None:
    assert read_memory({}, USUAL) == TortoiseMemory.empty(USUAL)


def test_a_status_is_of_a_bounded_size() -> None:
    status = write_status(memory(24 * 40), DECISION)
    assert len(msgspec.json.encode(status)) < 50_000
    again = write_status(read_memory(status, USUAL), DECISION)
    assert again == status


def test_people_read_the_recommendations_by_their_names() -> None:
    status = write_status(memory(1), DECISION)
    found = status["recommendations"]
    assert isinstance(found, dict)
    assert found["horizontal"]["maxReplicas"] == [
        {
            "from": 19,
            "to": 20,
            "weekday": "Monday",
            "timezone": "Asia/Tokyo",
            "value": 12,
            "updatedAt": "2026-05-04T10:00:00Z",
        }
    ]
    assert found["horizontal"]["targetUtilizations"] == [{"containerName": "app", "targetUtilization": {"cpu": 70}}]
    assert found["vertical"]["containerResourceRecommendation"] == [
        {"containerName": "app", "RecommendedResource": {"cpu": "1500m", "memory": "1Gi"}}
    ]
    assert status["tortoisePhase"] == "PartlyWorking"
    nothing = write_status(memory(1), replace(DECISION, proposed=None))["recommendations"]
    assert isinstance(nothing, dict)
    assert nothing["horizontal"]["targetUtilizations"] == []


def test_slots_keep_their_layout() -> None:
    status = write_status(memory(), DECISION)
    daily = Configuration(gathering_data_period_type="daily", time_zone=ZoneInfo("UTC"))
    assert read_memory(status, daily).replicas == memory().replicas


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.just("Working"), st.just("app")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(
                ["containerName", "policy", "resourcePhases", "cpu", "phase", "lastTransitionTime", "quantity", "value"]
            ),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)
FIELDS = [
    "tortoisePhase",
    "autoscalingPolicy",
    "containerResourcePhases",
    "containerRecommendationFromVPA",
    "recommendations",
    "times",
]


@settings(max_examples=examples(15, 100))
@given(st.dictionaries(st.sampled_from(FIELDS), JUNK))
def test_any_status_round_trips(status: Json) -> None:
    found = read_memory(status, USUAL)
    assert read_memory(through_json(write_status(found, DECISION)), USUAL) == found


GOOD: Json = {"from": 3, "to": 4, "timezone": "UTC", "value": 7, "updatedAt": "2026-05-04T10:00:00Z"}


@pytest.mark.parametrize(
    "bad",
    [
        {"timezone": "Mars/Olympus"},
        {"timezone": ""},
        {"timezone": "Europe/Berlin"},
        {"to": 3},
        {"weekday": "Someday"},
        {"from": 5, "to": 4},
        {"value": -1},
        {"value": True},
        {"value": 2**60},
        {"updatedAt": "yesterday"},
    ],
)
def test_unreadable_entry_is_dropped(bad: Json) -> None:
    layout = SlotLayout(1, "daily", ZoneInfo("UTC"))
    assert [known.value for _, known in read_slots([GOOD, {**GOOD, **bad}], layout)] == [7]
    alone = read_slots([{**GOOD, **bad}], layout)
    assert alone.layout.slots()


def test_unreadable_memory_parts_are_dropped() -> None:
    status: Json = {
        "autoscalingPolicy": [{"containerName": "app", "policy": {"cpu": "Sideways"}}, {"policy": {"cpu": "Off"}}],
        "containerResourcePhases": [
            {"containerName": "app", "resourcePhases": {"cpu": {"phase": "Working"}, "memory": 1}}
        ],
        "containerRecommendationFromVPA": [
            {"containerName": "app", "maxRecommendation": {"cpu": {"quantity": "much"}, "memory": 7}}
        ],
    }
    assert read_memory(status, USUAL) == TortoiseMemory.empty(USUAL)


def test_vm_peaks_round_trip() -> None:
    peaks = Peaks.empty(USUAL.layout).learned(Resources.parse("1500m", "6Gi"), USUAL.layout, MONDAY)
    status = through_json(write_peaks(peaks, TortoiseMode.AUTO))
    assert (read_peaks(status, USUAL), status["tortoisePhase"]) == (peaks, "Working")
    assert write_peaks(peaks, TortoiseMode.EMERGENCY)["tortoisePhase"] == "Emergency"


def hpa(**spec: object) -> Json:
    return {"spec": spec}


RESOURCE: Json = {"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}}
CONTAINER: Json = {
    "type": "ContainerResource",
    "containerResource": {
        "name": "cpu",
        "container": "app",
        "target": {"type": "Utilization", "averageUtilization": 70},
    },
}
EXTERNAL: Json = {"type": "External", "external": {"metric": {"name": "queue"}}}
STORAGE: Json = {"type": "ContainerResource", "containerResource": {"name": "ephemeral-storage", "container": "app"}}


def test_hpa_round_trip() -> None:
    metrics = [RESOURCE, CONTAINER, EXTERNAL, STORAGE]
    found = read_autoscaler(hpa(minReplicas=2, maxReplicas=9, metrics=metrics))
    assert found == Autoscaler(
        2, 9, (ResourceTarget("cpu", 80, RESOURCE), TARGET, OtherMetric(EXTERNAL), OtherMetric(STORAGE))
    )
    assert write_autoscaler(found) == {"minReplicas": 2, "maxReplicas": 9, "metrics": metrics}
    assert read_autoscaler(hpa(maxReplicas=4)) == Autoscaler(1, 4)


@pytest.mark.parametrize(
    ("condition", "since"),
    [
        ({"status": "False", "reason": "FailedGetResourceMetric"}, MONDAY),
        ({"status": "False", "reason": "FailedGetContainerResourceMetric"}, MONDAY),
        ({"status": "False", "reason": "FailedGetResourceMetric", "lastTransitionTime": "soon"}, None),
        ({"status": "False", "reason": "ScalingDisabled"}, None),
        ({"status": "True", "reason": "ValidMetricFound"}, None),
    ],
)
def test_an_hpa_says_since_when_it_lacks_metrics(condition: Json, since: datetime | None) -> None:
    said = {"type": "ScalingActive", "lastTransitionTime": "2026-05-04T10:00:00Z", **condition}
    assert metrics_missing_since({"status": {"conditions": [said]}}) == since
    assert metrics_missing_since({}) is None
