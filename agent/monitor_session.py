"""Keeps the connection to the guest's monitor: reconnects, checks its health, and closes it on misbehaviour (B.8).

Rules that hold here:

- This module makes no decisions: messages of the monitor become events, and messages to it come from the plan.
- The guest is not trusted. Too many messages, or a late answer, close the connection; the delay before the next one
  grows each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from agent import texts
from agent.core.actions import MonitorMessage
from agent.core.events import Event, Fault, MonitorAnswered, MonitorJoined, MonitorLost, MonitorNotified
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
)
from protocol.runtime.clock import Clock
from protocol.runtime.error_groups import innermost
from protocol.units import Instant, Seconds

CHECK_INTERVAL: Final = Seconds(5.0)
"""Interval of health checks, and timeout of their answers."""

RECONNECT: Final = Backoff(Seconds(1.0), Seconds(15.0))
"""Delay before the next connection."""

STEADY: Final = Seconds(60.0)
"""A connection that lasted this long resets the delay."""

MESSAGE_BURST: Final = 20.0
MESSAGES_PER_SECOND: Final = 10.0
"""Burst and rate limit of a monitor's messages."""


class MonitorSession:
    """Keeps one agent connected to its guest's monitor, and passes every event to ``take``."""

    def __init__(self, source: MonitorSource, clock: Clock, take: Callable[[Event], None]) -> None:
        self._source = source
        self._clock = clock
        self._take = take
        self._outbox: asyncio.Queue[ToMonitor] = asyncio.Queue()
        self._number = 0
        self._awaited_id: int | None = None
        self._sent_at = Instant(0.0)
        self._checked: int | None = None
        self._allowed = TokenBucket(MESSAGE_BURST, MESSAGES_PER_SECOND, Instant(0.0))

    def send(self, message: MonitorMessage) -> None:
        """Queue ``message``; its outcome will be an event."""
        self._outbox.put_nowait(message)

    async def run(self) -> None:
        """Run until cancelled."""
        retries, never = Retries(RECONNECT, STEADY), asyncio.Event()
        while True:
            began = self._clock.now()
            # In a separate task: in Python 3.11, a failed task group breaks later timeouts in its task.
            async with asyncio.TaskGroup() as tasks:
                connection = tasks.create_task(self._connect_once())
            has_joined, error = connection.result()
            # A guest without a monitor is not a failure.
            if has_joined or error.fault is Fault.GUEST:
                self._take(MonitorLost(error.fault, error.reason))
            wait = retries.failed(self._clock.jitter(), Seconds(self._clock.now() - began))
            await self._clock.wait(never, Instant(self._clock.now() + wait))

    async def _connect_once(self) -> tuple[bool, PortError]:
        """Connect once and run until the connection ends. Return whether it was established, and why it ended."""
        has_joined, ended = False, PortError(Fault.GUEST, texts.MONITOR_ENDED.format(why=""))
        try:
            async with self._source() as connection:
                has_joined = True
                self._begin(connection)
                async with asyncio.TaskGroup() as tasks:
                    for part in (self._read(connection), self._write(connection), self._check(connection)):
                        tasks.create_task(part)
        except* PortError as errors:
            ended = cast("PortError", innermost(errors))
        return has_joined, ended

    def _begin(self, connection: MonitorConnection) -> None:
        self._outbox = asyncio.Queue()  # drop messages queued for the last connection
        # Answers on this connection must not match ids from the last one.
        self._awaited_id = self._checked = None
        self._allowed = TokenBucket(MESSAGE_BURST, MESSAGES_PER_SECOND, self._clock.now())
        self._take(MonitorJoined(connection.version))

    async def _read(self, connection: MonitorConnection) -> None:
        while True:
            message = await connection.receive()
            if not self._allowed.take(1.0, self._clock.now()):
                raise PortError(Fault.GUEST, texts.MONITOR_RATE_EXCEEDED.format(rate=MESSAGES_PER_SECOND))
            self._handle(message, connection.version)

    def _handle(self, message: FromMonitor, version: int) -> None:
        match message:
            # Ignore answers to earlier checks.
            case HealthCheck(number) if number == self._checked:
                self._checked = None
            # ``LoadReport`` needs version 2.
            case LoadReport(number) if version < 2:
                self._outbox.put_nowait(NotUnderstood(number, texts.NEEDS_VERSION_2))
            case UpscaleRequest() | LoadReport():
                self._take(MonitorNotified(message))
            case UpscaleConfirmation() | DownscaleResult() | InternalError() | InvalidMessage():
                # Ignore a late answer.
                if message.id == self._awaited_id:
                    self._awaited_id = None
                    self._take(
                        MonitorAnswered(None if isinstance(message, InternalError | InvalidMessage) else message)
                    )
            case UnknownMessage(number):
                self._outbox.put_nowait(NotUnderstood(number, texts.UNKNOWN_MESSAGE))

    async def _write(self, connection: MonitorConnection) -> None:
        while True:
            message = await self._outbox.get()
            await connection.send(message, self._numbered(message))

    def _numbered(self, message: ToMonitor) -> int:
        """The id for ``message``, which the monitor's answer repeats."""
        # An answer to the monitor repeats the monitor's id.
        if isinstance(message, NotUnderstood):
            return message.id
        self._number += 2
        if isinstance(message, CheckHealth):
            self._checked = self._number
        else:
            self._awaited_id, self._sent_at = self._number, self._clock.now()
        return self._number

    async def _check(self, connection: MonitorConnection) -> None:
        while True:
            await self._clock.sleep(CHECK_INTERVAL)
            is_late = self._awaited_id is not None and self._clock.now() - self._sent_at >= connection.answer_timeout
            if self._checked is not None or is_late:
                waited = connection.answer_timeout if is_late else CHECK_INTERVAL
                raise PortError(Fault.GUEST, texts.MONITOR_ANSWER_TIMED_OUT.format(seconds=waited))
            self._outbox.put_nowait(CheckHealth())
