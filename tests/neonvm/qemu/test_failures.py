"""QEMU events and run states of a failed guest."""

import pytest

from deploy.neonvm.qemu.reports import FAILURE_EVENTS, failure_in_event, failure_in_run_state


@pytest.mark.parametrize(
    ("event", "data", "failure"),
    [
        ("GUEST_PANICKED", {"action": "poweroff"}, "its kernel panicked"),
        ("RESET", {"guest": True, "reason": "guest-reset"}, "its machine was reset"),
        ("SHUTDOWN", {"guest": True, "reason": "guest-panic"}, "its kernel panicked"),
        ("SHUTDOWN", {"guest": False, "reason": "host-error"}, "it was shut down (host-error)"),
        ("SHUTDOWN", None, "it was shut down (for an unknown reason)"),
        ("SHUTDOWN", {"guest": False, "reason": "host-qmp-quit"}, ""),
        ("SHUTDOWN", {"guest": False, "reason": "host-signal"}, ""),
        ("STOP", None, ""),
    ],
)
def test_event_gives_failure_reason(event: str, data: object, failure: str) -> None:
    assert event in FAILURE_EVENTS
    assert failure_in_event(event, data) == failure


def test_pause_is_failure_unless_ordered() -> None:
    failed = {state for state in _RUN_STATES if failure_in_run_state(state)}
    assert failed == {"internal-error", "guest-panicked", "watchdog"}


_RUN_STATES = (
    *("debug", "inmigrate", "internal-error", "io-error", "paused", "postmigrate", "prelaunch", "finish-migrate"),
    *("restore-vm", "running", "save-vm", "shutdown", "suspended", "watchdog", "guest-panicked", "colo"),
)
