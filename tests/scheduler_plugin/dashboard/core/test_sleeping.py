"""A VM that sleeps, on the page and in words: since when, with how many sessions, and how its last sleep ended."""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import Json
from scheduler_plugin.dashboard.core.rows import NOTHING, ZERO, vm_row
from scheduler_plugin.dashboard.core.sleeping import last_sleep, sleep_sentence
from scheduler_plugin.dashboard.explanation import database_explanation
from tests.scheduler_plugin.objects import vm

SINCE = "2026-11-27T02:10:00Z"


def asleep(phase: str = "Asleep", **report: object) -> Json:
    made: Json = vm("db", "1500m", 4)
    made["status"] = {"node": "n1", "phase": phase, "sleep": {"state": phase, "since": SINCE, **report}}
    return made


@pytest.mark.parametrize(
    ("vm", "sentence"),
    [
        (asleep(sessions=1), "asleep since 2026-11-27 02:10 UTC, 1 session open"),
        (asleep(since="yesterday"), "asleep, 0 sessions open"),
        (
            asleep("Waking", message="10.1.2.3 sent to port 5432"),
            "waking since 2026-11-27 02:10 UTC: 10.1.2.3 sent to port 5432",
        ),
        (asleep("Waking"), "waking since 2026-11-27 02:10 UTC"),
        ({"status": {"phase": "Asleep", "sleep": "unreadable"}}, "asleep, 0 sessions open"),
        ({"status": {"phase": "Running", "sleep": {"state": "Awake"}}}, ""),
    ],
)
def test_sentence_of_a_sleeper(vm: Json, sentence: str) -> None:
    assert sleep_sentence(vm) == sentence


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        (
            {"state": "Awake", "seconds": 0.314, "message": "10.1.2.3 sent"},
            "woke from its last sleep at 2026-11-27 02:10 UTC in 0.31 s: 10.1.2.3 sent",
        ),
        (
            {"state": "Restarted", "message": "image is bad"},
            "booted from its disk at 2026-11-27 02:10 UTC instead of waking, so its sessions are lost: image is bad",
        ),
        ({"state": "Refused"}, "refused the last order to sleep at 2026-11-27 02:10 UTC"),
        ({}, ""),
    ],
)
def test_sentence_of_an_earlier_sleep(report: Json, sentence: str) -> None:
    assert (
        last_sleep({"status": {"phase": "Running", "sleep": {"since": SINCE, **report} if report else {}}}) == sentence
    )
    assert last_sleep({"status": {"phase": "Asleep", "sleep": report}}) == ""


def test_messages_of_guests_are_cut() -> None:
    """A guest chooses the reason of its refusal."""
    assert len(last_sleep({"status": {"phase": "Running", "sleep": {"state": "Refused", "message": "x" * 9999}}})) < 400


def test_sleeper_uses_nothing() -> None:
    """Its row keeps the size that it wakes with, for the outline on its node."""
    row = vm_row(asleep(sessions=2))
    assert (row.use, row.wakes, row.sleep) == (ZERO, (1500, 4096), "asleep since 2026-11-27 02:10 UTC, 2 sessions open")
    running = vm("db", "1500m", 4)
    assert (vm_row(running).use, vm_row(running).wakes) == ((1500, 4096), NOTHING)


def test_explanation_begins_with_the_sleep() -> None:
    first, second, *_ = database_explanation(asleep(sessions=3), None, None)
    assert first == "default/db has nothing; it is Asleep on n1."
    assert second == "  It is asleep since 2026-11-27 02:10 UTC, 3 sessions open."
    woken = asleep("Running", state="Awake", seconds=0.2)
    assert (
        list(database_explanation(woken, None, None))[1]
        == "  It woke from its last sleep at 2026-11-27 02:10 UTC in 0.20 s."
    )


@pytest.mark.parametrize(
    ("sleep", "lines"),
    [
        (
            {"after_seconds": 900.0, "because": "awake: quiet for 30 s of 900 s"},
            ["The VM is awake: quiet for 30 s of 900 s."],
        ),
        ({"after_seconds": None, "because": "awake: its policy does not set sleep.after"}, []),
        (
            {
                "after_seconds": 900.0,
                "state": "Asleep",
                "woken_for_nothing": True,
                "woken_by": "10.1.2.3:4 sent something",
            },
            [
                "The VM's last wake was unnecessary: 10.1.2.3:4 sent something, "
                "and there has been no client activity since."
            ],
        ),
        (
            {"woken_for_nothing": True},
            ["The VM's last wake was unnecessary: something woke it, and there has been no client activity since."],
        ),
    ],
)
def test_explanation_has_the_agents_reasons(sleep: Json, lines: list[str]) -> None:
    """An agent of a release without sleep does not mention it."""
    sentences = [line.strip() for line in database_explanation(asleep("Running"), {"sleep": sleep}, None)]
    assert [line for line in sentences if line.startswith("The VM")] == lines
