"""The complete plan of a migration for every state."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from deploy.neonvm.migration.migration_facts import MigrationInputs, MigrationPlan, Sending, TransferState
from deploy.neonvm.migration.migration_plan import plan_migration
from deploy.neonvm.ports import PodRole
from protocol.kubernetes.objects import Json, child, items, text
from protocol.names import FINALIZER
from tests.neonvm.sample_objects import runner, virtual_machine

LEAVING: Json = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
SOURCE = runner()
TARGET: Json = {
    "metadata": {
        "name": "db-new",
        "namespace": "default",
        "ownerReferences": [{"kind": "VirtualMachineMigration", "uid": "move-uid", "controller": True}],
    },
    "spec": {"nodeName": "n2"},
    "status": {"phase": "Running", "podIP": "10.0.0.10"},
}
ADMITTED: Json = {
    "phase": "Pending",
    "sourcePodName": "db-x",
    "sourcePodIP": "10.0.0.9",
    "sourceNode": "n1",
    "targetPodName": "db-new",
}
NO_ROOM = "0/2 nodes are available: 2 Insufficient cpu."
UNSCHEDULED: Json = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_ROOM}
PLACED: Json = {**ADMITTED, "targetNode": "n2"}
SENT: Json = {**PLACED, "phase": "Running", "targetPodIP": "10.0.0.10"}
INFO: Json = {"totalTimeMs": 1200, "downtimeMs": 57, "ram": {"transferred": 3 << 20}}
ACTIVE, DONE = TransferState(Sending.ACTIVE), TransferState(Sending.DONE, info=INFO)
CANCELLED = TransferState(Sending.FAILED, "Cancelled", "the migration was cancelled")
LEFT = runner("Succeeded", {"reason": "Migrated"})
REFUSED = TransferState(Sending.FAILED, "Refused", "devices differ")


def migration(status: Json | None = None, /, **metadata: object) -> Json:
    return {
        "metadata": {"name": "move", "namespace": "default", "uid": "move-uid", "finalizers": [FINALIZER], **metadata},
        "spec": {"vmName": "db", "completionTimeout": 60},
        "status": status or {},
    }


def vm(phase: str = "PreMigrating", pod: str = "db-x", /, **metadata: object) -> Json:
    return virtual_machine({"phase": phase, "podName": pod}, **metadata)


def facts(found: Json, /, **known: object) -> MigrationInputs:
    usual = MigrationInputs(
        migration=found,
        fault="",
        vm=vm("Migrating"),
        rival="",
        pending_cleanup="",
        source=SOURCE,
        target=TARGET,
        source_role=PodRole.RUNNING,
        target_role=PodRole.RECEIVING,
        is_quiet=True,
        transfer=TransferState(),
        is_overdue=False,
        new_pod_name=lambda: "db-new",
    )
    return replace(usual, **known)  # type: ignore[arg-type]  # the names are its fields


def fresh(found: Json | None = None, /, **known: object) -> MigrationInputs:
    usual: Json = {"vm": vm("Running"), "target": None, "target_role": PodRole.EMPTY, "is_quiet": False, **known}
    return facts(found or migration(), **usual)


def pending(status: Json = ADMITTED, /, **known: object) -> MigrationInputs:
    usual: Json = {"vm": vm(), "target": None, "target_role": PodRole.EMPTY, **known}
    return facts(migration(status), **usual)


def status(made: MigrationPlan) -> Json:
    return {key: value for key, value in made.status.items() if key != "conditions"}


def says(made: MigrationPlan) -> tuple[object, object, object]:
    (said,) = items(made.status, "conditions")
    return said["status"], said["reason"], said["message"]


def rest(made: MigrationPlan) -> MigrationPlan:
    return replace(made, status={})


NOTHING = MigrationPlan()


@pytest.mark.parametrize("known", [{}, {"vm": None}, {"rival": "other"}, {"pending_cleanup": "m"}])
def test_finalizer_comes_first(known: Json) -> None:
    assert plan_migration(fresh(migration(finalizers=[]), **known)) == MigrationPlan(add_finalizer=True)


def test_it_begins_by_naming_both_ends() -> None:
    made = plan_migration(fresh())
    assert (status(made), rest(made)) == (ADMITTED, NOTHING)
    assert says(made) == ("Unknown", "Preparing", "waiting for a node to migrate pod db-x to")


@pytest.mark.parametrize(
    ("known", "reason", "message"),
    [
        ({"fault": "spec.maxBandwidth: …"}, "InvalidSpec", "spec.maxBandwidth: …"),
        ({"vm": None}, "VMGone", "VM db not found"),
        ({"vm": vm("Running", **LEAVING)}, "VMGone", "VM db not found"),
        ({"rival": "other"}, "AlreadyMigrating", "migration other of the VM is already under way"),
        ({"vm": vm("Pending")}, "VMNotRunning", "only a running VM can be migrated; its phase is Pending"),
        ({"vm": vm("")}, "VMNotRunning", "only a running VM can be migrated; its phase is new"),
        ({"source_role": PodRole.BOOTING}, "VMNotRunning", "only a running VM can be migrated; its guest: booting"),
        ({"source_role": PodRole.EMPTY}, "VMNotRunning", "only a running VM can be migrated; its guest: not running"),
        ({"migration_obstacle": "its runner is another's"}, "NotMovable", "its runner is another's"),
    ],
)
def test_one_that_cannot_begin_fails_at_once(known: Json, reason: str, message: str) -> None:
    made = plan_migration(fresh(**known))
    assert (status(made), says(made), rest(made)) == ({"phase": "Failed"}, ("False", reason, message), NOTHING)


def test_refused_migration_reports_before_release() -> None:
    refused = fresh(migration({"phase": "Failed"}), vm=None, source=None)
    assert plan_migration(refused) == MigrationPlan(record_outcome=True, remove_finalizer=True)


@pytest.mark.parametrize("known", [{"pending_cleanup": "m"}, {"vm": vm("Migrating")}, {"vm": vm("PreMigrating")}])
def test_one_that_follows_another_waits_and_says_so(known: Json) -> None:
    made, late = plan_migration(fresh(**known)), plan_migration(fresh(**known, is_overdue=True))
    phase = text(cast("Json", known.get("vm") or {}), "status", "phase")
    waits_for = f"the VM's last migration to end; its phase is {phase}" if phase else "m"
    assert (status(made), rest(made), says(made)) == ({}, NOTHING, ("Unknown", "Waiting", f"waiting for {waits_for}"))
    assert (status(late), rest(late)) == ({"phase": "Failed"}, NOTHING)
    assert says(late) == ("False", "TimedOut", f"not started within 60 s, waiting for {waits_for}")


@pytest.mark.parametrize("held", [True, False])
def test_early_deleted_migration_is_released(held: bool) -> None:
    found = migration(finalizers=[FINALIZER] if held else ["other"], **LEAVING)
    made = plan_migration(fresh(found))
    ends = ({}, []) if held else ({"phase": "Failed"}, ["Cancelled"])
    reasons = [each["reason"] for each in items(made.status, "conditions")]
    assert (status(made), reasons, rest(made)) == (*ends, MigrationPlan(remove_finalizer=held))


@pytest.mark.parametrize("phase", ["Running", "PreMigrating"])
def test_the_target_is_made_while_the_vm_runs(phase: str) -> None:
    assert plan_migration(pending(vm=vm(phase))) == MigrationPlan(own_source=True, create_target=True)


def test_the_source_is_owned_once() -> None:
    owners = [*items(SOURCE, "metadata", "ownerReferences"), {"kind": "VirtualMachineMigration", "uid": "move-uid"}]
    owned: Json = {**SOURCE, "metadata": {**child(SOURCE, "metadata"), "ownerReferences": owners}}
    assert plan_migration(pending(source=owned)) == MigrationPlan(create_target=True)


def test_a_target_without_a_node_is_waited_for() -> None:
    unplaced: Json = {**TARGET, "spec": {}, "status": {"phase": "Pending"}}
    assert plan_migration(pending(target=unplaced)) == NOTHING
    refused: Json = {**unplaced, "status": {"phase": "Pending", "conditions": [UNSCHEDULED]}}
    made = plan_migration(pending(target=refused))
    assert (status(made), rest(made)) == ({}, NOTHING)
    assert says(made) == ("Unknown", "Unschedulable", f"the target pod cannot be scheduled: {NO_ROOM}")
    late = plan_migration(pending(target=refused, is_overdue=True))
    assert says(late) == (
        "False",
        "TimedOut",
        f"not completed within 60 s; the target pod cannot be scheduled: {NO_ROOM}",
    )


@pytest.mark.parametrize(
    "known",
    [
        {"target": {**TARGET, "status": {"phase": "Pending"}}},
        {"target_role": PodRole.EMPTY},
        {"is_quiet": False},
        {"vm": vm("Running")},
    ],
)
def test_starting_target_reports_its_node(known: Json) -> None:
    made = plan_migration(pending(**{"target": TARGET, "target_role": PodRole.RECEIVING, **known}))
    assert (status(made), rest(made)) == ({"targetNode": "n2"}, NOTHING)
    assert says(made) == ("Unknown", "Preparing", "preparing the target on n2")


def test_transfer_starts_when_both_are_ready() -> None:
    made = plan_migration(pending(target=TARGET, target_role=PodRole.RECEIVING))
    begun = {"phase": "Running", "targetNode": "n2", "targetPodIP": "10.0.0.10"}
    assert (status(made), rest(made)) == (begun, MigrationPlan(send=True))
    assert says(made) == ("Unknown", "Transferring", "migrating to n2")


def test_move_continues_after_lost_first_write() -> None:
    assert plan_migration(pending(PLACED, transfer=ACTIVE, target=TARGET, target_role=PodRole.RECEIVING)) == NOTHING
    assert plan_migration(facts(migration(SENT))) == MigrationPlan(send=True)
    assert plan_migration(facts(migration(SENT), is_quiet=False)) == NOTHING


def test_progress_is_reported() -> None:
    made = plan_migration(facts(migration(SENT), transfer=TransferState(Sending.ACTIVE, info=INFO)))
    assert made == MigrationPlan(status={"info": INFO})


def test_removed_finalizer_is_restored() -> None:
    assert plan_migration(facts(migration(SENT, finalizers=[]))) == MigrationPlan(add_finalizer=True)


@pytest.mark.parametrize(("begun", "cancels"), [(PLACED, False), (SENT, True)])
def test_migration_kept_by_another_finalizer_ends(begun: Json, cancels: bool) -> None:
    """Without ours it would otherwise stay under way, and every later migration of its VM would fail."""
    active = ACTIVE if cancels else TransferState()
    made = plan_migration(facts(migration(begun, finalizers=["other"], **LEAVING), transfer=active))
    assert (status(made), rest(made)) == ({} if cancels else {"phase": "Failed"}, MigrationPlan(cancel=cancels))


BREAKS: list[tuple[Json, str, str]] = [
    ({"migration": migration(SENT, **LEAVING)}, "Cancelled", "the migration was deleted"),
    ({"vm": None}, "VMGone", "the VM was deleted"),
    ({"vm": vm("Migrating", **LEAVING)}, "VMGone", "the VM was deleted"),
    ({"target": None}, "TargetLost", "pod db-new is gone"),
    (
        {"target": {**TARGET, "metadata": {**child(TARGET, "metadata"), **LEAVING}}},
        "TargetLost",
        "pod db-new is being deleted",
    ),
    (
        {"target": {**TARGET, "status": {"phase": "Failed", "message": "QEMU died"}}},
        "TargetLost",
        "pod db-new has ended: QEMU died",
    ),
    ({"is_overdue": True}, "TimedOut", "not completed within 60 s"),
]


@pytest.mark.parametrize(("known", "reason", "message"), BREAKS)
def test_broken_move_cancels_then_fails(known: Json, reason: str, message: str) -> None:
    known = {"migration": migration(SENT), **known}
    found = cast("Json", known.pop("migration"))
    assert plan_migration(facts(found, transfer=ACTIVE, **known)) == MigrationPlan(cancel=True)
    made = plan_migration(facts(found, transfer=CANCELLED, **known))
    assert (status(made), says(made)) == ({"phase": "Failed"}, ("False", reason, message))
    assert rest(made) == NOTHING


@pytest.mark.parametrize("source_role", [PodRole.RUNNING, PodRole.UNKNOWN])
@pytest.mark.parametrize(
    "known", [*(known for known, reason, _ in BREAKS if reason != "VMGone"), {"fault": "nonsense"}]
)
def test_foreign_move_is_adopted_before_cancel(known: Json, source_role: PodRole) -> None:
    known = {"migration": migration(SENT), "is_quiet": False, **known}
    found = cast("Json", known.pop("migration"))
    made = plan_migration(facts(found, source_role=source_role, **known))
    assert made == MigrationPlan(send=True, cancel=True)


def test_move_is_adopted_with_silent_source() -> None:
    silent = facts(migration(SENT), source_role=PodRole.UNKNOWN, target_role=PodRole.UNKNOWN, is_quiet=False)
    assert plan_migration(silent) == MigrationPlan(send=True)


LOST: Json = {"source": None, "source_role": PodRole.EMPTY}


@pytest.mark.parametrize(
    "known",
    [
        {**LOST, "target_role": PodRole.UNKNOWN},
        {**LOST, "target_role": PodRole.UNKNOWN, "is_overdue": True},
        {**LOST, "target_role": PodRole.UNKNOWN, "migration": migration(SENT, **LEAVING)},
        {"source": LEFT, "source_role": PodRole.EMPTY},
        {"transfer": DONE},
        {"transfer": DONE, "target_role": PodRole.UNKNOWN},
        {"transfer": CANCELLED, "target_role": PodRole.UNKNOWN},
    ],
)
def test_possible_arrival_is_checked_before_delete(known: Json) -> None:
    known = {"migration": migration(SENT), **known}
    found = cast("Json", known.pop("migration"))
    assert plan_migration(facts(found, **known)) == NOTHING


@pytest.mark.parametrize(("known", "reason", "message"), BREAKS)
def test_the_same_breaks_one_that_prepares(known: Json, reason: str, message: str) -> None:
    prepared: Json = {"target": TARGET, "target_role": PodRole.RECEIVING, "vm": vm(), **known}
    leaving = prepared.pop("migration", None) is not None
    made = plan_migration(facts(migration(PLACED, **(LEAVING if leaving else {})), **prepared))
    assert (status(made), says(made)) == ({"phase": "Failed"}, ("False", reason, message))


def test_scheduling_timeout_is_reported() -> None:
    made = plan_migration(pending(is_overdue=True))
    assert says(made) == ("False", "TimedOut", "not completed within 60 s; the target pod was not scheduled")


@pytest.mark.parametrize(
    ("known", "reason", "message"),
    [
        ({"transfer": REFUSED}, "Refused", "devices differ"),
        ({"transfer": REFUSED, "source_role": PodRole.EMPTY}, "Refused", "devices differ"),
        ({"transfer": REFUSED, "target": runner("Failed", {"message": "it went too"})}, "Refused", "devices differ"),
        ({"transfer": DONE, "target_role": PodRole.EMPTY}, "TargetLost", "the guest ended on the target"),
        ({"transfer": CANCELLED}, "Cancelled", "the migration was cancelled"),
        ({"transfer": CANCELLED, "fault": "nonsense"}, "InvalidSpec", "nonsense"),
        (
            {"source_role": PodRole.EMPTY},
            "RuntimeRestarted",
            "the guest was lost when its runtime restarted",
        ),
        ({"vm": vm("Running", "db-y")}, "SourceLost", "the VM no longer runs in pod db-x"),
        ({"vm": None, "source_role": PodRole.UNKNOWN}, "VMGone", "the VM was deleted"),
        (
            {"source": LEFT, "source_role": PodRole.EMPTY, "is_overdue": True},
            "RuntimeRestarted",
            "the guest was lost when its runtime restarted",
        ),
    ],
)
def test_move_without_arrival_fails(known: Json, reason: str, message: str) -> None:
    made = plan_migration(facts(migration(SENT), **known))
    assert (says(made), rest(made)) == (("False", reason, message), NOTHING)
    assert status(made)["phase"] == "Failed"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (runner("Failed", {"message": "QEMU died"}), "the guest in pod db-x has ended: QEMU died"),
        (None, "the guest in pod db-x has ended"),
    ],
)
def test_early_source_end_fails_migration(source: Json | None, message: str) -> None:
    made = plan_migration(pending(source=source, source_role=PodRole.EMPTY))
    assert says(made) == ("False", "SourceLost", message)


LATE: list[Json] = [{}, {"is_overdue": True}, {"migration": migration(SENT, **LEAVING)}]


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("transfer", [DONE, TransferState(Sending.FAILED, "Cancelled", "…")])
def test_arrival_updates_vm_first(late: Json, transfer: TransferState) -> None:
    late = {"migration": migration(SENT), **late}
    found = cast("Json", late.pop("migration"))
    arrived: Json = {"target_role": PodRole.RUNNING, "source_role": PodRole.EMPTY, "transfer": transfer, **late}
    assert plan_migration(facts(found, **arrived)) == NOTHING
    made = plan_migration(facts(found, **{**arrived, "vm": vm("Running", "db-new")}))
    assert rest(made) == MigrationPlan(adopt_target=True)
    assert status(made)["phase"] == "Succeeded"
    figures = " in 1200 ms, downtime 57 ms, 3 MiB sent" if transfer is DONE else ""
    assert says(made) == ("True", "Migrated", f"migrated from n1 to n2{figures}")


def test_arrival_is_recorded_once() -> None:
    owned: Json = {**TARGET, "metadata": {"name": "db-new", "ownerReferences": [{"uid": "vm-uid"}]}}
    known: Json = {"vm": vm("Running", "db-new"), "target_role": PodRole.RUNNING, "transfer": DONE}
    for target in (owned, None):
        made = plan_migration(facts(migration(SENT), **known, target=target))
        assert (rest(made), status(made)["phase"]) == (NOTHING, "Succeeded")


def test_restart_after_handover_succeeds() -> None:
    known: Json = {"vm": vm("Failed", "db-new"), "target_role": PodRole.EMPTY, "source_role": PodRole.EMPTY}
    assert status(plan_migration(facts(migration(SENT), **known)))["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("found", "reason"),
    [(None, "VMGone"), (vm("Migrating", **LEAVING), "VMGone"), (vm("Running", "db-y"), "SourceLost")],
)
def test_unexpected_arrival_fails(found: Json | None, reason: str) -> None:
    made = plan_migration(facts(migration(SENT), vm=found, target_role=PodRole.RUNNING, transfer=DONE))
    assert (status(made)["phase"], says(made)[1]) == ("Failed", reason)


def test_success_waits_for_source_then_releases() -> None:
    found = migration({**SENT, "phase": "Succeeded"})
    assert plan_migration(facts(found)) == NOTHING
    assert plan_migration(facts(found, source=None)) == MigrationPlan(record_outcome=True, remove_finalizer=True)


def test_failure_deletes_target_then_releases() -> None:
    found = migration({**SENT, "phase": "Failed"})
    leaving: Json = {**TARGET, "metadata": {**child(TARGET, "metadata"), **LEAVING}}
    assert plan_migration(facts(found)) == MigrationPlan(delete_target=True)
    assert plan_migration(facts(found, target=leaving)) == NOTHING
    assert plan_migration(facts(found, target=None)) == MigrationPlan(record_outcome=True, remove_finalizer=True)
    assert plan_migration(facts(found, transfer=ACTIVE)) == MigrationPlan(cancel=True)


def test_failure_keeps_running_target() -> None:
    found = facts(migration({**SENT, "phase": "Failed"}), vm=vm("Running", "db-new"))
    assert plan_migration(found) == MigrationPlan(record_outcome=True, remove_finalizer=True)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_released_migration_is_left_alone(phase: str) -> None:
    let_go = facts(migration({**SENT, "phase": phase}, finalizers=[]), target=None)
    assert plan_migration(let_go) == NOTHING


def test_late_target_is_still_deleted() -> None:
    found = migration({**SENT, "phase": "Failed"}, finalizers=[])
    assert plan_migration(facts(found)) == MigrationPlan(delete_target=True)
