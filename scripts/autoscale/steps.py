"""Shows the start of a cluster: a line per step, with a spinner on a terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from deploy.local.cluster.launch import log_tail
from deploy.local.cluster.progress import Step, StepFailedError, StepState


class StepView:
    """A context manager that is given every step; several may be under way at a time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Without a terminal there is no spinner, and notes become lines.
        self._status: Status | None = console.status("starting") if console.is_terminal else None
        self._since: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, step: Step) -> None:
        """One step, as it happens."""
        match step.state:
            case StepState.BEGUN:
                self._since[step.name] = time.monotonic()
                self._spin(f"{step.name} …")
            case StepState.NOTE:
                self._spin(f"{step.name}: {step.text}")
                if self._status is None:
                    self._console.print(f"  … {step.name}: {escape(step.text)}", soft_wrap=True)
            case StepState.DONE:
                # A step that was never begun took no time.
                took = time.monotonic() - self._since.pop(step.name, time.monotonic())
                self._console.print(
                    f"  [green]✓[/green] {step.name} [dim]{took:.1f} s[/dim]  {escape(step.text)}", soft_wrap=True
                )
            case StepState.READY | StepState.FAILED:
                return

    def _spin(self, text: str) -> None:
        if self._status is not None:
            self._status.update(escape(text))


def show_failure(console: Console, error: StepFailedError) -> None:
    """Prints the failure, the last lines of the failed part's log, and its path."""
    console.print(f"[bold red]✗ {escape(str(error))}[/bold red]", soft_wrap=True)
    if tail := log_tail(error.log) if error.log else "":
        console.print(f"[dim]the end of {error.log}:[/dim]", soft_wrap=True)
        console.print(escape(tail), soft_wrap=True)
