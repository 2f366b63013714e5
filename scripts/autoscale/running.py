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

INTERRUPTED: Final = 130
_SAID: Final = (CredentialsError, ApiError, ApiUnavailableError, NoAnswerError, SiteError, SpecError, PgbenchError)
"""Errors that are printed without a traceback."""


def run(job: Coroutine[object, object, int]) -> None:
    """Runs ``job`` and exits with its result, or with 130 if it was interrupted. Call it on the main thread."""
    raise typer.Exit(asyncio.run(_guarded(job)))


async def _guarded(job: Coroutine[object, object, int]) -> int:
    task: asyncio.Future[int] = asyncio.ensure_future(job)
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            os._exit(INTERRUPTED)  # a second signal: exit now; the kernel ends the children with this process
        interrupted = True
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupt)
    try:
        return await task
    except (*_SAID, ExceptionGroup) as error:
        cause = _innermost(error)
        if not isinstance(cause, _SAID):
            raise
        typer.echo(f"autoscale: {cause}", err=True)
        return 1
    except asyncio.CancelledError:
        if not interrupted:
            raise
        return INTERRUPTED


def _innermost(error: BaseException) -> BaseException:
    return _innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
