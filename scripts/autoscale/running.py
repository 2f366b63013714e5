"""How a command runs its coroutine: Ctrl-C and SIGTERM cancel it, and it cleans up before the command ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Final

import typer

INTERRUPTED: Final = 130


def run(job: Coroutine[object, object, int]) -> None:
    """Runs ``job`` and exits with what it returns; with 130 where it was interrupted. Call it on the main thread."""
    raise typer.Exit(asyncio.run(_guarded(job)))


async def _guarded(job: Coroutine[object, object, int]) -> int:
    task = asyncio.ensure_future(job)
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        if not interrupted:
            raise
        return INTERRUPTED
