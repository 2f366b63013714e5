"""Progress of a cluster while it comes up: one JSON line for each step begun, done or failed."""

from __future__ import annotations

import os
import sys
from enum import StrEnum

import msgspec


class StepState(StrEnum):
    """State of a step."""

    BEGUN = "begun"
    NOTE = "note"
    DONE = "done"
    FAILED = "failed"
    READY = "ready"


class Step(msgspec.Struct, frozen=True):
    """One line. ``log`` is the file to look into if a step failed."""

    name: str
    state: StepState
    text: str = ""
    log: str = ""


class StepFailedError(Exception):
    """A part of the cluster did not come up; the message says what to do, ``log`` is the file that tells more."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class Progress:
    """Writes steps to standard output up to ``READY``, and then no more."""

    def __init__(self) -> None:
        self._name = ""
        self._open = True

    def begin(self, name: str) -> None:
        """The step ``name`` begins."""
        self._name = name
        self._write(StepState.BEGUN)

    def note(self, text: str) -> None:
        """Something to know about the current step."""
        self._write(StepState.NOTE, text)

    def done(self, text: str = "") -> None:
        """The current step is done; ``text`` is its outcome."""
        self._write(StepState.DONE, text)

    def failed(self, error: StepFailedError) -> None:
        """The current step failed, and the start of the cluster with it."""
        self._write(StepState.FAILED, str(error), error.log)
        self._open = False

    def ready(self) -> None:
        """The cluster is up; nothing is written after this."""
        self._write(StepState.READY)
        self._open = False

    def _write(self, state: StepState, text: str = "", log: str = "") -> None:
        if not self._open:
            return
        try:
            # Unbuffered: the command that reads this shows each step as it happens.
            os.write(sys.stdout.fileno(), msgspec.json.encode(Step(self._name, state, text, log)) + b"\n")
        except BrokenPipeError:
            # Cleared first: reporting the failure below must not write to the broken pipe again.
            self._open = False
            raise StepFailedError("the command that asked for this cluster has gone") from None
