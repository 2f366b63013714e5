"""Decides who may run while a guest moves between two machines (pure).

Both use one disk, so they must never run at once, and a machine that once ran behind the other's back must never be
continued. QEMU alone cannot promise that: a source whose target dies in the instant after it began to run goes on by
itself. So the target is launched standing still, and there is one moment that decides, of our own making:

    the target is *released* (told to run) only after the source itself said that all has been sent, and from that
    moment on the source is never continued. Before it, the target has never run, so the source may always go on.

What each end says in between is one row of a table:

    source \\ target     FILLING      READY        RUNS        GONE         SILENT
    SENDING             wait         wait         finish      take back    wait
    SENT                wait         release      finish      take back    wait
    KEPT                take back    take back    finish      take back    take back
    GONE                give up      give up      finish      give up      give up
    SILENT              wait         wait         finish      take back    wait
    any, called off     take back    take back    finish      take back    take back      (GONE: give up)
    any, released       wait         take back    finish      give up      wait, later give up

A released target that stands still has refused to run, so it never ran: READY is the answer to a question asked after
the order. A released one that is gone or silent may have run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class SourceSays(StrEnum):
    """State of the sending end."""

    SENDING = "sending"
    SENT = "sent"
    """All has arrived, as the other end says; the source stands still."""
    KEPT = "kept"
    """It has given the move up, and goes on or can go on."""
    GONE = "gone"
    SILENT = "silent"


class TargetSays(StrEnum):
    """State of the receiving end."""

    FILLING = "filling"
    READY = "ready"
    """It has everything and stands still."""
    RUNS = "runs"
    GONE = "gone"
    SILENT = "silent"


class HandoverStep(StrEnum):
    """Next step of a move."""

    WAIT = "wait"
    RELEASE = "release"
    """Tell the target to run. There is no way back from here unless it refuses."""
    FINISH = "finish"
    """End the source: the guest has moved."""
    TAKE_BACK = "take back"
    """End the target, and then see that the source runs."""
    GIVE_UP = "give up"
    """End both: the source cannot or must not go on, and the target cannot."""


@dataclass(frozen=True, slots=True)
class MoveView:
    """All that is known. ``is_called_off``: the move was cancelled, or its time is up. ``is_hopeless``: a
    released target has been silent for too long.
    """

    source: SourceSays
    target: TargetSays
    is_released: bool = False
    is_called_off: bool = False
    is_hopeless: bool = False


def _row(*steps: HandoverStep) -> Mapping[TargetSays, HandoverStep]:
    return dict(zip(TargetSays, steps, strict=True))


_WAIT, _FINISH, _BACK, _GIVE_UP = HandoverStep.WAIT, HandoverStep.FINISH, HandoverStep.TAKE_BACK, HandoverStep.GIVE_UP
# Rows of the table above.
_RELEASED: Final = _row(_WAIT, _BACK, _FINISH, _GIVE_UP, _WAIT)
_HELD: Final[Mapping[SourceSays, Mapping[TargetSays, HandoverStep]]] = {
    SourceSays.SENDING: _row(_WAIT, _WAIT, _FINISH, _BACK, _WAIT),
    SourceSays.SENT: _row(_WAIT, HandoverStep.RELEASE, _FINISH, _BACK, _WAIT),
    SourceSays.KEPT: _row(_BACK, _BACK, _FINISH, _BACK, _BACK),
    SourceSays.GONE: _row(_GIVE_UP, _GIVE_UP, _FINISH, _GIVE_UP, _GIVE_UP),
    SourceSays.SILENT: _row(_WAIT, _WAIT, _FINISH, _BACK, _WAIT),
}


def next_step(view: MoveView) -> HandoverStep:
    """The step that follows from the states of both ends, by the table above."""
    if view.is_released or view.target is TargetSays.RUNS:
        # A target that runs without having been released was released by another process: the source must not go on.
        step = _RELEASED[view.target]
        return HandoverStep.GIVE_UP if step is HandoverStep.WAIT and view.is_hopeless else step
    if view.is_called_off:
        # The target has not run, so the source may go on, unless it is gone.
        return HandoverStep.GIVE_UP if view.source is SourceSays.GONE else HandoverStep.TAKE_BACK
    return _HELD[view.source][view.target]


class Resumption(StrEnum):
    """The way in which a source resumes once its target is gone for good."""

    DONE = "done"
    CONTINUE = "continue"
    WAIT = "wait"


HELD_BY_THE_MOVE: Final = frozenset({"finish-migrate", "postmigrate", "paused"})
"""The run states of a source that stands still because it has sent its guest."""


def source_says(status: str) -> SourceSays:
    """Meaning of QEMU's status of an outgoing migration; without one it has not begun."""
    match status:
        case "completed":
            return SourceSays.SENT
        # QEMU has given the move up; the source still has the guest.
        case "failed" | "cancelled":
            return SourceSays.KEPT
        case _:
            return SourceSays.SENDING


def target_says(run_state: str) -> TargetSays:
    """Meaning of a receiving QEMU's run state; any but waiting and ready proves that it has run."""
    match run_state:
        case "inmigrate":
            return TargetSays.FILLING
        # QEMU's versions differ in the state of a machine that has everything and was launched with -S.
        case "paused" | "prelaunch":
            return TargetSays.READY
        case _:
            return TargetSays.RUNS


def resumption(source: SourceSays, run_state: str) -> Resumption:
    """The way to resume a source in this run state; one that was paused for its own reasons stays paused."""
    if run_state not in HELD_BY_THE_MOVE:
        return Resumption.DONE
    # A move that has not ended yet still holds the guest.
    return Resumption.WAIT if source in {SourceSays.SENDING, SourceSays.SILENT} else Resumption.CONTINUE
