"""Migrations in a demo: how they are detected, reported and drawn, and when they count as a failure."""

import pytest

from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from protocol.units import Instant, Resources, Seconds
from scripts.autoscale.demonstration.fleet import fleet_row
from scripts.autoscale.demonstration.migration_scenario import client_failures, points
from scripts.autoscale.demonstration.moves import ObservedMove, observe_move
from scripts.autoscale.demonstration.pgbench import Outcome, PgbenchError
from scripts.autoscale.demonstration.report import MigrationPoint, Observations, report
from scripts.autoscale.demonstration.vm_clients import ClientReport, ProbeReply, answers_of
from scripts.autoscale.migrate import is_under_way, migration_of

VM = ObjectName("default", "neighbour-1")
DONE: Json = {"totalTimeMs": 930, "downtimeMs": 41, "ram": {"total": 100, "remaining": 0, "transferred": 90}}


def migration(phase: str = "", info: Json | None = None, message: str = "") -> Json:
    status: Json = {"phase": phase, "info": info or {}, "conditions": [{"type": "Ready", "message": message}]}
    if phase:
        status |= {"sourceNode": "node-1", "targetNode": "node-2"}
    return {
        "metadata": {"namespace": "default", "annotations": {"autoscaling.neon.tech/target-node": "node-2"}},
        "spec": {"vmName": VM.name},
        "status": status,
    }


def test_migration_is_observed_until_its_end() -> None:
    ordered = observe_move(None, migration(), Instant(1.0), is_gone=False)
    assert ordered == ObservedMove(VM, target="node-2")
    half: Json = {"ram": {"total": 100, "remaining": 40, "transferred": 60}}
    running = observe_move(ordered, migration("Running", half), Instant(2.0), is_gone=False)
    assert running == ObservedMove(VM, "node-1", "node-2", "Running", progress="60 %", began=Instant(2.0))
    again = observe_move(running, migration("Running", half), Instant(2.5), is_gone=False)
    assert again == running
    ended = observe_move(again, migration("Succeeded", DONE), Instant(3.0), is_gone=False)
    assert ended == ObservedMove(
        VM, "node-1", "node-2", "Succeeded", "", "100 %", 930, 41, began=Instant(2.0), ended=Instant(3.0)
    )
    assert ended.title == "neighbour-1: node-1 ⇢ node-2 Succeeded in 930 ms, downtime 41 ms"
    assert observe_move(ended, migration("Succeeded", DONE), Instant(9.0), is_gone=True) == ended


def test_deleted_migration_counts_as_cancelled() -> None:
    running = observe_move(None, migration("Running"), Instant(2.0), is_gone=False)
    gone = observe_move(running, migration("Running"), Instant(2.2), is_gone=True)
    assert (gone.phase, gone.ended, gone.is_under_way) == ("Cancelled", Instant(2.2), False)


def test_one_that_failed_says_why() -> None:
    failed = observe_move(None, migration("Failed", message="the destination died"), Instant(2.0), is_gone=False)
    assert failed.title == "neighbour-1: node-1 ⇢ node-2 Failed: the destination died"


def test_one_that_waits_says_for_what() -> None:
    waits = migration("Pending", message="the target pod cannot be scheduled")
    del waits["status"]["targetNode"]  # type: ignore[attr-defined]
    assert observe_move(None, waits, Instant(1.0), is_gone=False).waits == ""
    waits["status"]["conditions"][0]["reason"] = "Unschedulable"  # type: ignore[index]
    waiting = observe_move(None, waits, Instant(1.0), is_gone=False)
    assert waiting.title == "neighbour-1: node-1 ⇢ node-2 Pending: the target pod cannot be scheduled"
    assert observe_move(waiting, migration("Running"), Instant(2.0), is_gone=False).waits == ""


def test_client_waves_are_combined() -> None:
    both = stay(failed=1) + ClientReport(Outcome(6, 2, "no route"), [SLOW])
    assert both.outcome == Outcome(136, 3, "no route")
    assert both.longest_stall(Instant(19.0), Instant(21.0)) == SLOW.waited


SLOW = ProbeReply(Instant(20.0), Seconds(4.0))


def test_probe_log_excludes_its_pause() -> None:
    lines = ["0 1 21500 0 1700000010 500000", "0 2 160000 0 1700000010 700000", ""]
    read = answers_of(lines, 1_700_000_000.0)
    assert [(round(each.at, 6), round(each.waited, 6)) for each in read] == [(10.5, 0.0015), (10.7, 0.14)]
    with pytest.raises(PgbenchError, match="cannot parse a line of pgbench's log: 'nonsense'"):
        answers_of(["nonsense"], 0.0)


def test_longest_stall_within_span_counts() -> None:
    noticed = ClientReport(
        Outcome(3, 0, ""), [ProbeReply(Instant(at), Seconds(took)) for at, took in ((1, 0.9), (5, 0.2), (6, 0.1))]
    )
    assert noticed.longest_stall(Instant(4.0), Instant(7.0)) == 0.2
    assert noticed.longest_stall(Instant(5.5), Instant(7.0)) == 0.1
    assert noticed.longest_stall(Instant(7.0), Instant(9.0)) is None


def stay(failed: int = 0) -> ClientReport:
    answers = [ProbeReply(Instant(2.4), Seconds(0.139)), ProbeReply(Instant(30.0), Seconds(2.0))]
    return ClientReport(Outcome(130, failed, ""), answers)


MOVED = ObservedMove(VM, "node-1", "node-2", "Succeeded", "", "", 930, 41, Instant(2.0), Instant(3.0))
POINT = MigrationPoint("default/neighbour-1", "node-1", "node-2", True, "", 930, 41, 139.0, 0)


def test_move_is_reported_with_client_stalls() -> None:
    assert points([MOVED], {VM: stay()}) == [POINT]
    assert points([MOVED], {}) == [
        MigrationPoint("default/neighbour-1", "node-1", "node-2", True, "", 930, 41, None, 0)
    ]


@pytest.mark.parametrize(
    ("migrations", "problems"),
    [
        (None, []),
        ([POINT], []),
        ([], ["no VM moved to another node"]),
        (points([MOVED], {VM: stay(failed=2)}), ["2 transactions of default/neighbour-1 failed while it moved"]),
        (
            points([ObservedMove(VM, "node-1", "node-2", "Failed", "time-out", ended=Instant(1.0))], {VM: stay()}),
            ["no VM moved to another node", "default/neighbour-1: time-out"],
        ),
    ],
)
def test_success_needs_a_move_without_a_failed_transaction(
    migrations: list[MigrationPoint] | None, problems: list[str]
) -> None:
    small, large = Resources.parse(1, "256Mi"), Resources.parse(4, "1Gi")
    watched = Observations(load_began=Seconds(10.0), load_ended=Seconds(30.0), shrunk_at=Seconds(45.0), transactions=9)
    for at, size in ((2.0, small), (12.5, large), (45.0, small), (60.0, large)):
        watched.record(Seconds(at), size)
    watched.migrations = migrations
    outcome = report(watched, Seconds(90.0))
    assert (outcome.problems, outcome.shrank_to) == (problems, 1.0)


def test_client_failures_without_move_count() -> None:
    other = ObjectName("default", "neighbour-2")
    refused = ClientReport(Outcome(0, 0, "pgbench ended with exit code 1: no route"))
    assert client_failures([MOVED], {VM: stay(), other: stay()}) == []
    assert client_failures([MOVED], {VM: stay(failed=2), other: stay(failed=3)}) == [
        "3 transactions of default/neighbour-2 failed"
    ]
    found = client_failures([MOVED], {VM: refused})
    assert found == ["clients of default/neighbour-1: pgbench ended with exit code 1: no route"]
    seen = Observations(load_began=Seconds(1.0), load_ended=Seconds(2.0), transactions=9, migrations=[POINT])
    for at, size in ((0.5, "1"), (1.5, "2"), (3.0, "1")):
        seen.record(Seconds(at), Resources.parse(size, "1Gi"))
    seen.client_failures = found
    assert (report(seen, Seconds(4.0)).success, report(seen, Seconds(4.0)).problems) == (False, found)


NODE: Json = {
    "name": "node-1",
    "reserved": {"cpu": "5", "mem": "1Gi"},
    "total": {"cpu": "6", "mem": "3Gi"},
    "watermark": {"cpu": "5400m", "mem": "2Gi"},
    "pods": [{"vm": "default/demo"}, {"vm": "default/neighbour-1"}],
}


def test_migrating_vm_shows_on_both_nodes() -> None:
    running = ObservedMove(VM, "node-1", "node-2", "Running", progress="60 %", began=Instant(2.0))
    name, picture, vms = fleet_row(NODE, [running])
    assert (name, vms) == ("node-1", "demo  neighbour-1 ⇢ node-2 60 %")
    assert picture == "████████████████████·│·· 5.00/6.00 vCPU"
    other: Json = {**NODE, "name": "node-2", "pods": [{"vm": "default/neighbour-1"}]}
    assert fleet_row(other, [running])[2] == "⇠ neighbour-1"
    assert fleet_row(NODE, [MOVED])[2] == "demo  neighbour-1"


def test_user_starts_and_cancels_a_migration() -> None:
    order = migration_of(VM)
    assert (order["spec"], order["metadata"]) == (
        {"vmName": "neighbour-1", "completionTimeout": 600},
        {"generateName": "neighbour-1-", "namespace": "default"},
    )
    assert [is_under_way(migration(phase), VM) for phase in ("", "Pending", "Running", "Succeeded", "Failed")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert not is_under_way(migration("Running"), ObjectName("default", "demo"))
    assert not is_under_way(migration("Running"), ObjectName("other", "neighbour-1"))
