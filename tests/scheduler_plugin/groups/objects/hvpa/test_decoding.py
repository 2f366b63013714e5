"""Hvpas as people write them: every spelling gives the same spec."""

from __future__ import annotations

from copy import deepcopy
from datetime import time
from fractions import Fraction
from typing import Any

import pytest

from protocol.units import Seconds
from scheduler_plugin.groups.core.hvpa.spec import (
    DEFAULT_OVERLAP,
    AxisRules,
    ChangeParams,
    ContainerPolicy,
    DirectionRules,
    EffectiveIntervals,
    HvpaMode,
    HvpaSpec,
    Interval,
    MaintenanceWindow,
    Mixed,
    Preference,
    ResourceChangeParams,
    ScalingInterval,
    UpdateMode,
)
from scheduler_plugin.groups.core.workload import ReplicaBounds, SizeBounds
from scheduler_plugin.groups.objects.hvpa.decoding import decode
from scheduler_plugin.groups.objects.targets import InvalidSpecError
from tests.scheduler_plugin.groups.core.hvpa.stories import sized
from tests.scheduler_plugin.groups.objects.hvpa.hvpa_objects import HPA, MILLION, TARGET, VPA, WEIGHT, hvpa, spec_of


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
        HvpaMode.EFFECTIVE_INTERVALS,
        containers=(ContainerPolicy("app", SizeBounds(max=sized(4000))),),
        desired_by_utilization=("cpu",),
        settle=Seconds(900.0),
    )


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
def test_effective_intervals_settle_longer_with_restarts(more: dict[str, Any], seconds: int) -> None:
    assert int(spec_of(**more).settle) == seconds


@pytest.mark.parametrize(
    ("more", "mode"),
    [
        ({}, HvpaMode.EFFECTIVE_INTERVALS),
        ({"weightBasedScalingIntervals": WEIGHT}, HvpaMode.WEIGHT_BASED),
        ({"firstStageVpaWeight": 0}, HvpaMode.WEIGHT_BASED),
        ({"hpaTemplate": None}, HvpaMode.VPA_BIASED),
        ({"vpaTemplate": None}, HvpaMode.HPA_BIASED),
        ({"hpaTemplate": None, "hpa": {"deploy": False, "template": {"spec": HPA}}}, HvpaMode.VPA_BIASED),
        ({"mode": "hpapreferred"}, HvpaMode.HPA_PREFERRED),
        ({"mode": "Mixed", "weightBasedScalingIntervals": WEIGHT}, HvpaMode.MIXED),
    ],
)
def test_a_mode_is_named_or_meant(more: dict[str, Any], mode: HvpaMode) -> None:
    assert spec_of(**more).mode is mode


def test_no_hpa_means_no_replica_bounds() -> None:
    found = decode(hvpa(hpaTemplate=None))
    assert (found.hpa, found.spec.replicas) == (None, ReplicaBounds(1, 10_000))
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


@pytest.mark.parametrize("weights", [(0.5, 100), (100, 0.5), (0.01, 2)])
def test_part_of_1_beside_percentage_is_refused(weights: tuple[float, float]) -> None:
    """Half of the way was meant, not half a percent of it."""
    listed = [{"vpaWeight": weight, "lastReplicaCount": at + 3} for at, weight in enumerate(weights)]
    bad = next(at for at, weight in enumerate(weights) if weight < 1)
    message = rf"weightBasedScalingIntervals\[{bad}\]\.vpaWeight: expected a percentage like the other weights"
    with pytest.raises(InvalidSpecError, match=message):
        spec_of(weightBasedScalingIntervals=listed)
    with pytest.raises(InvalidSpecError, match="firstStageVpaWeight: expected a percentage"):
        spec_of(firstStageVpaWeight=0.5, secondStageVpaWeight=100)


def test_intervals_may_overlap_and_stay_in_their_order() -> None:
    listed = [
        {"vpaWeight": 0.6, "lastReplicaCount": 5},
        {"vpaWeight": 0, "startReplicaCount": 2, "lastReplicaCount": 8},
        {"vpaWeight": 1},
    ]
    assert spec_of(weightBasedScalingIntervals=listed).intervals == (
        Interval(Fraction("0.6"), None, 5),
        Interval(Fraction(0), 2, 8),
        Interval(Fraction(1)),
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


def test_vpa_limit_gap_wins() -> None:
    spec = spec_of(
        vpaTemplate=None,
        vpa={"template": {"spec": VPA}, "limitsRequestsGapScaleParams": {"cpu": {"value": 2}}},
        limitsRequestsGapScaleParams={"cpu": {"value": 1}, "memory": {"value": "1M"}},
    )
    assert spec.limit_gap == ResourceChangeParams(ChangeParams(2000), ChangeParams(MILLION))


def test_vm_group_memory_is_per_replica() -> None:
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
        ContainerPolicy("*", SizeBounds(sized(memory=1)), controls_limits=False),
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


def test_reading_changes_nothing() -> None:
    given = hvpa(weightBasedScalingIntervals=WEIGHT)
    before = deepcopy(given)
    decode(given)
    assert given == before
