"""The controller allows the transfer of a sleeping guest's disk as long as it makes progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from deploy.neonvm.access.connections import RunnerConnections, RunnerEndpoint, RunnerHttpResponse
from deploy.neonvm.ports import GuestError
from deploy.neonvm.remote import runner_client
from deploy.neonvm.remote.runner_client import PollLimiter, RunnerClient, SilentError
from protocol.units import Seconds

PLACE = RunnerEndpoint("default/db-x", "uid", "10.0.0.9", 25183, 20183)


@dataclass
class Sending(RunnerConnections):
    """A runner that answers poll number n if ``answers(n)``, and has sent the disk after ``polls`` polls."""

    polls: int
    answers: Callable[[int], bool] = lambda _: True
    result: RunnerHttpResponse = field(default_factory=lambda: RunnerHttpResponse(200, {}, b""))
    asked: list[str] = field(default_factory=list)
    is_sent: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False

    async def ask(self, place: RunnerEndpoint, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        self.asked.append(f"{method} {path}")
        if len(self.asked) >= self.polls:
            self.is_sent.set()
        if not self.answers(len(self.asked)):
            await asyncio.Event().wait()
        return RunnerHttpResponse(200, {}, b"{}")

    async def long_poll(self, place: RunnerEndpoint, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        try:
            await self.is_sent.wait()
            return self.result
        finally:
            self.is_over = True


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_client, "_DISK_POLL", 0.01, raising=False)
    monkeypatch.setattr(runner_client, "_DISK_SECONDS", 0.05, raising=False)


def client(runner: Sending) -> RunnerClient:
    return RunnerClient(runner, PLACE, PollLimiter(), poll_timeout=Seconds(0.02))


async def test_large_disk_takes_as_long_as_it_takes() -> None:
    """Its runner reports if the target stops reading, and the migration's timeout limits the whole transfer."""
    runner = Sending(polls=20)
    await client(runner).send_disk("10.0.0.8")
    assert runner.asked == ["GET /status"] * 20


async def test_lost_answers_do_not_end_it() -> None:
    await client(Sending(polls=20, answers=lambda count: count % 3 == 0)).send_disk("10.0.0.8")


async def test_hanging_runner_is_given_up() -> None:
    runner = Sending(polls=1000, answers=lambda count: count < 5)
    with pytest.raises(SilentError, match="default/db-x: its runner does not respond"):
        await client(runner).send_disk("10.0.0.8")
    assert (len(runner.asked), runner.is_over) == (7, True)


async def test_reason_of_the_source_is_told() -> None:
    stalled = RunnerHttpResponse(503, {}, b"the target has not read from the disk's connection for 60 s")
    with pytest.raises(GuestError, match="the target has not read"):
        await client(Sending(polls=1, result=stalled)).send_disk("10.0.0.8")


async def test_target_listens_at_once() -> None:
    """It responds before anything is sent."""
    runner = Sending(polls=1000)
    await client(runner).receive_disk("0.0.0.0")
    assert runner.asked == ["PUT /disk"]
