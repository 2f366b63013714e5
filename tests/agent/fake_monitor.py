"""A monitor in a guest that answers health checks while it is healthy, and sends what a test specifies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agent.ports import MonitorConnection, PortError
from protocol.guest.monitor_messages import CheckHealth, FromMonitor, HealthCheck, ToMonitor
from protocol.units import Seconds
from tests.fake_clock import settle


@dataclass
class FakeMonitor:
    """See ``MonitorSource``. Connections fail with the next of ``absent``; ``heard`` are all messages except health
    checks.
    """

    version: int = 2
    answer_timeout: Seconds = Seconds(5.0)
    absent: list[PortError] = field(default_factory=list)
    is_well: bool = True
    heard: list[tuple[int, ToMonitor]] = field(default_factory=list)
    connections: int = 0
    _says: asyncio.Queue[FromMonitor | PortError] = field(default_factory=asyncio.Queue)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[MonitorConnection]:
        self.connections += 1
        if self.absent:
            raise self.absent.pop(0)
        self._says = asyncio.Queue()
        yield self

    async def receive(self) -> FromMonitor:
        said = await self._says.get()
        if isinstance(said, PortError):
            raise said
        return said

    async def send(self, message: ToMonitor, number: int) -> None:
        if not isinstance(message, CheckHealth):
            self.heard.append((number, message))
        elif self.is_well:
            self._says.put_nowait(HealthCheck(number))

    async def says(self, *messages: FromMonitor | PortError) -> None:
        for each in messages:
            self._says.put_nowait(each)
        await settle()

    @property
    def last_number(self) -> int:
        """The number of the last message that arrived."""
        return self.heard[-1][0]
