"""VirtualMachineMigrations become facts, and orders become objects (S4.9, S4.12)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from protocol.messages import ObjectName
from protocol.units import Bytes, Seconds
from scheduler_plugin.cluster.migrations import ClusterMigration, migration_body, read_migration
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.ledger.outcomes import CreateMigration

NAME = ObjectName("default", "db-7f3a")
MOVE = Move(ObjectName("default", "db"), "p-1", "n1", "n2", "n1 is full")
BODY = migration_body(CreateMigration(NAME, MOVE), Seconds(300.4), Bytes(1024**3))
CREATED = 1_767_225_600.0


def migration(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """Our migration as the API server returns it."""
    body = dict(BODY)
    more = {"uid": "m-1", "resourceVersion": "17", "creationTimestamp": "2026-01-01T00:00:00Z"}
    body["metadata"] = {**body["metadata"], **more, **metadata}  # type: ignore[dict-item]  # a JSON object
    return body if status is None else body | {"status": status}


def facts(**changed: Any) -> MigrationFacts:
    vm = ObjectName("default", "db")
    fresh = MigrationFacts(NAME, "m-1", 17, vm, target="n2", is_ours=True, created_at=CREATED)
    return replace(fresh, **changed)


def test_order_records_maker_and_target() -> None:
    assert BODY == {
        "apiVersion": "vm.neon.tech/v1",
        "kind": "VirtualMachineMigration",
        "metadata": {
            "name": "db-7f3a",
            "namespace": "default",
            "labels": {"autoscaling.neon.tech/created-by": "autoscale-scheduler"},
            "annotations": {
                "autoscaling.neon.tech/target-node": "n2",
                "autoscaling.neon.tech/reason": "n1 is full",
            },
        },
        "spec": {"vmName": "db", "completionTimeout": 300, "maxBandwidth": "1Gi"},
    }


def test_a_fresh_one_is_pending() -> None:
    assert read_migration(migration()) == ClusterMigration(facts(), reason="n1 is full")


def test_manual_migration_has_no_target() -> None:
    found = read_migration(migration(labels=None, annotations=None))
    assert found == ClusterMigration(facts(target=None, is_ours=False))


@pytest.mark.parametrize("kept_by", [(), ("vm.neon.tech/finalizer",), ("other",), ("other", "vm.neon.tech/finalizer")])
def test_deleted_migration_without_our_finalizer_is_released(kept_by: tuple[str, ...]) -> None:
    found = read_migration(migration(deletionTimestamp="2026-01-01T00:00:05Z", finalizers=[*kept_by]))
    is_released = "vm.neon.tech/finalizer" not in kept_by
    expected = facts(is_terminating=True, is_released=is_released)
    assert found == ClusterMigration(expected, reason="n1 is full", finalizers=kept_by)


def test_running_migration_names_pods_and_dirty_rate() -> None:
    status = {
        "phase": "Running",
        "sourcePodName": "db-1",
        "targetPodName": "db-2",
        "sourceNode": "n1",
        "targetNode": "n2",
        "info": {"status": "active", "totalTimeMs": 1500, "ram": {"dirtyPagesRate": 256, "pageSize": 4096}},
    }
    assert read_migration(migration(status)) == ClusterMigration(
        facts(
            phase=MigrationPhase.RUNNING,
            source_pod=ObjectName("default", "db-1"),
            target_pod=ObjectName("default", "db-2"),
            dirty_rate=Bytes(1024**2),
        ),
        source_node="n1",
        target_node="n2",
        total=Seconds(1.5),
        reason="n1 is full",
    )


def test_numbers_that_cannot_be_count_as_not_said() -> None:
    info = {"totalTimeMs": 10**400, "downtimeMs": -1, "ram": {"dirtyPagesRate": -1, "pageSize": 4096}}
    facts = read_migration(
        {
            "metadata": {"namespace": "default", "name": "m"},
            "spec": {"vmName": "db"},
            "status": {"phase": "Running", "info": info},
        }
    )
    assert (facts.total, facts.downtime, facts.facts.dirty_rate) == (None, None, None)


def test_failed_migration_uses_last_condition() -> None:
    conditions = [
        {"type": "Available", "status": "False", "reason": "Failed", "message": "timed out after 300 s"}
        | {"lastTransitionTime": "2026-01-01T00:05:00Z"},
        {"type": "Progressing", "status": "True", "reason": "Started", "lastTransitionTime": "2026-01-01T00:00:01Z"},
    ]
    found = read_migration(migration({"phase": "Failed", "conditions": conditions}))
    assert found == ClusterMigration(
        facts(phase=MigrationPhase.FAILED, ended_at=CREATED + 300), reason="n1 is full", why="timed out after 300 s"
    )


def test_undated_end_counts_from_creation() -> None:
    status = {"phase": "Succeeded", "info": {"totalTimeMs": 2000, "downtimeMs": 31, "ram": {"total": 1}}}
    found = read_migration(migration(status))
    ended = facts(phase=MigrationPhase.SUCCEEDED, ended_at=CREATED)
    assert found == ClusterMigration(ended, total=Seconds(2), downtime=Seconds(0.031), reason="n1 is full")


@pytest.mark.parametrize(
    ("obj", "said"),
    [
        ({"metadata": {"name": "m", "namespace": "d"}}, "spec: expected a value, the field is missing"),
        (
            {"metadata": {"name": "m", "namespace": "d"}, "spec": {"vmName": "pod/pg-1"}},
            "spec.vmName: expected str matching regex '^[^/]*$'",
        ),
        (
            migration({"phase": "Sideways"}),
            "status.phase: expected one of Pending, Running, Succeeded, Failed, got 'Sideways'",
        ),
        (
            migration(creationTimestamp="yesterday"),
            "metadata.creationTimestamp: expected a time such as 2026-01-31T12:00:00Z, got 'yesterday'",
        ),
    ],
)
def test_unreadable_document_names_path(obj: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        read_migration(obj)
