"""The conversation with the monitor in a guest: resumed after each end, checked, and ended if it misbehaves (B.8).

Rules that hold here:

- Nothing is decided here: messages of the monitor become events, and messages to it come from the plan.
- A guest is not trusted. Too many messages, or no answer in time, end the conversation; the wait for the next one
  grows each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from agent import texts
from agent.core.actions import MonitorMessage
from agent.core.events import Event, Fault, MonitorAnswered, MonitorJoined, MonitorLost, MonitorSaid
from agent.core.monitor.token_bucket import TokenBucket
from agent.ports import MonitorConnection, MonitorSource, PortError
from protocol.backoff import Backoff, Retries
from protocol.guest.monitor_messages import (
    CheckHealth,
    DownscaleResult,
    FromMonitor,
    HealthCheck,
    InternalError,
    InvalidMessage,
    LoadReport,
    NotUnderstood,
    ToMonitor,
    UnknownMessage,
    UpscaleConfirmation,
    UpscaleRequest,
    write_to_monitor,
)
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

CHECK: Final = Seconds(5.0)
"""Between two health checks; the answer to one must have come before the next."""

RECONNECT: Final = Backoff(Seconds(1.0), Seconds(15.0))
"""After a conversation that has ended, or did not begin."""

STEADY: Final = Seconds(60.0)
"""After a conversation that lasted this long, the next begins as soon as after a first failure."""

MOST_AT_ONCE: Final = 20.0
PER_SECOND: Final = 10.0
"""Messages that a monitor may send: at once, and in the long run."""


class MonitorSession:
    """Keeps one agent connected to the monitor of its guest, and passes every event to ``take``."""

    def __init__(self, source: MonitorSource, clock: Clock, take: Callable[[Event], None]) -> None:
        self._source = source
        self._clock = clock
        self._take = take
        self._outbox: asyncio.Queue[ToMonitor] = asyncio.Queue()
        self._number = 0
        self._asked: int | None = None
        self._asked_at = Instant(0.0)
        self._checked: int | None = None
        self._allowed = TokenBucket(MOST_AT_ONCE, PER_SECOND, Instant(0.0))

    def say(self, message: MonitorMessage) -> None:
        """Sends the message; the outcome is an event."""
        self._outbox.put_nowait(message)

    async def run(self) -> None:
        """Converses. Returns only by being cancelled."""
        retries, never = Retries(RECONNECT, STEADY), asyncio.Event()
        while True:
            began = self._clock.now()
            # In a task of its own: with Python 3.11, a group that fails leaves its task unfit for time-outs.
            async with asyncio.TaskGroup() as tasks:
                conversation = tasks.create_task(self._once())
            has_joined, error = conversation.result()
            # A guest without a monitor is no trouble and causes no event.
            if has_joined or error.fault is Fault.GUEST:
                self._take(MonitorLost(error.fault, error.reason))
            wait = retries.failed(self._clock.jitter(), Seconds(self._clock.now() - began))
            await self._clock.wait(never, Instant(self._clock.now() + wait))

    async def _once(self) -> tuple[bool, PortError]:
        """Hold one conversation. Returns True if it had begun, and the reason why it ended."""
        has_joined, ended = False, PortError(Fault.GUEST, texts.MONITOR_ENDED.format(why=""))
        try:
            async with self._source() as connection:
                has_joined = True
                self._begin(connection)
                async with asyncio.TaskGroup() as tasks:
                    for part in (self._read(connection), self._speak(connection), self._check(connection)):
                        tasks.create_task(part)
        except* PortError as errors:
            ended = _first(errors)
        return has_joined, ended

    def _begin(self, connection: MonitorConnection) -> None:
        self._outbox = asyncio.Queue()  # what was meant for the last conversation is not sent in this one
        # Numbers of the last conversation must not match answers in this one.
        self._asked = self._checked = None
        self._allowed = TokenBucket(MOST_AT_ONCE, PER_SECOND, self._clock.now())
        self._take(MonitorJoined(connection.version))

    async def _read(self, connection: MonitorConnection) -> None:
        while True:
            message = await connection.receive()
            if not self._allowed.take(1.0, self._clock.now()):
                raise PortError(Fault.GUEST, texts.MONITOR_SAYS_TOO_MUCH.format(rate=PER_SECOND))
            self._hear(message, connection.version)

    def _hear(self, message: FromMonitor, version: int) -> None:
        match message:
            # An answer to an earlier check proves nothing about now.
            case HealthCheck(number) if number == self._checked:
                self._checked = None
            # A monitor that agreed on version 1 must not use what only version 2 has.
            case LoadReport(number) if version < 2:
                self._outbox.put_nowait(NotUnderstood(number, texts.OF_VERSION_2))
            case UpscaleRequest() | LoadReport():
                self._take(MonitorSaid(message))
            case UpscaleConfirmation() | DownscaleResult() | InternalError() | InvalidMessage():
                self._answered(message)
            case UnknownMessage(number):
                self._outbox.put_nowait(NotUnderstood(number, texts.UNKNOWN_MESSAGE))

    def _answered(self, message: UpscaleConfirmation | DownscaleResult | InternalError | InvalidMessage) -> None:
        """An answer counts only if it has the number of the question; a late one changes nothing."""
        if message.id == self._asked:
            self._asked = None
            self._take(MonitorAnswered(None if isinstance(message, InternalError | InvalidMessage) else message))

    async def _speak(self, connection: MonitorConnection) -> None:
        while True:
            message = await self._outbox.get()
            await connection.send(write_to_monitor(message, self._numbered(message)))

    def _numbered(self, message: ToMonitor) -> int:
        """The number to send ``message`` with; by it the monitor's answer is recognized."""
        # An answer of ours has the number of its question.
        if isinstance(message, NotUnderstood):
            return message.id
        self._number += 2
        if isinstance(message, CheckHealth):
            self._checked = self._number
        else:
            self._asked, self._asked_at = self._number, self._clock.now()
        return self._number

    async def _check(self, connection: MonitorConnection) -> None:
        while True:
            await self._clock.sleep(CHECK)
            is_late = self._asked is not None and self._clock.now() - self._asked_at >= connection.patience
            if self._checked is not None or is_late:
                late = connection.patience if is_late else CHECK
                raise PortError(Fault.GUEST, texts.MONITOR_DID_NOT_ANSWER.format(seconds=late))
            self._outbox.put_nowait(CheckHealth())


def _first(errors: BaseExceptionGroup[PortError]) -> PortError:
    first = errors.exceptions[0]
    return first if isinstance(first, PortError) else _first(first)
