"""The output of ``autoscale explain GROUP``, from the groups program's response."""

from __future__ import annotations

import pytest
import typer

from protocol.kubernetes.objects import Json
from scripts.autoscale.explain_group import group_explanation, group_name, no_response

HVPA: Json = {
    "group": "Hvpa default/web",
    "target": {
        "name": "Deployment web",
        "replicas": 5,
        "ready": 4,
        "containers": [{"name": "app", "resources": {"requests": {"cpu": "1100m"}, "limits": {"cpu": "2"}}}],
    },
    "recommended": {
        "replicas": 6,
        "bounds": {"min": 1, "max": 10},
        "containers": [{"name": "app", "cpu": "1500m", "memory": "1Gi"}],
    },
    "explanation": ["app/cpu: weight 0.6"],
    "lastScaled": {
        "at": "2026-01-01T00:00:00Z",
        "replicas": {"from": 3, "to": 5},
        "containers": [
            {
                "from": {"name": "app", "resources": {"requests": {"cpu": "500m"}}},
                "to": {"name": "app", "resources": {"requests": {"cpu": "1100m"}}},
            }
        ],
    },
    "underWay": {"at": "2026-01-01T00:02:00Z", "hpa": {"minReplicas": 4}},
    "kept": [{"subject": "replicas", "wanted": "6", "kept": "5", "rule": "Delay", "message": "until 00:02"}],
    "conditions": [
        {"type": "AbleToScale", "status": "True", "message": "scales Deployment web"},
        {"type": "ScalingActive", "status": "True", "message": ""},
    ],
}


def test_explains_recommended_done_and_withheld_changes() -> None:
    assert list(group_explanation(HVPA)) == [
        "Hvpa default/web scales Deployment web: 5 replicas, 4 of them ready.",
        "  app requests 1100m cpu.",
        "  app limits 2 cpu.",
        "  The HPA recommends 6 replicas (between 1 and 10).",
        "  The VPA recommends 1500m cpu, 1Gi memory for app.",
        "  app/cpu: weight 0.6",
        "  Last scaled at 2026-01-01T00:00:00Z: replicas 3 → 5; app 500m cpu → 1100m cpu.",
        "  IN PROGRESS since 2026-01-01T00:02:00Z: HPA minReplicas 4.",
        "  Held back: replicas stays at 5 instead of 6 (rule Delay): until 00:02",
        "  AbleToScale is True: scales Deployment web",
    ]


def test_gaps_are_said() -> None:
    assert no_response() == (
        "the groups program does not respond (it may be starting, or not installed);"
        " a local cluster runs it with autoscale local up --groups"
    )
    broken: Json = {"group": "Hvpa default/web", "problem": "spec.targetRef.name: expected a name"}
    assert list(group_explanation(broken)) == ["Hvpa default/web scales nothing: spec.targetRef.name: expected a name."]
    young: Json = {"group": "Hvpa a/b", "target": {"name": "Deployment b"}, "recommended": {"replicas": None}}
    assert list(group_explanation(young)) == [
        "Hvpa a/b scales Deployment b: 0 replicas, 0 of them ready.",
        "  The HPA recommends nothing yet.",
    ]


def test_vm_group_shows_members_and_withheld_scaling() -> None:
    found: Json = {
        "group": "VirtualMachineGroup default/shop",
        "members": [
            {"name": "shop-primary", "role": "primary", "state": "Running", "node": "n1"},
            {"name": "shop-replica-0", "role": "replica", "state": "Starting", "message": "lags by 20 s"},
        ],
        "scaling": {"replicas": 1, "wanted": 2, "rule": "Delay", "message": "grew 10 s ago"},
    }
    assert list(group_explanation(found)) == [
        "VirtualMachineGroup default/shop:",
        "  It needs 2 replicas and has 1 (rule Delay): grew 10 s ago.",
        "  shop-primary (primary) Running on n1",
        "  shop-replica-0 (replica) Starting: lags by 20 s",
    ]


def test_group_says_that_its_need_is_unknown() -> None:
    """It said that it wanted None replicas."""
    found: Json = {
        "group": "VirtualMachineGroup default/shop",
        "scaling": {"wanted": None, "replicas": 1, "message": "no load yet"},
    }
    assert list(group_explanation(found))[1] == "  It has 1 replica; the number needed is unknown: no load yet."


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("hvpa/web", "Hvpa default/web"),
        ("Tortoise/web", "Tortoise default/web"),
        ("shop/vmg/db", "VirtualMachineGroup shop/db"),
        ("db", ""),
        ("shop/db", ""),
        ("a/b/c/d", ""),
    ],
)
def test_a_group_is_named_with_its_kind(given: str, expected: str) -> None:
    found = group_name(given)
    assert ("" if found is None else f"{found[0].kind} {found[1]}") == expected


def test_a_name_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(typer.BadParameter):
        group_name("hvpa/A b")
