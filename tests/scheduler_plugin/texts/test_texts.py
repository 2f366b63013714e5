"""Texts with variants: each variant as users read it."""

from __future__ import annotations

from math import inf

from protocol.messages import ObjectName
from protocol.units import Bytes, Resources, Seconds
from scheduler_plugin.texts import events, explanations, refusals

VM, POD = ObjectName("db", "a"), ObjectName("db", "a-pod")
UNIT = Resources.parse("1", "4Gi")


def test_events_name_what_is_known() -> None:
    assert [
        events.growth_denied(UNIT + UNIT, UNIT, ""),
        events.permit_not_stored(UNIT, "no answer"),
        events.unreadable("spec: garbage"),
        events.room_being_made(VM, "n1", "n2"),
        events.migration_waits("m", "no other node accepts pods"),
        events.migration_started("n1", events.UNKNOWN_TARGET, ""),
        events.migration_started("n1", "n2", "node n1 is cordoned"),
        events.migration_stalled("m", "its target pod has no node", ""),
        events.migration_stalled("m", "its target pod has no node", "Too many pods"),
        events.migration_succeeded("n1", "n2", events.migration_numbers(Seconds(2.5), None)),
        events.migration_failed("n1", "n2", events.NO_REASON),
    ] == [
        ("GrowthDenied", f"asked for {UNIT + UNIT}, got {UNIT}: it has reached its upper bound"),
        ("PermitNotStored", f"the permit {UNIT} could not be stored: no answer"),
        ("Unreadable", "cannot be read: spec: garbage; accounting it at its maximum"),
        ("RoomBeingMade", "VM db/a is migrating from n1 to n2 to make room"),
        ("MigrationWaits", "m is waiting: no other node accepts pods"),
        ("MigrationStarted", "migrating from n1 to a node not chosen yet"),
        ("MigrationStarted", "migrating from n1 to n2: node n1 is cordoned"),
        ("MigrationStalled", "m: its target pod has no node"),
        ("MigrationStalled", "m: its target pod has no node (kube-scheduler says: Too many pods)"),
        ("MigrationSucceeded", "migrated from n1 to n2 in 2500 ms with a downtime of an unknown time"),
        ("MigrationFailed", "did not migrate from n1 to n2: its controller gave no reason"),
    ]


def test_moves_name_their_price() -> None:
    others = [ObjectName("db", name) for name in "dcba"]
    assert [
        explanations.moves(VM, "n1", None, ""),
        explanations.costs(UNIT, Bytes.parse("1Gi"), inf, 0),
        explanations.costs(UNIT, Bytes.parse("1Gi"), 0.0, 1),
        explanations.costs(UNIT, Bytes.parse("1Gi"), 1.0, 0),
        explanations.all_moves_taken(3, others[:3]),
        explanations.all_moves_taken(4, others),
    ] == [
        "VM db/a is migrating from n1 to a node not chosen yet",
        "moving it frees 1 vCPU and 4 GiB and copies 1 GiB; its load is unknown",
        "moving it frees 1 vCPU and 4 GiB and copies 1 GiB; it is idle; move 2 within an hour",
        "moving it frees 1 vCPU and 4 GiB and copies 1 GiB; its load is 1.0",
        "concurrent migrations are at their limit of 3; ordered by others or cancelled: db/b, db/c, db/d",
        "concurrent migrations are at their limit of 4; ordered by others or cancelled: db/a, db/b, db/c and 1 more",
    ]


def test_node_is_not_relieved_for_a_reason() -> None:
    assert [
        explanations.unrelieved(2, {}, {"a: Too many pods": 3}, full_from="its watermark"),
        explanations.unrelieved(2, {}, {}, full_from=None),
        explanations.unrelieved(
            0, {explanations.COOLDOWN: 1, explanations.LARGE_NEIGHBOUR: 2}, {}, full_from="its watermark"
        ),
        explanations.unrelieved(0, {}, {}, full_from="its watermark"),
    ] == [
        "no node has room below its watermark for any of 2 movable VMs; a: Too many pods (3 nodes)",
        "none of 2 movable VMs would relieve it",
        "no VM may move: 1 in cooldown after a migration, 2 on a node where one VM requests more than the whole node",
        "no VM is on it",
    ]


def test_bind_conflict_says_where_the_pod_is() -> None:
    assert [
        refusals.bind_conflict(POD, None, exists=False, error="409"),
        refusals.bind_conflict(POD, None, exists=True, error="409"),
        refusals.bind_conflict(POD, "n1", exists=True, error="409"),
    ] == ["pod db/a-pod is gone: 409", "pod db/a-pod is not bound: 409", "pod db/a-pod runs on node n1: 409"]
