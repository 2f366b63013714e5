"""Decides which end may run during a live migration (pure).

Both ends use one disk, so they must never run at the same time, and an end must not resume after the other has run.
QEMU alone does not guarantee that: if the target dies right after it started to run, the source resumes on its own. So
the target is launched paused (-S), and the handover has one point of no return:

    the target is *released* (told to run) only after the source has reported that everything was sent, and from then
    on the source is never resumed. Until then the target has never run, so the source may always resume.

The next step by the states of both ends:

    source \\ target     FILLING      READY        RUNS        GONE         SILENT
    SENDING             wait         wait         finish      take back    wait
    SENT                wait         release      finish      take back    wait
    KEPT                take back    take back    finish      take back    take back
    GONE                give up      give up      finish      give up      give up
    SILENT              wait         wait         finish      take back    wait
    any, cancelled      take back    take back    finish      take back    take back      (GONE: give up)
    any, released       wait         take back    finish      give up      wait, later give up

A released target that is still paused has refused to run, so it never ran: READY was reported after the order. A
released target that is gone or silent may have run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class SourceState(StrEnum):
    """State of the source."""

    SENDING = "sending"
    SENT = "sent"
    """The target has acknowledged everything; the source is paused."""
    KEPT = "kept"
    """It has aborted the migration, and runs or can resume."""
    GONE = "gone"
    SILENT = "silent"


class TargetState(StrEnum):
    """State of the target."""

    FILLING = "filling"
    READY = "ready"
    """It has received everything and is paused."""
    RUNS = "runs"
    GONE = "gone"
    SILENT = "silent"


class HandoverStep(StrEnum):
    """Next step of a migration."""

    WAIT = "wait"
    RELEASE = "release"
    """Tell the target to run. There is no way back from here unless it refuses."""
    FINISH = "finish"
    """End the source: the guest runs on the target."""
    TAKE_BACK = "take back"
    """Kill the target, then resume the source."""
    GIVE_UP = "give up"
    """Kill both: the source cannot or must not resume, and the target cannot run."""


@dataclass(frozen=True, slots=True)
class MigrationView:
    """States of both ends of a migration. ``is_released``: the target was told to run. ``is_cancelled``: the migration
    was cancelled or has timed out. ``is_hopeless``: a released target has been silent for too long.
    """

    source: SourceState
    target: TargetState
    is_released: bool = False
    is_cancelled: bool = False
    is_hopeless: bool = False


def _row(*steps: HandoverStep) -> Mapping[TargetState, HandoverStep]:
    return dict(zip(TargetState, steps, strict=True))


_WAIT, _FINISH, _BACK, _GIVE_UP = HandoverStep.WAIT, HandoverStep.FINISH, HandoverStep.TAKE_BACK, HandoverStep.GIVE_UP
# Rows of the table above.
_RELEASED: Final = _row(_WAIT, _BACK, _FINISH, _GIVE_UP, _WAIT)
_HELD: Final[Mapping[SourceState, Mapping[TargetState, HandoverStep]]] = {
    SourceState.SENDING: _row(_WAIT, _WAIT, _FINISH, _BACK, _WAIT),
    SourceState.SENT: _row(_WAIT, HandoverStep.RELEASE, _FINISH, _BACK, _WAIT),
    SourceState.KEPT: _row(_BACK, _BACK, _FINISH, _BACK, _BACK),
    SourceState.GONE: _row(_GIVE_UP, _GIVE_UP, _FINISH, _GIVE_UP, _GIVE_UP),
    SourceState.SILENT: _row(_WAIT, _WAIT, _FINISH, _BACK, _WAIT),
}


def next_step(view: MigrationView) -> HandoverStep:
    """The next step by the table above."""
    if view.is_released or view.target is TargetState.RUNS:
        # If we did not release a running target, another process did: the source must not resume.
        step = _RELEASED[view.target]
        return HandoverStep.GIVE_UP if step is HandoverStep.WAIT and view.is_hopeless else step
    if view.is_cancelled:
        # The target has not run, so the source may resume, unless it is gone.
        return HandoverStep.GIVE_UP if view.source is SourceState.GONE else HandoverStep.TAKE_BACK
    return _HELD[view.source][view.target]


UNDER_WAY: Final = frozenset({"setup", "active", "pre-switchover", "device"})
"""Values of QEMU's ``MigrationStatus`` for an active migration."""

PAUSED_BY_MIGRATION: Final = frozenset({"finish-migrate", "postmigrate", "paused"})
"""Run states of a source that is paused because it has sent its guest."""


def source_state(status: str) -> SourceState:
    """State of the source by ``query-migrate``; an empty status means that the migration has not started."""
    match status:
        case "completed":
            return SourceState.SENT
        # QEMU has aborted the migration; the source still has the guest.
        case "failed" | "cancelled":
            return SourceState.KEPT
        case _:
            return SourceState.SENDING


def target_state(run_state: str, *, has_run: bool = True) -> TargetState:
    """State of the target by ``query-status``; any run state not listed here means that it has run. ``has_run``: False
    if it certainly has not run.
    """
    match run_state:
        case "inmigrate":
            return TargetState.FILLING
        # With -S, the state after the incoming migration differs between QEMU versions.
        case "paused" | "prelaunch":
            return TargetState.READY
        # The target takes over this state from a source that was out of space, and would stay paused.
        case "io-error" if not has_run:
            return TargetState.READY
        case _:
            return TargetState.RUNS


def must_continue(source: SourceState, run_state: str) -> bool:
    """Return True if a source in this run state must be resumed. One paused for another reason stays paused."""
    # QEMU resumes the guest only after the migration has ended.
    return run_state in PAUSED_BY_MIGRATION and source not in {SourceState.SENDING, SourceState.SILENT}
