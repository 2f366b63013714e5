"""Hvpas as people write them: every spelling gives the same spec, and a bad field is named in a sentence."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, time
from fractions import Fraction
from typing import Any

import pytest

from protocol.units import Seconds
from scheduler_plugin.groups.core.hvpa import (
    AxisRules,
    ChangeParams,
    ContainerPolicy,
    DirectionRules,
    EffectiveIntervals,
    HvpaSpec,
    Interval,
    MaintenanceWindow,
    Memory,
    Mixed,
    Mode,
    Preference,
    ResourceChangeParams,
    ScalingInterval,
    UpdateMode,
)
from scheduler_plugin.groups.core.hvpa.effective import DEFAULT_OVERLAP
from scheduler_plugin.groups.core.hvpa.spec import PastReplicas, PastTarget, Shrinking
from scheduler_plugin.groups.core.recommender.horizontal import MetricTarget
from scheduler_plugin.groups.core.workload import Bounds, ReplicaBounds
from scheduler_plugin.groups.objects.hvpa import HvpaError, decode, memory_json, memory_of
from tests.scheduler_plugin.groups.core.hvpa.stories import sized

TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
HPA = {"minReplicas": 2, "maxReplicas": 8}
VPA = {"resourcePolicy": {"containerPolicies": [{"containerName": "app", "maxAllowed": {"cpu": 4}}]}}
WEIGHT = [{"vpaWeight": 0.5}]
MILLION = 1_000_000


def hvpa(**spec: Any) -> dict[str, Any]:
    """An Hvpa with a target, an HPA and a VPA; None leaves a field out."""
    whole = {"targetRef": TARGET, "hpaTemplate": HPA, "vpaTemplate": VPA, **spec}
    return {"spec": {key: value for key, value in whole.items() if value is not None}}


def spec_of(**spec: Any) -> HvpaSpec:
    return decode(hvpa(**spec)).spec


def problem(**spec: Any) -> str:
    with pytest.raises(HvpaError) as raised:
        decode(hvpa(**spec))
    return str(raised.value)


@pytest.mark.parametrize(
    "spelling",
    [
        {"hpaTemplate": HPA, "vpaTemplate": VPA},
        {"hpaSpec": {**HPA, "scaleTargetRef": TARGET}, "vpaSpec": VPA, "targetRef": None},
        {"HpaTemplate": {"MinReplicas": 2, "maxreplicas": 8}, "VPATEMPLATE": VPA},
        {"hpa": {"deploy": True, "template": {"spec": HPA}}, "vpa": {"template": {"spec": VPA}}},
    ],
)
def test_every_spelling_of_the_autoscalers_is_the_same(spelling: dict[str, Any]) -> None:
    found = decode(hvpa(**{"hpaTemplate": None, "vpaTemplate": None, **spelling}))
    assert (found.target, found.vpa) == (TARGET, VPA)
    assert found.hpa == {
        **HPA,
        "metrics": [
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
            }
        ],
    }
    assert found.spec == HvpaSpec(
        ReplicaBounds(2, 8),
        Mode.EFFECTIVE_INTERVALS,
        containers=(ContainerPolicy("app", Bounds(most=sized(4000))),),
        desired_by_utilization=("cpu",),
        settle=Seconds(900.0),
    )
    assert found.metrics == (MetricTarget("cpu", utilization=80),)


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ({}, 900),
        ({"updateMode": "inPlace"}, 300),
        ({"targetRef": {**TARGET, "kind": "VirtualMachineGroup"}}, 300),
        ({"targetRef": {**TARGET, "kind": "VirtualMachine"}}, 300),
        ({"scaleDownDelay": "90s"}, 90),
        ({"scaleDownDelay": "0s"}, 0),
        ({"mode": "HpaPreferred"}, 0),
        ({"weightBasedScalingIntervals": WEIGHT}, 0),
    ],
)
def test_effective_intervals_let_less_settle_longer_where_resizing_restarts(more: dict[str, Any], seconds: int) -> None:
    assert int(spec_of(**more).settle) == seconds


@pytest.mark.parametrize(
    ("more", "mode"),
    [
        ({}, Mode.EFFECTIVE_INTERVALS),
        ({"weightBasedScalingIntervals": WEIGHT}, Mode.WEIGHT_BASED),
        ({"firstStageVpaWeight": 0}, Mode.WEIGHT_BASED),
        ({"hpaTemplate": None}, Mode.VPA_BIASED),
        ({"vpaTemplate": None}, Mode.HPA_BIASED),
        ({"hpaTemplate": None, "hpa": {"deploy": False, "template": {"spec": HPA}}}, Mode.VPA_BIASED),
        ({"mode": "hpapreferred"}, Mode.HPA_PREFERRED),
        ({"mode": "Mixed", "weightBasedScalingIntervals": WEIGHT}, Mode.MIXED),
    ],
)
def test_a_mode_is_named_or_meant(more: dict[str, Any], mode: Mode) -> None:
    assert spec_of(**more).mode is mode


def test_without_an_hpa_replicas_are_not_bounded_and_none_is_made() -> None:
    found = decode(hvpa(hpaTemplate=None))
    assert (found.hpa, found.metrics, found.spec.replicas) == (None, (), ReplicaBounds(1, 10_000))
    assert decode(hvpa(vpaTemplate=None)).vpa is None


def test_metrics_of_every_age_come_out_as_todays() -> None:
    metrics = [
        {"type": "Resource", "resource": {"name": "cpu", "targetAverageUtilization": 70}},
        {"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "1Gi"}},
        {
            "type": "ContainerResource",
            "containerResource": {"name": "cpu", "container": "app", "target": {"averageValue": "500m"}},
        },
        {"type": "External", "external": {"metric": {"name": "queue"}}},
    ]
    found = decode(hvpa(hpaTemplate={**HPA, "metrics": metrics, "behavior": {"scaleDown": {}}}, mode="Mixed"))
    assert found.hpa is not None
    assert found.hpa["behavior"] == {"scaleDown": {}}
    assert found.hpa["metrics"] == [
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}},
        {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
        *metrics[2:],
    ]
    assert found.metrics == (
        MetricTarget("cpu", utilization=70),
        MetricTarget("memory", average_value=1024**3),
        MetricTarget("cpu", average_value=500),
    )


def test_three_stages_in_either_case() -> None:
    stages = {"StageTwoStartReplicaCount": 3, "stageTwoStopReplicaCount": 5, "SecondStageVpaWeight": 0.4}
    assert spec_of(**stages).intervals == (
        Interval(Fraction(0), 2, 2),
        Interval(Fraction(2, 5), 3, 5),
        Interval(Fraction(0), 6, 8),
    )


def test_weights_above_1_are_percentages() -> None:
    listed = [{"vpaWeight": 1, "lastReplicaCount": 3}, {"vpaWeight": 60, "startReplicaCount": 4}]
    assert spec_of(weightBasedScalingIntervals=listed).intervals == (
        Interval(Fraction(1, 100), None, 3),
        Interval(Fraction(3, 5), 4, None),
    )


def test_the_strongest_rule_of_each_direction_counts() -> None:
    minutes = DirectionRules(delay=120.0)  # type: ignore[arg-type]  # Seconds are floats
    spec = spec_of(
        hpaTemplate=None,
        vpaTemplate=None,
        scaleUpDelay="2m",
        scaleDownDelay="1m",
        minCpuChange={"value": "100m"},
        minMemChange={"percentage": 50},
        scaleDownStabilization={"duration": "4m", "minMemChange": {"value": "1M"}},
        scaleDown={"minChange": {"cpu": {"value": "300m", "percentage": 20}}},
        maintenanceTimeWindow={"begin": "220000+0100", "end": "230000+0100"},
        hpa={"template": {"spec": HPA}},
        vpa={
            "template": {"spec": VPA},
            "scaleUp": {"updatePolicy": {"updateMode": "off"}},
            "scaleDown": {"updatePolicy": {"updateMode": "MaintenanceWindow"}, "stabilizationDuration": "5m"},
        },
    )
    up = ResourceChangeParams(ChangeParams(100), ChangeParams(percentage=Fraction(50)))
    down = ResourceChangeParams(ChangeParams(300, Fraction(20)), ChangeParams(MILLION))
    assert spec.horizontal == AxisRules(
        DirectionRules(UpdateMode.AUTO, minutes.delay, up),
        DirectionRules(UpdateMode.AUTO, 240.0, down),  # type: ignore[arg-type]  # Seconds are floats
    )
    assert spec.vertical == AxisRules(
        DirectionRules(UpdateMode.OFF, minutes.delay, up),
        DirectionRules(UpdateMode.MAINTENANCE_WINDOW, 300.0, down),  # type: ignore[arg-type]  # Seconds are floats
    )
    assert spec.window == MaintenanceWindow(time(21), time(22))


def test_what_each_mode_needs_is_read() -> None:
    spec = spec_of(
        mixed={"replicasThreshold": 3, "requestsThreshold": {"cpu": "500m"}, "preference": "VPA"},
        scalingIntervals=[{"maxReplicas": 2, "maxResources": {"cpu": 1, "memory": "1M"}}, {}],
        scalingIntervalsOverlap={"cpu": {"percentage": 30}},
        baseResourcesPerReplica={"memory": {"value": "200M"}},
        limitsRequestsGapScaleParams={"cpu": {"value": 1}, "memory": {"percentage": 80}},
    )
    assert spec.mixed == Mixed(3, sized(500, 200), Preference.VPA)
    assert spec.effective == EffectiveIntervals(
        (ScalingInterval(2, sized(1000, 1)), ScalingInterval()),
        ResourceChangeParams(memory=ChangeParams(200 * MILLION)),
        ResourceChangeParams(ChangeParams(percentage=Fraction(30)), DEFAULT_OVERLAP.memory),
    )
    assert spec.limit_gap == ResourceChangeParams(ChangeParams(1000), ChangeParams(percentage=Fraction(80)))


def test_a_limit_gap_of_the_vpa_goes_before_that_of_the_object() -> None:
    spec = spec_of(
        vpaTemplate=None,
        vpa={"template": {"spec": VPA}, "limitsRequestsGapScaleParams": {"cpu": {"value": 2}}},
        limitsRequestsGapScaleParams={"cpu": {"value": 1}, "memory": {"value": "1M"}},
    )
    assert spec.limit_gap == ResourceChangeParams(ChangeParams(2000), ChangeParams(MILLION))


def test_a_group_of_vms_has_its_whole_memory_in_each_replica() -> None:
    group = {"apiVersion": "autoscaling.neon.tech/v1alpha1", "kind": "VirtualMachineGroup", "name": "db"}
    whole = ResourceChangeParams(memory=ChangeParams(percentage=Fraction(100)))
    assert spec_of(targetRef=group).effective.base == whole
    assert spec_of().effective.base == ResourceChangeParams()


def test_container_policies_say_what_may_be_sized() -> None:
    policies = [
        {"MinAllowed": {"memory": "1M", "example.com/gpu": 1}, "ControlledValues": "RequestsOnly"},
        {"containerName": "app", "controlledResources": ["memory"], "mode": "Off"},
    ]
    found = decode(hvpa(vpaTemplate={"resourcePolicy": {"containerPolicies": policies}}))
    assert found.spec.containers == (
        ContainerPolicy("*", Bounds(sized(memory=1)), controls_limits=False),
        ContainerPolicy("app", resources=("memory",), is_off=True),
    )
    assert found.vpa == {
        "resourcePolicy": {
            "containerPolicies": [
                {"minAllowed": {"memory": "1M", "example.com/gpu": 1}, "controlledValues": "RequestsOnly"},
                policies[1],
            ]
        }
    }
    assert decode(hvpa(vpaTemplate={})).vpa == {}


@pytest.mark.parametrize(
    ("mode", "in_place", "horizontal"),
    [("inPlace", True, UpdateMode.AUTO), ("Template", False, UpdateMode.AUTO), ("Off", False, UpdateMode.OFF)],
)
def test_update_mode_says_how_sizes_reach_pods(mode: str, in_place: bool, horizontal: UpdateMode) -> None:
    found = decode(hvpa(updateMode=mode))
    assert (found.in_place, found.spec.horizontal.up.mode) == (in_place, horizontal)


BOTH = [{"resource": {"name": "cpu", "target": {"averageUtilization": 50}}}, {"type": "External"}]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"targetRef": None}, "spec.targetRef.kind: expected the kind of what is scaled, got nothing"),
        ({"targetRef": 7}, "spec.targetRef: expected an object, got 7"),
        (
            {"targetRef": {"kind": "Deployment"}},
            "spec.targetRef.name: expected the name of what is scaled, got nothing",
        ),
        ({"targetRef": {"kind": 1, "name": "web"}}, "spec.targetRef.kind: expected a text, got 1"),
        (
            {"hpaTemplate": {"minReplicas": 3, "maxReplicas": 2}},
            "spec.hpaTemplate.maxReplicas: expected a whole number from minReplicas (3) on, got 2",
        ),
        (
            {"hpaTemplate": {}},
            "spec.hpaTemplate.maxReplicas: expected a whole number from minReplicas (1) on, got nothing",
        ),
        (
            {"hpaTemplate": {"minReplicas": 0, "maxReplicas": 2}},
            "spec.hpaTemplate.minReplicas: expected a whole number from 1 to 10000, got 0",
        ),
        ({"hpaSpec": HPA}, "spec.hpaSpec: expected nothing beside hpaTemplate"),
        (
            {"HPATemplate": {"maxReplicas": 1}},
            "spec.hpaTemplate: expected one spelling, got HPATemplate and hpaTemplate",
        ),
        ({"hpa": {"deploy": "no"}}, "spec.hpa.deploy: expected true or false, got 'no'"),
        (
            {"mode": "Both"},
            "spec.mode: expected one of HpaPreferred, HpaBiased, VpaBiased, Mixed, WeightBased, EffectiveIntervals, "
            "got 'Both'",
        ),
        (
            {"mode": "HpaPreferred", "hpaTemplate": None},
            "spec.hpaTemplate: expected an object with maxReplicas, which mode HpaPreferred needs, got nothing",
        ),
        (
            {"hpaTemplate": {**HPA, "metrics": BOTH}},
            "spec.hpaTemplate.metrics: expected utilization or other targets in mode EffectiveIntervals, got both",
        ),
        ({"hpaTemplate": {**HPA, "metrics": [3]}}, "spec.hpaTemplate.metrics: expected a list of objects, got [3]"),
        (
            {"scaleUpDelay": "soon"},
            'spec.scaleUpDelay: expected seconds or a duration such as "90s", "5m" or "1h30m", got \'soon\'',
        ),
        (
            {"minCpuChange": {"value": "much"}},
            'spec.minCpuChange.value: expected a quantity such as 2, "250m" or "1Gi", got \'much\'',
        ),
        (
            {"minMemChange": {"percentage": -1}},
            "spec.minMemChange.percentage: expected a number from 0 to 10000, got -1",
        ),
        (
            {"minMemChange": {"percentage": "most"}},
            "spec.minMemChange.percentage: expected a number from 0 to 10000, got 'most'",
        ),
        (
            {"weightBasedScalingIntervals": [{"vpaWeight": 101}]},
            "spec.weightBasedScalingIntervals[0].vpaWeight: expected a number from 0 to 100, got 101",
        ),
        (
            {"weightBasedScalingIntervals": [{"startReplicaCount": 7, "lastReplicaCount": 3}]},
            "spec.weightBasedScalingIntervals[0].lastReplicaCount: expected at least startReplicaCount (7), got 3",
        ),
        (
            {"weightBasedScalingIntervals": [{"lastReplicaCount": 5}, {"startReplicaCount": 4}]},
            "spec.weightBasedScalingIntervals[1]: expected to share at most one end with "
            "spec.weightBasedScalingIntervals[0], got 4 to 5 in both",
        ),
        (
            {"weightBasedScalingIntervals": WEIGHT, "firstStageVpaWeight": 1},
            "spec.weightBasedScalingIntervals: expected nothing beside stages",
        ),
        (
            {"stageTwoStartReplicaCount": 5, "stageTwoStopReplicaCount": 3},
            "spec.stageTwoStopReplicaCount: expected at least stageTwoStartReplicaCount (5), got 3",
        ),
        (
            {"scaleUp": {"updatePolicy": {"updateMode": "MaintenanceWindow"}}},
            "spec.maintenanceTimeWindow: expected begin and end, which updateMode MaintenanceWindow needs, got nothing",
        ),
        (
            {"maintenanceTimeWindow": {"begin": "220000+0100", "end": "late"}},
            "spec.maintenanceTimeWindow.end: expected a time of day with a zone such as \"220000+0100\", got 'late'",
        ),
        (
            {
                "vpaTemplate": {
                    "resourcePolicy": {"containerPolicies": [{"minAllowed": {"cpu": 2}, "maxAllowed": {"cpu": 1}}]}
                }
            },
            "spec.vpaTemplate.resourcePolicy.containerPolicies[0].maxAllowed: expected at least minAllowed.cpu (2), "
            "got {'cpu': 1}",
        ),
        (
            {"vpaTemplate": {"resourcePolicy": {"containerPolicies": [{"controlledResources": "cpu"}]}}},
            "spec.vpaTemplate.resourcePolicy.containerPolicies[0].controlledResources: expected a list, got 'cpu'",
        ),
        (
            {"targetRef": None, "scaleDownDelay": -1},
            "spec.targetRef.kind: expected the kind of what is scaled, got nothing; "
            "spec.scaleDownDelay: expected a duration of zero to ten years, got -1",
        ),
    ],
)
def test_a_bad_field_is_named_in_a_sentence(spec: dict[str, Any], sentence: str) -> None:
    assert problem(**spec) == sentence


@pytest.mark.parametrize("found", [{}, {"spec": None}, {"spec": "all"}])
def test_an_object_without_a_spec_is_one_more_bad_field(found: dict[str, Any]) -> None:
    with pytest.raises(HvpaError, match=r"spec\.targetRef\.kind: expected"):
        decode(found)


def test_reading_changes_nothing() -> None:
    given = hvpa(weightBasedScalingIntervals=WEIGHT)
    before = deepcopy(given)
    decode(given)
    assert given == before


def test_memory_survives_a_restart() -> None:
    at = datetime(2026, 1, 1, 12, 30, 15, 250_000, tzinfo=UTC)
    memory = Memory(at, None, (PastTarget("app", "cpu", 500, 2),), (PastReplicas(at, 3), PastReplicas(at, 2)))
    said = memory_json(memory)
    assert said == {
        "lastScaleUpTime": "2026-01-01T12:30:15.250000Z",
        "lastScaleDownTime": None,
        "pastTargets": [{"container": "app", "resource": "cpu", "target": 500, "replicas": 2}],
        "pastReplicas": [
            {"since": "2026-01-01T12:30:15.250000Z", "replicas": 3},
            {"since": "2026-01-01T12:30:15.250000Z", "replicas": 2},
        ],
    }
    assert memory_of(said) == memory
    waits = replace(memory, shrinking=(Shrinking("app/cpu", at, 700), Shrinking("replicas", at, 3)))
    assert memory_of(memory_json(waits)) == waits
    assert memory_of(memory_json(Memory())) == Memory()


@pytest.mark.parametrize(
    "status",
    [
        {"lastScaleUpTime": "yesterday"},
        {"pastTargets": [{"resource": "gpu", "replicas": 1}, {"resource": "cpu", "replicas": 0}]},
        {"shrinking": [{"subject": "app/cpu", "highest": 3}, {"since": "2026-01-01T12:30:15Z", "highest": -1}]},
        {"pastReplicas": [{"replicas": 2}, {"since": "2026-01-01T12:30:15Z"}]},
    ],
)
def test_what_is_no_memory_was_never_remembered(status: dict[str, Any]) -> None:
    assert memory_of(status) == Memory()
