"""Hvpas as people should not write them: a bad field is named in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_plugin.groups.objects.hvpa.decoding import decode
from scheduler_plugin.groups.objects.targets import InvalidSpecError
from tests.scheduler_plugin.groups.objects.hvpa.hvpa_objects import HPA, WEIGHT, hvpa


def problem(**spec: Any) -> str:
    with pytest.raises(InvalidSpecError) as raised:
        decode(hvpa(**spec))
    return str(raised.value)


BOTH = [{"resource": {"name": "cpu", "target": {"averageUtilization": 50}}}, {"type": "External"}]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"targetRef": None}, "spec.targetRef.kind: expected the kind of the target, got nothing"),
        ({"targetRef": 7}, "spec.targetRef: expected an object, got 7"),
        (
            {"targetRef": {"kind": "Deployment"}},
            "spec.targetRef.name: expected the name of the target, got nothing",
        ),
        ({"targetRef": {"kind": 1, "name": "web"}}, "spec.targetRef.kind: expected a string, got 1"),
        (
            {"hpaTemplate": {"minReplicas": 3, "maxReplicas": 2}},
            "spec.hpaTemplate.maxReplicas: expected a whole number, at least minReplicas (3), got 2",
        ),
        (
            {"hpaTemplate": {}},
            "spec.hpaTemplate.maxReplicas: expected a whole number, at least minReplicas (1), got nothing",
        ),
        (
            {"hpaTemplate": {"minReplicas": 0, "maxReplicas": 2}},
            "spec.hpaTemplate.minReplicas: expected a whole number from 1 to 10000, got 0",
        ),
        ({"hpaSpec": HPA}, "spec.hpaSpec: cannot be combined with hpaTemplate"),
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
            {"weightBasedScalingIntervals": WEIGHT, "firstStageVpaWeight": 1},
            "spec.weightBasedScalingIntervals: cannot be combined with stages",
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
            "spec.targetRef.kind: expected the kind of the target, got nothing; "
            "spec.scaleDownDelay: expected a duration of zero to ten years, got -1",
        ),
    ],
)
def test_a_bad_field_is_named_in_a_sentence(spec: dict[str, Any], sentence: str) -> None:
    assert problem(**spec) == sentence


@pytest.mark.parametrize("found", [{}, {"spec": None}, {"spec": "all"}])
def test_missing_spec_is_bad_field(found: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.targetRef\.kind: expected"):
        decode(found)
