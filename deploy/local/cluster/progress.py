"""Progress of a cluster's startup: one JSON line per event."""

from __future__ import annotations

import os
import sys
from enum import StrEnum

import msgspec


class StepState(StrEnum):
    """State of a step; ``READY`` means that the whole cluster is up."""

    BEGUN = "begun"
    NOTE = "note"
    DONE = "done"
    FAILED = "failed"
    READY = "ready"


class Step(msgspec.Struct, frozen=True):
    """One progress line. ``log`` is the log file of a failed step."""

    name: str
    state: StepState
    text: str = ""
    log: str = ""


class StepFailedError(Exception):
    """A step of the startup failed; ``log`` is the file with details, if any."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class Progress:
    """Writes steps to standard output, until the cluster is ready or failed."""

    def __init__(self) -> None:
        self._name = ""
        self._open = True

    def begin(self, name: str) -> None:
        """Begin step ``name``."""
        self._name = name
        self._write(StepState.BEGUN)

    def note(self, text: str) -> None:
        """Report progress of the current step."""
        self._write(StepState.NOTE, text)

    def done(self, text: str = "") -> None:
        """Finish the current step; ``text`` is its result."""
        self._write(StepState.DONE, text)

    def failed(self, error: StepFailedError) -> None:
        """Report that the current step, and with it the cluster, failed."""
        self._write(StepState.FAILED, str(error), error.log)
        self._open = False

    def ready(self) -> None:
        """Report that the cluster is up; later calls have no effect."""
        self._write(StepState.READY)
        self._open = False

    def _write(self, state: StepState, text: str = "", log: str = "") -> None:
        if not self._open:
            return
        try:
            # Unbuffered, to show each step as it happens.
            os.write(sys.stdout.fileno(), msgspec.json.encode(Step(self._name, state, text, log)) + b"\n")
        except BrokenPipeError:
            self._open = False
            raise StepFailedError("the command that started this cluster has exited") from None
