"""Scaling settings of a group, and their stored history."""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import Json
from protocol.kubernetes.timestamps import parse_timestamp
from protocol.units import MilliCpu, Seconds
from scheduler_plugin.groups.core.replicas.scaling import GroupScaling, ScalingDecision, ScalingMemory
from scheduler_plugin.groups.core.workload import ReplicaBounds, Rule
from scheduler_plugin.groups.objects.vm_group import InvalidGroupError, parse_vm_group, read_memory, scaling_status
from tests.scheduler_plugin.groups.objects.sample_group import GUEST, shop

NOON = "2026-01-01T12:00:00Z"
AT_NOON = parse_timestamp(NOON)


def test_group_without_scaling_is_static() -> None:
    assert parse_vm_group(shop()).scaling is None


def test_what_is_left_out_has_a_default() -> None:
    found = parse_vm_group(shop(scaling={"maxReplicas": 3})).scaling
    assert found == GroupScaling(ReplicaBounds(1, 3), MilliCpu(4000), 0.7, Seconds(30.0), Seconds(300.0), Seconds(30.0))
    smaller: Json = {"spec": {"guest": {**GUEST, "cpus": {"min": 1, "max": 2}}}}
    given = {
        "minReplicas": 2,
        "maxReplicas": 2,
        "targetCPUUtilizationPercentage": 50,
        "scaleUpDelay": "1m",
        "scaleDownDelay": "1h",
        "window": "2m",
    }
    found = parse_vm_group(shop(scaling=given, replicaTemplate=smaller)).scaling
    assert found == GroupScaling(
        ReplicaBounds(2, 2), MilliCpu(2000), 0.5, Seconds(60.0), Seconds(3600.0), Seconds(120.0)
    )


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"minReplicas": 3, "maxReplicas": 2}, "spec.scaling.maxReplicas: expected at least minReplicas, 3, got 2"),
        (
            {"targetCPUUtilizationPercentage": 0},
            "spec.scaling.targetCPUUtilizationPercentage: expected a whole number from 1 to 100, got 0",
        ),
        ({"window": "9s"}, "spec.scaling.window: expected 10 s to 600 s, got 9 s"),
        ({"window": "11m"}, "spec.scaling.window: expected 10 s to 600 s, got 660 s"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(scaling: Json, message: str) -> None:
    with pytest.raises(InvalidGroupError) as caught:
        parse_vm_group(shop(scaling=scaling))
    assert str(caught.value) == message


def test_status_records_wish_and_memory() -> None:
    memory = ScalingMemory(last_up=AT_NOON)
    kept = scaling_status(ScalingDecision(1, 2, memory, "busy; the delay of 30 s is not over", Rule.DELAY))
    assert kept == {
        "replicas": 1,
        "wanted": 2,
        "message": "busy; the delay of 30 s is not over",
        "lastScaleUp": NOON,
        "rule": "Delay",
    }
    assert read_memory({"status": {"scaling": kept}}) == memory
    assert read_memory({"status": {"scaling": {"fewerSince": "long ago"}}}) == ScalingMemory()
    unknown = scaling_status(ScalingDecision(1, None, ScalingMemory(), "not known"))
    assert unknown == {"replicas": 1, "message": "not known"}, "a null would be written again at each look"
