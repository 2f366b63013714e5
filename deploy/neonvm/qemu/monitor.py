"""QEMU's monitor: every call has a time-out, and every failure is a ``GuestError`` that names the command.

The connection is one end of a socket pair that QEMU inherits: there is no path that can be stale, too long, or open to
other users.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from qemu.qmp import EventListener, Message, QMPClient, QMPError, Runstate

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.failures import FAILURE_EVENTS, failure_in_event, failure_in_run_state
from deploy.neonvm.qemu.transfer_report import parse_run_state, parse_timestamp

_CALL_SECONDS: Final = 10.0
"""An emulated guest under full load answers its monitor within a second or two; this is a hang."""

_ATTEMPTS: Final = 3
_EVENTS: Final = ("MIGRATION", "STOP", "RESUME")


class Hearings:
    """Listeners to a machine's events, called when an event is read."""

    def __init__(self) -> None:
        self._all: list[tuple[str, Callable[[], None]]] = []

    @contextmanager
    def hearing(self, event: str, heard: Callable[[], None]) -> Iterator[None]:
        """Within it ``heard`` is called with each ``event``. It never raises."""
        listener = event, heard
        self._all.append(listener)
        try:
            yield
        finally:
            self._all.remove(listener)

    def tell(self, message: Message) -> bool:
        """Tells who waits for it. Always true: as a filter of events it lets all pass."""
        # A copy, because a listener may stop listening when it is called.
        for listener in [listener for event, listener in self._all if event == message["event"]]:
            listener()
        return True


class Monitor(Hearings):
    """One QMP connection. ``who`` names the machine in errors; ``hearings`` gets its events, if they outlive it."""

    def __init__(self, who: str, hearings: Hearings | None = None) -> None:
        super().__init__()
        self._who = who
        self._client = QMPClient(who)
        self._listener = EventListener(_EVENTS, (hearings or self).tell)
        # A queue of its own, or one reader would take the other's events.
        self._failures = EventListener(FAILURE_EVENTS)
        self._client.register_listener(self._listener)
        self._client.register_listener(self._failures)
        self._connected = asyncio.Event()

    async def connect(self, end: socket.socket) -> None:
        """Greets the QEMU at the other end. Raises ``GuestError``."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self._client.connect(end)
        except (QMPError, OSError, EOFError, TimeoutError, AssertionError) as error:
            # The client asserts that it still runs after the greeting; a QEMU that has just ended breaks that.
            raise GuestError(f"{self._who}: QEMU did not open its monitor: {_said(error)}") from error
        self._connected.set()

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """Runs one command and returns its result. Raises ``GuestError``."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                return await self._client.execute(command, dict(arguments or {}))
        except TimeoutError as error:
            raise GuestError(f"{self._who}: QEMU did not answer {command} within {_CALL_SECONDS:.0f} s") from error
        except (QMPError, OSError, EOFError) as error:
            raise GuestError(f"{self._who}: QEMU refused {command}: {_said(error)}") from error

    async def give(self, name: str, end: socket.socket) -> None:
        """Passes a socket on to QEMU, which knows it by ``name`` from now on. Raises ``GuestError``."""
        try:
            # The descriptor goes ahead of the command that gives it its name.
            self._client.send_fd_scm(end.fileno())
        except (QMPError, OSError) as error:
            raise GuestError(f"{self._who}: QEMU cannot be given the socket {name}: {_said(error)}") from error
        await self.call("getfd", {"fdname": name})

    @property
    def is_up(self) -> bool:
        """True if the connection still holds."""
        return self._client.runstate is Runstate.RUNNING

    async def wait_for_event(self, seconds: float) -> None:
        """Returns when the machine stops, resumes or gets on with a migration, and after ``seconds`` at the latest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._listener.get()

    def event_time(self, event: str) -> float | None:
        """The time when ``event`` last happened, in seconds since 1970 by QEMU; None if never or unknown."""
        # The last one counts: a guest may stop and resume several times.
        for message in reversed(self._listener.history):
            if message["event"] == event:
                return parse_timestamp(message.get("timestamp"))
        return None

    async def failure(self) -> str:
        """Returns once QEMU says that its guest cannot go on, with the reason. A QEMU that has ended says nothing."""
        await self._connected.wait()  # an event may arrive before commands can be sent
        while True:
            message = await self._failures.get()
            event = str(message["event"])
            if reason := failure_in_event(event, message.get("data")):
                return reason
            if event == "STOP" and (reason := failure_in_run_state(await self._run_state())):
                return reason

    async def _run_state(self) -> str:
        for _ in range(_ATTEMPTS):
            with suppress(GuestError):
                return parse_run_state(await self.call("query-status"))
        return ""  # the end of the process says more

    async def close(self) -> None:
        """Hangs up; QEMU may already be gone."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self._client.disconnect()
        # The client raises here what broke its reader before.
        except (QMPError, OSError, EOFError, TimeoutError, ValueError, RecursionError):
            return  # nothing is left to hang up on, or what it said last could not be read


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
