"""The QEMU of a runner pod as a ``Machine``, through the monitor that its pod offers.

Whether the machine lives is what the API server says of its pod; one that does not answer may well live.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from deploy.neonvm.access.connections import RunnerPlace
from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.monitor import Hearings, Monitor
from deploy.neonvm.texts import controller as texts

Connect = Callable[[RunnerPlace], Awaitable[socket.socket]]
"""Opens a non-blocking connection to the monitor of a pod; raises ``OSError``."""

_CONNECT_SECONDS: Final = 3.0
_QUIT_SECONDS: Final = 3.0


class RemoteMachine(Hearings):
    """One QEMU. ``lives`` says whether its pod has not ended; close it when done (``async with``)."""

    def __init__(self, place: RunnerPlace, connect: Connect, lives: Callable[[], bool]) -> None:
        super().__init__()
        self._who = place.who
        self._place = place
        self._connect = connect
        self._lives = lives
        self._monitor: Monitor | None = None
        self._times: dict[str, float] = {}
        self._has_quit = False
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> RemoteMachine:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._monitor is not None:
            monitor, self._monitor = self._monitor, None
            await monitor.close()

    @property
    def alive(self) -> bool:
        """True if its pod may still have it."""
        return not self._has_quit and self._lives()

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """One command of the monitor. Raises ``GuestError``."""
        return await (await self._connected()).call(command, arguments)

    async def _connected(self) -> Monitor:
        # Two calls at once must not open two connections.
        async with self._connecting:
            if self._monitor is not None and self._monitor.is_up:
                return self._monitor
            if self._monitor is not None:
                # Made again with the next call. The broken call is not repeated: it may have been carried out.
                broken, self._monitor = self._monitor, None
                await broken.close()
            if not self.alive:
                raise GuestError(texts.QEMU_ENDED.format(who=self._who))
            monitor = Monitor(self._who, self)
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    end = await self._connect(self._place)
            except (OSError, TimeoutError) as error:
                raise GuestError(texts.QEMU_UNREACHABLE.format(who=self._who, error=error)) from error
            await monitor.connect(end)
            self._monitor = monitor
            return monitor

    async def give(self, name: str, end: socket.socket) -> None:  # noqa: ARG002 - a part of the port
        """A socket cannot be passed to another node. Raises ``GuestError``."""
        raise GuestError(texts.SOCKET_STAYS.format(who=self._who, name=name))

    async def wait_for_event(self, seconds: float) -> None:
        """Returns when QEMU stops, resumes or gets on with a migration, and after ``seconds`` at the latest."""
        if self._monitor is not None and self._monitor.is_up:
            await self._monitor.wait_for_event(seconds)
        else:
            # Without a connection there are no events; the caller looks again after the same time.
            await asyncio.sleep(seconds)

    def event_time(self, event: str) -> float | None:
        """The time when QEMU last reported ``event`` on any connection, in seconds since 1970; None if never."""
        latest = self._monitor.event_time(event) if self._monitor is not None else None
        if latest is not None:
            # A new connection has no history, so the last time is kept here.
            self._times[event] = latest
        return self._times.get(event)

    async def failed(self) -> str:
        """Not waited for here: the API shows the pod's end. Raises ``GuestError``."""
        raise GuestError(texts.POD_SAYS.format(who=self._who))

    def last_words(self) -> str:
        """Its pod has them."""
        return "its pod says why"

    async def kill(self) -> None:
        """Tells QEMU to quit. A machine that does not answer is not waited for: it takes no part in what follows."""
        try:
            async with asyncio.timeout(_QUIT_SECONDS):
                await self.call("quit")
        except (GuestError, TimeoutError):
            return
        self._has_quit = True

    async def end(self) -> None:
        """The same as ``kill``."""
        await self.kill()
