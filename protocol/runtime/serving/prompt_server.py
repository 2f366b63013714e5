"""uvicorn's server with prompt shutdown: it stops as soon as open requests are answered.

The program handles signals itself.
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

DATE_INTERVAL: Final = 1.0
"""Seconds between updates of the date in uvicorn's responses."""

POLL_INTERVAL: Final = 0.005
"""Seconds between checks for open connections during shutdown."""

LOOP_ITERATIONS: Final = 10
"""Iterations of the event loop in which an accepted socket becomes a connection, and a closed one ends."""


class PromptServer(uvicorn.Server):
    """A server that ``end`` stops; open requests get at most ``config.timeout_graceful_shutdown``."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Make ``serve`` return once open requests are answered."""
        self.should_exit = True
        self._ending.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        yield

    async def main_loop(self) -> None:
        """Return when the server must stop."""
        # uvicorn's own loop polls ten times a second; ``end`` wakes this one, which ticks only to update the date.
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_INTERVAL):
                    await self._ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, wait for open requests, and cancel those that take too long."""
        # Close first, so that no new clients connect meanwhile.
        for listening in (*self.servers, *(sockets or ())):
            listening.close()
        notified = self._notify_connections(set())
        # A socket that was just accepted becomes a connection only after some iterations of the loop.
        await _some_iterations()
        self._notify_connections(notified)
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - uvicorn has no event
                    await asyncio.sleep(POLL_INTERVAL)
                await _some_iterations()
        except TimeoutError:
            LOG.warning("open requests cancelled", extra={"requests": len(self.server_state.tasks)})
            for task in self.server_state.tasks:
                task.cancel()

    def _notify_connections(self, notified: set[Any]) -> set[Any]:
        """Let connections, except those in ``notified``, close after the current response; return the new ones."""
        fresh = self.server_state.connections - notified
        for connection in fresh:
            connection.shutdown()
        return fresh


async def _some_iterations() -> None:
    """Let accepted sockets become connections, and closed ones end, which takes a few iterations of the loop."""
    await asyncio.sleep(POLL_INTERVAL)
    for _ in range(LOOP_ITERATIONS):
        await asyncio.sleep(0)
