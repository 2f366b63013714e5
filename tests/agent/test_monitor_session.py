"""The conversation with a guest's monitor that floods, lies, stalls and hangs up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from agent.core.actions import MonitorMessage
from agent.core.events import Event, Fault, MonitorAnswered, MonitorJoined, MonitorLost, MonitorNotified
from agent.monitor_session import MonitorSession
from agent.ports import PortError
from protocol.guest.monitor_messages import (
    DownscaleRequest,
    DownscaleResult,
    FromMonitor,
    InternalError,
    InvalidMessage,
    LoadReport,
    NotUnderstood,
    UnknownMessage,
    UpscaleConfirmation,
    UpscaleNotification,
    UpscaleRequest,
)
from tests.agent.core.story import cu
from tests.agent.fake_monitor import FakeMonitor
from tests.fake_clock import FakeClock, settle

ABSENT = PortError(Fault.NETWORK, "connection refused")
HUNG_UP = PortError(Fault.GUEST, "hung up")
REPORT = LoadReport(1, "cpu", 0.1, 1.0, 1.0, 3)


@dataclass
class Conversing(FakeMonitor):
    """A monitor, and the session of an agent with it."""

    events: list[Event] = field(default_factory=list)
    clock: FakeClock = field(default_factory=lambda: FakeClock(start=0.0, jitter=0.0))

    def __post_init__(self) -> None:
        self.session = MonitorSession(self.connect, self.clock, self.events.append)

    async def asked(self, action: MonitorMessage) -> int:
        """Send ``action``. Returns the number with which the monitor received it."""
        self.session.send(action)
        await settle()
        return self.last_number


@pytest.fixture
async def monitor() -> AsyncIterator[Conversing]:
    fake = Conversing()
    task = asyncio.create_task(fake.session.run())
    await settle()
    yield fake
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_unsolicited_message_becomes_event(monitor: Conversing) -> None:
    await monitor.says(UpscaleRequest(1), REPORT)
    assert monitor.events == [MonitorJoined(2), MonitorNotified(UpscaleRequest(1)), MonitorNotified(REPORT)]


async def test_answers_match_even_request_ids(monitor: Conversing) -> None:
    number = await monitor.asked(DownscaleRequest(cu(1)))
    assert monitor.heard == [(2, DownscaleRequest(cu(1)))]
    result = DownscaleResult(number, ok=True)
    await monitor.says(DownscaleResult(number + 2, ok=True), result, result)
    assert monitor.events[1:] == [MonitorAnswered(result)], "neither a stranger's number nor the same twice"


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (UpscaleConfirmation(2), UpscaleConfirmation(2)),
        (InternalError(2, "cgroup"), None),
        (InvalidMessage(2, "what?"), None),
    ],
)
async def test_what_was_told_is_confirmed_or_went_wrong(
    monitor: Conversing, answer: FromMonitor, result: UpscaleConfirmation | None
) -> None:
    await monitor.asked(UpscaleNotification(cu(2)))
    await monitor.says(answer)
    assert monitor.events[1:] == [MonitorAnswered(result)]


async def test_rejects_messages_of_newer_version(monitor: Conversing) -> None:
    monitor.version = 1
    await monitor.says(REPORT, UnknownMessage(3, "Novelty"))
    assert monitor.events == [MonitorJoined(2)]
    refused = NotUnderstood(1, "LoadReport needs protocol version 2"), NotUnderstood(3, "unknown message type")
    assert monitor.heard == [(message.id, message) for message in refused]
    assert await monitor.asked(DownscaleRequest(cu(1))) == 2, "questions have the next number of ours"


async def test_missing_monitor_backs_off_silently() -> None:
    fake = Conversing(absent=[ABSENT] * 100)
    task = asyncio.create_task(fake.session.run())
    await fake.clock.advance(61.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (fake.connections, fake.events) == (8, []), "at 0, 1, 3, 7, 15, 30, 45 and 60 seconds"


async def test_reconnects_after_hang_up(monitor: Conversing) -> None:
    await monitor.says(HUNG_UP)
    await monitor.clock.advance(1.1)
    assert monitor.events == [MonitorJoined(2), MonitorLost(Fault.GUEST, "hung up"), MonitorJoined(2)]


async def test_malformed_greeting_blames_guest() -> None:
    fake = Conversing(absent=[PortError(Fault.GUEST, "nonsense")])
    task = asyncio.create_task(fake.session.run())
    await fake.clock.advance(1.5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert fake.events == [MonitorLost(Fault.GUEST, "nonsense"), MonitorJoined(2)]


async def test_flood_disconnects_with_backoff(monitor: Conversing) -> None:
    for wait in (1.0, 2.0, 4.0, 8.0, 15.0, 15.0):
        before = len(monitor.events)
        await monitor.says(*[UpscaleRequest(1)] * 1000)
        assert len(monitor.events) - before == 21, "twenty were heard"
        flooded = MonitorLost(Fault.GUEST, "the guest's monitor exceeds 10 messages per second")
        await monitor.clock.advance(wait - 0.1)
        assert monitor.events[-1:] == [flooded]
        await monitor.clock.advance(0.2)
        assert monitor.events[-2:] == [flooded, MonitorJoined(2)]


async def test_ten_messages_a_second_are_no_flood(monitor: Conversing) -> None:
    for _ in range(100):
        await monitor.says(REPORT)
        await monitor.clock.advance(0.1)
    assert not [each for each in monitor.events if isinstance(each, MonitorLost)]


async def test_failed_health_check_disconnects(monitor: Conversing) -> None:
    await monitor.clock.advance(60.0)
    assert monitor.events == [MonitorJoined(2)]
    monitor.is_well = False
    await monitor.clock.advance(10.1)
    assert monitor.events[1:2] == [MonitorLost(Fault.GUEST, "no response within 5 s")]


async def test_unanswered_request_disconnects(
    monitor: Conversing,
) -> None:
    await monitor.clock.advance(4.0)
    await monitor.asked(DownscaleRequest(cu(1)))
    await monitor.clock.advance(5.0)
    assert len(monitor.events) == 1, "not before it had five seconds"
    await monitor.clock.advance(1.5)
    assert isinstance(monitor.events[1], MonitorLost)


async def test_reconnect_drops_queued_messages(monitor: Conversing) -> None:
    await monitor.says(HUNG_UP)
    monitor.session.send(UpscaleNotification(cu(1)))
    await monitor.clock.advance(2.0)
    assert monitor.heard == []
