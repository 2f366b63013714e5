"""uvicorn's server, which ends as soon as it is asked to and its clients are answered.

Signals belong to the program.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import uvicorn

LOG: Final = logging.getLogger("autoscale.serving")

SECOND: Final = 1.0
"""How often uvicorn renews the date in its answers, in seconds."""
LOOK: Final = 0.005
"""Seconds between two checks whether all clients have gone, once the server ends."""

TURNS: Final = 10
"""Turns of the event loop, enough for an accepted socket to become a connection and for a closed one to end."""


class PromptServer(uvicorn.Server):
    """A server that is ended by ``end``; ``config.timeout_graceful_shutdown`` bounds how long open requests take."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()

    def end(self) -> None:
        """Make ``serve`` return once open requests are answered."""
        self.should_exit = True
        self._told.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signals to the program."""
        yield

    async def main_loop(self) -> None:
        """Return when the server has to stop."""
        # uvicorn checks ten times a second whether it has to end; ``end`` wakes this loop, which only ticks to renew
        # the date.
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(SECOND):
                    await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, lets open requests be answered, and cancels those that take too long."""
        # Closed first, so that no further clients come while the others are answered.
        for listening in (*self.servers, *(sockets or ())):
            listening.close()
        notified = self._no_further_requests(set())
        # A socket that was accepted just before becomes a connection only after some turns of the loop.
        await _some_turns()
        self._no_further_requests(notified)
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - uvicorn has no event
                    await asyncio.sleep(LOOK)
                await _some_turns()
        except TimeoutError:
            LOG.warning("open requests cancelled", extra={"requests": len(self.server_state.tasks)})
            for task in self.server_state.tasks:
                task.cancel()

    def _no_further_requests(self, told: set[Any]) -> set[Any]:
        """Have connections, except those in ``told``, end after the current answer; return those notified now."""
        fresh = self.server_state.connections - told
        for connection in fresh:
            connection.shutdown()
        return fresh


async def _some_turns() -> None:
    """Let accepted sockets become connections, and closed ones end: each takes the loop a few turns."""
    await asyncio.sleep(LOOK)
    for _ in range(TURNS):
        await asyncio.sleep(0)
