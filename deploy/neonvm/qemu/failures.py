"""Reads from QEMU's events and states that a guest cannot go on (pure).

A guest cannot go on once it was shut down, reset or has panicked, or stands still for a reason that no order of ours
lifts. A guest that stands still because it is being moved, or that we end ourselves, has not failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FAILURE_EVENTS: Final = ("GUEST_PANICKED", "SHUTDOWN", "RESET", "STOP")
"""The events after which a guest may have failed; after ``STOP`` the run state decides."""

_SHUTDOWNS: Final[Mapping[str, str]] = {
    "host-qmp-quit": "",
    "host-signal": "",
    "host-qmp-system-reset": "its machine was reset",
    "guest-shutdown": "it switched itself off",
    "guest-reset": "it restarted itself",
    "guest-panic": "its kernel panicked",
}
"""QEMU's reasons for ``SHUTDOWN``; the empty ones are ours."""

_STANDSTILLS: Final[Mapping[str, str]] = {
    # What KVM reports for an instruction that it cannot emulate.
    "internal-error": "internal-error: the CPU did something that this machine cannot run",
    "io-error": "io-error: its disk cannot be read or written",
    "guest-panicked": "its kernel panicked",
    "watchdog": "its watchdog has stopped it",
}


def failure_in_event(event: str, data: object) -> str:
    """The reason why a guest cannot go on after ``event`` of ``FAILURE_EVENTS``; empty if it can, and for ``STOP``."""
    match event:
        case "GUEST_PANICKED":
            return "its kernel panicked"
        case "RESET":
            return "its machine was reset"
        case "SHUTDOWN":
            reason = str(data.get("reason", "")) if isinstance(data, Mapping) else ""
            # A reason that a newer QEMU adds still ends the guest.
            return _SHUTDOWNS.get(reason, f"it was shut down ({reason or 'for an unknown reason'})")
    return ""


def failure_in_run_state(run_state: str) -> str:
    """The reason why a guest in this run state of QEMU cannot go on; empty if it can."""
    return _STANDSTILLS.get(run_state, "")
