from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from protocol.kubernetes.objects import Json
from protocol.names import ANNOTATION_BOUNDS
from scheduler_plugin.dashboard.core.reports import SchedulerReport, scheduler_reports, with_report
from scheduler_plugin.dashboard.core.rows import (
    NOTHING,
    ZERO,
    GroupRow,
    MoveRow,
    NodeRow,
    StatusRow,
    VmRow,
    group_row,
    move_row,
    node_rows,
    status_row,
    vm_row,
)
from tests.pod_databases import pod_database
from tests.scheduler_plugin.dashboard.page_cluster import SCRIPT, a_node, a_pod, amounts, nodes_answer
from tests.scheduler_plugin.objects import vm


def test_a_vm_is_shown_as_its_object_says() -> None:
    made = vm("db", "1500m", 4)
    made["status"] = {"node": "n1", "phase": "Running", "cpus": "1500m", "memorySize": "4Gi"}
    made["metadata"]["labels"] = {"autoscaling.neon.tech/enabled": "true", "autoscaling.neon.tech/group": "shop"}
    made["metadata"]["annotations"] = {"autoscaling.neon.tech/permit": '{"vCPUs": "2", "mem": "5Gi"}'}
    found = vm_row(made)
    expected = VmRow(
        "default/db", "default", node="n1", group="shop", phase="Running", use=(1500, 4096), least=(250, 1024),
        most=(8000, 16384), actual=(1500, 4096), permit=(2000, 5120), enabled=True,
    )  # fmt: skip
    assert found == expected


def test_unreadable_vm_has_row_with_reason() -> None:
    found = vm_row({"metadata": {"namespace": "default", "name": SCRIPT}, "spec": {}, "status": {"node": "n1"}})
    assert (found.key, found.node, found.use) == (f"default/{SCRIPT}", "n1", NOTHING)
    assert found.problem.startswith("spec")


def test_a_migration_shows_how_far_it_is() -> None:
    status = {
        "phase": "Running",
        "sourceNode": "n1",
        "targetNode": "n2",
        "info": {"ram": {"total": 1000, "remaining": 250, "transferred": 800}},
    }
    about = {
        "namespace": "default",
        "name": "m",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"autoscaling.neon.tech/reason": "n1 is full"},
    }
    assert move_row({"metadata": about, "spec": {"vmName": "db"}, "status": status}) == MoveRow(
        "default/m", "default", "default/db", "Running", "n1", "n2", "n1 is full", "75 %", "2026-01-01T00:00:00Z"
    )
    assert move_row({"metadata": {"namespace": "default", "name": "m"}, "spec": {"vmName": "db"}}) == MoveRow(
        "default/m", "default", "default/db", "Pending", wait="waiting for neonvm-controller to start the migration"
    )


@pytest.mark.parametrize(
    ("status", "wait"),
    [
        ({}, "waiting for neonvm-controller to start the migration"),
        ({"phase": "Pending"}, "waiting for a node for the target pod"),
        ({"phase": "Pending", "targetNode": "n2"}, ""),
        (
            {"phase": "Pending", "conditions": [{"message": ""}, {"message": "no node has 3 vCPU"}]},
            "no node has 3 vCPU",
        ),
        ({"phase": "Running", "conditions": [{"message": "transfers"}]}, ""),
    ],
)
def test_migration_says_what_it_waits_for(status: Json, wait: str) -> None:
    """The page had ``node-10 ⇢ ?`` and no reason."""
    assert move_row({"metadata": {"name": "m"}, "status": status}).wait == wait


def test_no_object_can_make_the_page_long() -> None:
    long = "x" * 1_000_000
    about: Json = {"namespace": "default", "name": "m", "annotations": {"autoscaling.neon.tech/reason": long}}
    status: Json = {"phase": long, "sourceNode": long, "targetNode": long, "node": long}
    group: Json = {"metadata": about, "status": {"explanation": [long] * 9}}
    bad: Json = {"metadata": about, "status": {"conditions": [{"status": "False", "message": long}]}}
    rows = (
        move_row({"metadata": about, "spec": {"vmName": long}, "status": status}),
        vm_row({"metadata": about, "spec": {"guest": {"cpus": {"min": long}}}, "status": status}),
        vm_row({**vm("db", 1), "status": status}),
        group_row("Hvpa", group),
        group_row("Hvpa", bad),
    )
    assert max(len(msgspec.json.encode(row)) for row in rows) < 2500


def test_group_reason_lists_problems_first() -> None:
    group: Json = {
        "metadata": {"namespace": "default", "name": "shop"},
        "spec": {"replicas": 3},
        "status": {"replicas": 2, "explanation": ["Three are wanted.", 7, "One is missing."]},
    }
    healthy = GroupRow(
        "Hvpa/default/shop", "default", "Hvpa", "default/shop", 2, 3, True, "Three are wanted. One is missing."
    )
    assert group_row("Hvpa", group) == healthy
    group["status"] = {"conditions": [{"type": "Ready", "status": "False", "message": "no target"}], "replicas": True}
    assert group_row("Hvpa", group) == GroupRow(
        "Hvpa/default/shop", "default", "Hvpa", "default/shop", -1, 3, False, "no target"
    )


def test_nodes_and_words_come_from_the_scheduler() -> None:
    pressed = {"excess": amounts("500m", "0")}
    answer = nodes_answer(
        a_node(
            "n1",
            a_pod("default/db", denied=amounts("1", "0"), promised=amounts("500m", "0")),
            {"pod": "default/web", "vm": None},
            pressure=pressed,
            denied=amounts("1", "0"),
            promised=amounts("500m", "0"),
        ),
        a_node("n2", a_pod("default/db", "3", "2Gi", migrating=True), stuck="no room", noRoomToGrow="no target"),
        a_node("n3", open=False, total={}),
    )
    whole = NodeRow("", "", (16000, 65536), (4000, 8192), (12000, 57344), (14400, 59392))
    assert node_rows(answer) == [
        replace(whole, key="n1", excess=(500, 0), denied=(1000, 0), promised=(500, 0), state="over-watermark"),
        replace(whole, key="n2", stuck="no room", crowded="no target", state="cannot-drain"),
        replace(whole, key="n3", total=NOTHING, open=False, state="cordoned"),
    ]
    assert scheduler_reports(answer) == {
        "default/db": SchedulerReport((3000, 4096), (1000, 0), True, promised=(500, 0))
    }


def test_migrating_vm_is_silent_with_either_agent() -> None:
    answer = nodes_answer(a_node("n1", a_pod("default/db", agentSilent=True)), a_node("n2", a_pod("default/db")))
    assert scheduler_reports(answer) == {"default/db": SchedulerReport((2000, 4096), (0, 0), False, True)}


def test_status_row_without_and_with_a_response() -> None:
    assert status_row(None) == StatusRow("scheduler", "")
    answer = nodes_answer(waitingPods=2, unreadable=[{"kind": "Pod"}], migrationsIdle="switched off")
    assert status_row(answer) == StatusRow("scheduler", "", True, True, "s-1", 2, 1, "switched off")


def test_scheduler_report_overlays_row() -> None:
    row = VmRow("default/db", "default")
    said = with_report(row, SchedulerReport((1, 2), (3, 4), True, promised=(0, 4)))
    assert said == VmRow("default/db", "default", reserved=(1, 2), denied=(3, 4), promised=(0, 4), migrating=True)
    assert with_report(said, None) == VmRow("default/db", "default", reserved=NOTHING, denied=ZERO)


def test_later_permits_are_reserved() -> None:
    row = VmRow("default/db", "default", use=(500, 128), permit=(2500, 512))
    assert with_report(row, SchedulerReport((500, 1024), ZERO, False)).reserved == (2500, 1024)


def test_pod_is_database() -> None:
    row = vm_row(pod_database())
    expected = VmRow(
        "default/pod/pg-1", "default", node="n1", phase="Running", use=(1000, 1024), least=(500, 512),
        most=(4000, 8192), actual=(1000, 1024), enabled=True,
    )  # fmt: skip
    assert row == expected


def test_unreadable_pod_has_row_with_reason() -> None:
    row = vm_row(pod_database(bounds=""))
    assert (row.key, row.node, row.use) == ("default/pod/pg-1", "n1", NOTHING)
    assert ANNOTATION_BOUNDS in row.problem


def test_permit_of_pod_comes_from_scheduler() -> None:
    """Nothing is stored in the pod; what the scheduler does not say any more must not stay."""
    pod = a_pod("default/pod/pg-1", "2", "2Gi", permit=amounts("2", "2Gi"))
    known = with_report(vm_row(pod_database()), scheduler_reports(nodes_answer(a_node("n1", pod)))["default/pod/pg-1"])
    assert (known.permit, known.reserved, with_report(known, None).permit) == ((2000, 2048), (2000, 2048), NOTHING)
