"""A process's clock and its connection to the API server. They stop (SIGSTOP) or die with it, or the connection is cut.

A call takes part in three things that may go wrong: it is sent or not, the API carries it out or not, soon or late, and
its answer comes or does not. A process that is stopped learns of nothing until it goes on; then everything is there at
once, and it is later than it knew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field

from protocol.kubernetes.api import ApiCall, ApiError, ApiUnknownError
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.pages import Page
from protocol.units import Instant, Seconds
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import FakeCluster

AT_ONCE = Seconds(0.0)


@dataclass(slots=True)
class Fate:
    """The fate of a write: executed after ``late`` seconds or never (None), and answered or not."""

    late: Seconds | None = AT_ONCE
    is_answered: bool = True


def as_usual(_: ApiCall) -> Fate:
    """Every write is carried out and answered."""
    return Fate()


class StoppableClock:
    """The common time, which continues while the process is stopped."""

    def __init__(self, clock: FakeClock, goes: asyncio.Event) -> None:
        self._clock = clock
        self._goes = goes

    def now(self) -> Instant:
        return self._clock.now()

    def wall(self) -> float:
        return self._clock.wall()

    def jitter(self) -> float:
        return self._clock.jitter()

    async def sleep(self, duration: Seconds) -> None:
        await self._clock.sleep(duration)
        await self._goes.wait()

    async def wait(self, event: asyncio.Event, until: Instant | None) -> None:
        await self._clock.wait(event, until)
        await self._goes.wait()


@dataclass(slots=True, eq=False)
class Way:
    """``KubernetesApi`` for one process. ``fate`` decides the outcome of its writes."""

    cluster: FakeCluster
    clock: FakeClock
    fate: Callable[[ApiCall], Fate] = as_usual
    goes: asyncio.Event = field(default_factory=asyncio.Event)
    is_dead: bool = False
    is_cut: bool = False
    is_deaf: bool = False
    sent: list[ApiCall] = field(default_factory=list)
    late: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.goes.set()

    async def call(self, call: ApiCall) -> JsonObject:
        deadline = self.clock.now() + call.timeout
        await self.goes.wait()
        if call.not_after is not None and self.clock.now() >= call.not_after:
            raise ApiUnknownError("not sent: too late")
        self._require_way()
        self.sent.append(call)
        fate = Fate() if call.method == "GET" else self.fate(call)
        answer = await self._carried_out(call, fate)
        await self.goes.wait()
        if answer is None or self.is_dead or self.is_cut or not fate.is_answered:
            await self.clock.sleep(Seconds(max(0.0, deadline - self.clock.now())))
            await self.goes.wait()
            raise ApiUnknownError("no answer in time")
        return answer

    async def page(self, call: ApiCall) -> Page:
        await self.goes.wait()
        self._require_way()
        self.sent.append(call)
        page = await self.cluster.page(call)
        await self.goes.wait()
        return page

    def stream(self, call: ApiCall) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._stream(call)

    @asynccontextmanager
    async def _stream(self, call: ApiCall) -> AsyncIterator[AsyncIterator[bytes]]:
        self._require_way()
        async with self.cluster.stream(call) as lines:
            yield self._heard(lines)

    async def _heard(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for line in lines:
            await self.goes.wait()
            while self.is_deaf:  # noqa: ASYNC110 - the test says when it hears again
                await asyncio.sleep(0)
            self._require_way()
            yield line

    def _require_way(self) -> None:
        if self.is_dead or self.is_cut:
            raise ApiUnknownError("the API cannot be reached")

    async def _carried_out(self, call: ApiCall, fate: Fate) -> JsonObject | None:
        if fate.late is None:
            return None
        if fate.late == AT_ONCE:
            return await self.cluster.call(call)
        self.late.append(asyncio.create_task(self._later(call, fate.late)))
        return None

    async def _later(self, call: ApiCall, late: Seconds) -> None:
        await self.clock.sleep(late)
        with suppress(ApiError):
            await self.cluster.call(call)
