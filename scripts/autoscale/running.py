"""Runs a command's coroutine: Ctrl-C and SIGTERM cancel it, and it cleans up before the command ends."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Final, ParamSpec

import typer

from deploy.local.cluster.control import ControlError
from deploy.local.cluster.folder import AlreadyRunningError, clusters_root
from deploy.local.cluster.spec import SpecError
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.proxies import ProxyError
from protocol.runtime.credentials import CredentialsError
from protocol.runtime.error_groups import innermost
from scheduler_plugin.history.ports import HistoryError
from scripts.autoscale.demonstration.pgbench import PgbenchError
from scripts.autoscale.site import SiteError
from scripts.autoscale.terminal.api_failures import api_failure
from scripts.autoscale.terminal.visible import visible_lines

P = ParamSpec("P")

_BY_SIGNAL: Final = 128
INTERRUPTED: Final = _BY_SIGNAL + signal.SIGINT
CRASHED: Final = 70
"""The exit status of an internal error, and of nothing else (``EX_SOFTWARE``)."""

_EXPECTED_ERRORS: Final = (
    *(AlreadyRunningError, CredentialsError, HistoryError),
    *(ControlError, PgbenchError, ProxyError, SiteError, SpecError),
)
"""Errors that are printed without a traceback."""
_SYSTEM_ERRORS: Final = {
    errno.EACCES: "",
    errno.EDQUOT: "",
    errno.EEXIST: "",
    errno.EISDIR: "",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "",
    errno.ENOENT: "",
    errno.ENOSPC: "",
    errno.ENOTDIR: "",
    errno.EPERM: "",
    errno.EROFS: "",
}
"""Errors of the operating system that the user can fix, with a remedy if it is not obvious."""


def reason_of(error: BaseException) -> str:
    """Reason why a command failed, in one line; empty if the error is a bug in the command."""
    cause = innermost(error)
    if isinstance(cause, ApiError):
        return api_failure(cause)
    if isinstance(cause, _EXPECTED_ERRORS):
        return str(cause)
    # Any other error is a bug, which needs its traceback.
    if not isinstance(cause, OSError) or cause.errno not in _SYSTEM_ERRORS:
        return ""
    path, remedy = cause.filename, _SYSTEM_ERRORS[cause.errno]
    # The folder of clusters can be moved; other paths cannot.
    folder = state_folder()
    if (
        folder
        and isinstance(path, str | os.PathLike)
        and (folder.is_relative_to(path) or Path(path).is_relative_to(folder))
    ):
        remedy = remedy or "set AUTOSCALE_HOME to a writable folder"
    return f"{f'{path}: ' if path else ''}{cause.strerror}{remedy and '; '}{remedy}"


def state_folder() -> Path | None:
    """The folder of local clusters; None if there is no home folder."""
    try:
        return clusters_root()
    except OSError:
        return None


def run(job: Coroutine[object, object, int], *, failed: int = 1) -> None:
    """Runs ``job`` and exits with its result, or with 128 plus the number of the signal that ended it (130: Ctrl-C).

    ``failed`` is the exit status after an expected error. Call it on the main thread.
    """
    raise typer.Exit(asyncio.run(_guarded(job, failed)))


def runs(job: Callable[P, Coroutine[object, object, int]]) -> Callable[P, None]:
    """Decorates a coroutine function as a command; see ``run``."""

    @wraps(job)
    def command(*args: P.args, **options: P.kwargs) -> None:
        run(job(*args, **options))

    return command


async def _guarded(job: Coroutine[object, object, int], failed: int) -> int:
    task: asyncio.Future[int] = asyncio.ensure_future(job)
    ended_by = 0

    def interrupt(number: int) -> None:
        nonlocal ended_by
        if ended_by:
            os._exit(_BY_SIGNAL + number)  # a second signal: exit now; the kernel ends the children with this process
        ended_by = number
        task.cancel()

    loop = asyncio.get_running_loop()
    # SIGHUP as well: a closed terminal must not leave a cluster behind.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupt, number)
    try:
        return await task
    except Exception as error:
        if not (reason := reason_of(error)):
            raise
        typer.echo(f"autoscale: {visible_lines(reason)}", err=True)
        return failed
    except asyncio.CancelledError:
        # Not cancelled by a signal.
        if not ended_by:
            raise
        return _BY_SIGNAL + ended_by


@asynccontextmanager
async def background(
    job: Coroutine[object, object, None], ended: Callable[[asyncio.Task[None]], None] = lambda _: None
) -> AsyncIterator[None]:
    """Runs ``job`` in the background; an error of it does not end the context. ``ended`` receives the finished task."""
    task = asyncio.create_task(job)
    # Nothing awaits the task while it runs: without the callback, its error would not be seen until the end.
    task.add_done_callback(ended)
    try:
        yield
    finally:
        task.cancel()
        # An error of the job must not hide the one that ends the context.
        await asyncio.gather(task, return_exceptions=True)
