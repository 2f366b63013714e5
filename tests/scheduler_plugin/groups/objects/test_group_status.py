"""The status of a group: what people and ``/scale`` read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from protocol.kubernetes.objects import Json, items, text
from protocol.units import Seconds
from scheduler_plugin.groups.core.replicas.group_plan import plan_group
from scheduler_plugin.groups.core.replicas.members import Member
from scheduler_plugin.groups.objects.vm_group import group_status, parse_vm_group, refused_status
from tests.scheduler_plugin.groups.core.replicas.group_story import PRIMARY, replica
from tests.scheduler_plugin.groups.objects.sample_group import shop

NOW = "2026-01-01T00:01:00Z"


def status(members: Sequence[Member], **spec: object) -> Json:
    given = shop(**spec)
    group = parse_vm_group(given)
    return group_status(given, group, members, plan_group(group.spec, members, bool(members)), "", (), NOW)


def conditions(found: Json) -> dict[str, tuple[str, str, str]]:
    return {
        text(each, "type"): (text(each, "status"), text(each, "reason"), text(each, "message"))
        for each in items(found, "conditions")
    }


def test_a_group_of_which_all_serve_is_ready() -> None:
    found = status([PRIMARY, replica(0), replica(1)])
    assert {key: found[key] for key in ("observedGeneration", "replicas", "readyReplicas", "drainingReplicas")} == {
        "observedGeneration": 3,
        "replicas": 2,
        "readyReplicas": 2,
        "drainingReplicas": 0,
    }
    assert found["selector"] == "autoscaling.neon.tech/group=shop,autoscaling.neon.tech/role=replica"
    assert found["primary"] == {"name": "shop-primary", "uid": "u-p", "address": "10.100.128.0", "node": ""}
    assert conditions(found) == {
        "Accepted": ("True", "Valid", ""),
        "PrimaryReady": ("True", "Serves", ""),
        "Ready": ("True", "AllServe", "2 of 2 replicas serve"),
    }


def test_members_explain_their_state() -> None:
    members = [
        PRIMARY,
        replica(0),
        replica(1, available=False),
        replica(2, draining=Seconds(1.0)),
        replica(3, draining=Seconds(1.0), available=False),
        replica(4, leaving=True),
    ]
    found = status(members, replicas=2)
    assert [(text(each, "name"), text(each, "state"), text(each, "message")) for each in items(found, "members")] == [
        ("shop-primary", "Running", ""),
        ("shop-replica-0", "Serving", ""),
        ("shop-replica-1", "Starting", "its database does not accept connections yet"),
        ("shop-replica-2", "Draining", "it is leaving the group"),
        ("shop-replica-3", "Leaving", "its database is not running, so it has no clients"),
        ("shop-replica-4", "Leaving", "it is leaving the group"),
    ]
    assert (found["replicas"], found["drainingReplicas"]) == (2, 3)
    assert conditions(found)["Ready"][:2] == ("False", "ReplicasStarting")
    assert "1 of 2 replicas serve (shop-replica-1: its database does not accept" in conditions(found)["Ready"][2]


def test_group_waits_for_primary() -> None:
    boots = status([replace(PRIMARY, available=False)])
    assert conditions(boots)["Ready"] == (
        "False",
        "PrimaryStarting",
        "the primary's database does not accept connections yet",
    )
    assert items(boots, "members")[0]["state"] == "Starting"
    assert conditions(status([]))["PrimaryReady"][:2] == ("False", "PrimaryStarting")
    assert "primary" not in status([])
    lost = conditions(status([replica(0)]))
    assert lost["Ready"] == lost["PrimaryReady"]
    assert lost["Ready"][:2] == ("False", "PrimaryMissing")


def test_a_primary_that_is_gone_stays_remembered() -> None:
    given = shop()
    given["status"] = {"primary": {"name": "shop-primary", "uid": "u-p"}}
    group = parse_vm_group(given)
    assert group_status(given, group, [], plan_group(group.spec, [], True), "", (), NOW)["primary"] == {
        "name": "shop-primary",
        "uid": "u-p",
    }


def test_pending_replicas_are_reported() -> None:
    assert conditions(status([PRIMARY]))["Ready"][2] == "0 of 2 replicas serve"


def test_a_condition_keeps_its_time_until_it_turns() -> None:
    given = shop()
    given["status"] = {
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2025-01-01T00:00:00Z"}]
    }
    refused = refused_status(given, "spec.replicas: expected a whole number", NOW)
    assert [(each["type"], each["status"], each["lastTransitionTime"]) for each in items(refused, "conditions")] == [
        ("Accepted", "False", NOW),
        ("Ready", "False", "2025-01-01T00:00:00Z"),
    ]
    assert items(refused, "conditions")[0]["message"] == "spec.replicas: expected a whole number"
