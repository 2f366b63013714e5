"""The demonstration's verdict, pgbench's words, and the pictures."""

import os
from pathlib import Path

import pytest
from rich.console import Console

from protocol.units import Bytes, Resources, Seconds
from scripts.autoscale.demo import _busy_host
from scripts.autoscale.demonstration import pgbench
from scripts.autoscale.demonstration.fleet import bar, sparkline
from scripts.autoscale.demonstration.pgbench import (
    DatabaseServer,
    Outcome,
    PgbenchError,
    find_pgbench,
    outcome_of,
    run_pgbench,
    tps_of,
)
from scripts.autoscale.demonstration.report import LoadPoint, Observations, RoomPoint, SizePoint, report
from scripts.autoscale.demonstration.screen import Screen, line
from scripts.autoscale.demonstration.watcher import Snapshot

SMALL, LARGE = Resources.parse(1, "256Mi"), Resources.parse(4, "1Gi")


def seen(*sizes: tuple[float, Resources], transactions: int = 900, failed: int = 0) -> Observations:
    found = Observations(guests="QEMU", network="namespaces", load_began=Seconds(10.0), load_ended=Seconds(30.0))
    for at, size in sizes:
        found.record(Seconds(at), size)
    found.transactions, found.failed = transactions, failed
    found.tps.append(LoadPoint(11.0, 120.0))
    return found


def test_growth_and_shrink_without_failures_succeed() -> None:
    outcome = report(seen((2.0, SMALL), (12.5, LARGE), (45.0, SMALL)), Seconds(50.0))
    assert outcome.success
    assert (outcome.started_at, outcome.grew_to, outcome.shrank_to) == (1.0, 4.0, 1.0)
    assert (outcome.transactions, outcome.failed, outcome.reaction_seconds) == (900, 0, 2.5)
    assert outcome.sizes[1] == SizePoint(12.5, 4.0, 1024**3)
    assert outcome.problems == []


@pytest.mark.parametrize(
    ("observed", "problem"),
    [
        (seen((2.0, SMALL)), "the VM did not grow beyond the 1 vCPU that it had before the load"),
        (
            seen((2.0, SMALL), (12.0, LARGE)),
            "the VM did not shrink: it reached 4 cpu, 1Gi and has 4 cpu, 1Gi at the end",
        ),
        (seen((2.0, SMALL), (12.0, LARGE), (40.0, SMALL), failed=3), "3 transactions failed"),
        (seen((2.0, SMALL), (12.0, LARGE), (40.0, SMALL), transactions=0), "no transactions were run"),
        (Observations(load_problem="no KVM"), "no KVM"),
        (Observations(), "the run ended before the load"),
    ],
)
def test_each_failure_is_named(observed: Observations, problem: str) -> None:
    outcome = report(observed, Seconds(50.0))
    assert not outcome.success
    assert problem in outcome.problems


@pytest.mark.parametrize(
    ("room", "problems"),
    [
        (RoomPoint("neighbour", "node-1", 2.0, "node-1 is full", 1.5), []),
        (
            RoomPoint("neighbour", "node-1", None, "", 1.5),
            ["no growth of the pod was denied, although neighbour had filled node-1"],
        ),
        (
            RoomPoint("neighbour", "node-1", 2.0, "node-1 is full", None),
            ["the pod did not grow after neighbour left node-1"],
        ),
    ],
)
def test_pod_must_be_denied_and_grow_later(room: RoomPoint, problems: list[str]) -> None:
    observed = seen((2.0, SMALL), (12.0, LARGE), (40.0, SMALL))
    observed.database, observed.room = "pod", room
    outcome = report(observed, Seconds(50.0))
    assert (outcome.database, outcome.room, outcome.problems) == ("pod", room, problems)


def test_simulated_guests_claim_no_transactions() -> None:
    observed = seen((2.0, SMALL), (12.0, LARGE), (40.0, SMALL), transactions=0)
    observed.is_simulated = True
    outcome = report(observed, Seconds(50.0))
    assert (outcome.success, outcome.note) == (True, "simulated guests replay a load: no transactions were run")


def test_growth_before_load_is_no_reaction() -> None:
    outcome = report(seen((2.0, SMALL), (5.0, LARGE), (8.0, SMALL), (13.0, LARGE), (40.0, SMALL)), Seconds(50.0))
    assert (outcome.reaction_seconds, outcome.seconds_until_first_growth) == (3.0, 5.0)


def test_newest_pgbench_of_debian_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``9.6`` came before ``16``, compared as text."""
    for version in ("9.6", "16", "10"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "pgbench").touch()
    monkeypatch.setattr(pgbench, "_DEBIAN", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert find_pgbench() == str(tmp_path / "16" / "bin" / "pgbench")


def test_pgbench_reports_progress_in_lines() -> None:
    assert tps_of("progress: 18.0 s, 118.5 tps, lat 70.629 ms stddev 62.562, 0 failed") == 118.5
    assert tps_of("starting vacuum...end.") is None


def test_broken_connections_count_as_failed_transactions() -> None:
    good = ["number of transactions actually processed: 1140", "number of failed transactions: 0 (0.000%)"]
    assert outcome_of(good, 0) == Outcome(1140, 0, "")
    broken = ["pgbench: error: client 3 aborted in command 8 (SQL) of script 0", *good, "Run was aborted; …"]
    assert outcome_of(broken, 2) == Outcome(1140, 1, "pgbench ended with exit code 2: Run was aborted; …")
    assert outcome_of([], 1).problem == "pgbench ended with exit code 1: no output"


async def test_unresponsive_database_ends_pgbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pgbench").write_text("#!/bin/sh\necho starting vacuum\nexec sleep 600\n")
    (tmp_path / "pgbench").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    heard: list[str] = []
    with pytest.raises(PgbenchError) as caught:
        await run_pgbench(DatabaseServer("127.0.0.1", 5432), [], heard.append, Seconds(0.3))
    assert str(caught.value).startswith("pgbench has not ended after 0.3 s: the database does not respond")
    assert heard in ([], ["starting vacuum"])


def test_bars_show_used_and_allocated() -> None:
    assert bar(1.0, 2.0, 4.0, 8) == "██▒▒····"
    assert bar(None, 4.0, 4.0, 4) == "▒▒▒▒"
    assert bar(9.0, 1.0, 4.0, 4) == "████"
    assert bar(1.0, 1.0, 0.0, 4) == "····"


def test_sparklines_scale_to_the_greatest() -> None:
    assert sparkline([0.0, 2.0, 4.0]) == "▁▅█"
    assert sparkline([]) == ""
    assert sparkline([0.0]) == "▁"


SNAPSHOT = Snapshot("Running", "n1", SMALL, LARGE, True, 0.5, Bytes(1024**2), "sized for cpu busy")


def test_a_plain_line_says_everything_in_one() -> None:
    assert line(Seconds(12.0), "load", SNAPSHOT, 99.6) == "  12.0 s  load        1 vCPU 256Mi, 0.5 busy, 100 tps"
    pending = Snapshot("Pending", "", None, None, False, None, None, "", "waiting for the pod to run")
    assert line(Seconds(1.0), "boot", pending, None).endswith("no guest yet: waiting for the pod to run")
    assert line(Seconds(1.0), "boot", Snapshot("Pending", "", None, None, False, None, None, ""), None).endswith(
        "no guest yet"
    )


def test_pipe_gets_a_line_per_change() -> None:
    console = Console(width=200, force_terminal=False, record=True)
    with Screen(console, "demo") as screen:
        for tenths in range(60):
            screen.show(Seconds(tenths / 10), "load", SNAPSHOT, None)
        screen.add_event(Seconds(6.0), "the load has ended")
    said = console.export_text().splitlines()
    assert [each.split(" s  ")[0].strip() for each in said] == ["0.0", "3.0", "6.0"]


def test_in_a_terminal_there_is_a_picture() -> None:
    console = Console(width=100, force_terminal=True, record=True)
    screen = Screen(console, "demo")
    screen.events.append("4 cpu, 1Gi: growing for cpu busy")
    console.print(screen._picture(Seconds(3.0), "load", SNAPSHOT, 12.0))
    said = console.export_text()
    for expected in (
        "demo · 3 s · load · Running on n1",
        "0.5 busy of 1 (at most 4)",
        "growing for cpu busy",
        "12 trans",
    ):
        assert expected in said


def test_failure_on_busy_machine_names_load() -> None:
    assert _busy_host(13.4, 2).startswith("this machine is busy (load 13 on 2 CPUs): ")
    assert _busy_host(4.0, 2) == ""
