"""Runs a command's coroutine: Ctrl-C and SIGTERM cancel it, and it cleans up before the command ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Final

import typer

from deploy.kube.client import ApiError, ApiUnavailableError
from deploy.local.cluster.control import NoAnswerError
from deploy.local.cluster.spec import SpecError
from protocol.runtime.credentials import CredentialsError
from scripts.autoscale.demonstration.pgbench import PgbenchError
from scripts.autoscale.site import SiteError
from scripts.autoscale.terminal.visible import visible_lines

_BY_SIGNAL: Final = 128
INTERRUPTED: Final = _BY_SIGNAL + signal.SIGINT
_SAID: Final = (CredentialsError, ApiError, ApiUnavailableError, NoAnswerError, SiteError, SpecError, PgbenchError)
"""Errors that are printed without a traceback."""


def run(job: Coroutine[object, object, int]) -> None:
    """Runs ``job`` and exits with its result, or with 128 and the number of the signal that ended it (130: Ctrl-C).

    Call it on the main thread.
    """
    raise typer.Exit(asyncio.run(_guarded(job)))


async def _guarded(job: Coroutine[object, object, int]) -> int:
    task: asyncio.Future[int] = asyncio.ensure_future(job)
    ended_by = 0

    def interrupt(number: int) -> None:
        nonlocal ended_by
        if ended_by:
            os._exit(_BY_SIGNAL + number)  # a second signal: exit now; the kernel ends the children with this process
        ended_by = number
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupt, number)
    try:
        return await task
    except (*_SAID, ExceptionGroup) as error:
        cause = _innermost(error)
        if not isinstance(cause, _SAID):
            raise
        typer.echo(f"autoscale: {visible_lines(str(cause))}", err=True)
        return 1
    except asyncio.CancelledError:
        if not ended_by:
            raise
        return _BY_SIGNAL + ended_by


def _innermost(error: BaseException) -> BaseException:
    return _innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
