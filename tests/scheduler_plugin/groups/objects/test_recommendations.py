"""Recommendations of an HPA and a VPA in the API's form, and the specs of ours."""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS
from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.workload import (
    ContainerRecommendation,
    HorizontalRecommendation,
    ResourceList,
    VerticalRecommendation,
)
from scheduler_plugin.groups.objects.autoscalers import (
    horizontal_of,
    hpa_spec,
    inactive_reason,
    sizing_mode,
    target_of,
    unusable_reason,
    vertical_of,
    vpa_spec,
)
from scheduler_plugin.groups.objects.targets import TargetRef


def hpa(desired: object = 4, **conditions: tuple[str, str]) -> Json:
    listed = [
        {"type": kind, "status": status, "reason": reason, "message": "so it is"}
        for kind, (status, reason) in conditions.items()
    ]
    status: Json = {"desiredReplicas": desired, "conditions": listed}
    return {"spec": {"maxReplicas": 5}, "status": status}


def test_hpa_recommendation_and_limit_are_read() -> None:
    assert horizontal_of(hpa()) == HorizontalRecommendation(4, 1, 5)
    limited = hpa(5, ScalingActive=("True", "ValidMetricFound"), ScalingLimited=("True", "TooManyReplicas"))
    assert horizontal_of(limited) == HorizontalRecommendation(5, 1, 5, limited=True)
    least = {**hpa(), "spec": {"minReplicas": 2, "maxReplicas": 5}}
    assert horizontal_of(least) == HorizontalRecommendation(4, 2, 5)


def test_blind_or_new_hpa_recommends_nothing() -> None:
    blind = hpa(4, ScalingActive=("False", "FailedGetResourceMetric"))
    assert (horizontal_of(blind), inactive_reason(blind)) == (None, "FailedGetResourceMetric: so it is")
    assert (horizontal_of({"spec": {"maxReplicas": 5}}), inactive_reason(hpa())) == (None, "")
    assert horizontal_of({**hpa(), "spec": {}}) is None
    assert inactive_reason(hpa(4, AbleToScale=("True", "ReadyForNewScale"))) == ""


def test_an_hpa_of_ours_scales_the_group_itself() -> None:
    group: Json = {"apiVersion": "autoscaling.k8s.io/v1alpha1", "kind": "Hvpa", "metadata": {"name": "web"}}
    spec = hpa_spec({"maxReplicas": 3}, group)
    reference = {"apiVersion": "autoscaling.k8s.io/v1alpha1", "kind": "Hvpa", "name": "web"}
    assert spec == {"minReplicas": 1, "maxReplicas": 3, "scaleTargetRef": reference}
    assert target_of({"spec": spec}, HORIZONTAL_AUTOSCALERS) == TargetRef("autoscaling.k8s.io", "Hvpa", "web")


def vpa(target: Json, **conditions: str) -> Json:
    listed = [{"type": kind, "status": status} for kind, status in conditions.items()]
    row: Json = {"containerName": "app", "target": target, "upperBound": {"memory": "2Gi"}}
    return {"status": {"conditions": listed, "recommendation": {"containerRecommendations": [row]}}}


def test_a_vpa_that_cannot_be_believed_says_why() -> None:
    unsupported = {"type": "ConfigUnsupported", "status": "True", "message": "Cannot read targetRef"}
    assert unusable_reason({"status": {"conditions": [unsupported]}}) == "ConfigUnsupported: Cannot read targetRef"
    assert unusable_reason(vpa({"cpu": "250m"}, RecommendationProvided="True", LowConfidence="False")) == ""


def test_vpa_recommendation_is_read() -> None:
    row = ContainerRecommendation("app", ResourceList(MilliCpu(250)), upper=ResourceList(memory=Bytes(2 * 1024**3)))
    assert vertical_of(vpa({"cpu": "250m"}, RecommendationProvided="True")) == VerticalRecommendation((row,))


@pytest.mark.parametrize("zero", ["0", "0m", 0])
def test_target_of_zero_recommends_nothing(zero: object) -> None:
    row = ContainerRecommendation("app", ResourceList(MilliCpu(250)), upper=ResourceList(memory=Bytes(2 * 1024**3)))
    assert vertical_of(vpa({"cpu": "250m", "memory": zero})) == VerticalRecommendation((row,))


def test_doubtful_vpa_recommends_nothing() -> None:
    assert vertical_of({}) is None
    assert vertical_of(vpa({"cpu": "1"}, LowConfidence="True")) is None
    with pytest.raises(ValueError, match=r"containerRecommendations\[0\].target.cpu"):
        vertical_of(vpa({"cpu": "a lot"}))


def test_a_vpa_of_ours_changes_nothing() -> None:
    spec = vpa_spec({"updatePolicy": {"minReplicas": 2, "updateMode": "Auto"}}, {"kind": "Deployment", "name": "web"})
    assert spec == {
        "updatePolicy": {"minReplicas": 2, "updateMode": "Off"},
        "targetRef": {"kind": "Deployment", "name": "web"},
    }


def test_every_mode_but_off_sizes_pods() -> None:
    """An allow-list of modes missed ``InPlace`` of VPA 1.7; a mode that a later VPA adds counts as well."""
    modes = ["Off", "Initial", "InPlace", "AModeOfTheFuture", ""]
    found = [sizing_mode({"spec": {"updatePolicy": {"updateMode": mode}}}) for mode in modes]
    assert found == ["", "Initial", "InPlace", "AModeOfTheFuture", "Auto"]
    assert [sizing_mode({}), sizing_mode({"spec": {"updatePolicy": None}})] == ["Auto", "Auto"]
