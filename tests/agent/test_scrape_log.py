"""Log lines about scrapes: a problem and its end, not each scrape."""

from __future__ import annotations

from agent.core.events import Fault
from agent.core.guest import GuestSample
from agent.ports import PortError
from tests.agent.fake_ports import RunnerFixture


async def test_metrics_failure_and_recovery_log_once() -> None:
    async with RunnerFixture() as fixture:
        fixture.guest.error = PortError(Fault.GUEST, "answers 500")
        await fixture.clock.advance(5.0)
        fixture.guest.error = None
        await fixture.clock.advance(1.0)
        assert fixture.log.messages == ["permit received", "scrape failed", "scrapes succeed again"]
        assert fixture.log.lines[1][2] == {"vm": "default/vm-1", "fault": "guest", "reason": "answers 500"}
        assert fixture.runner.log.tally["scrape_failed"] == 5


async def test_incomplete_metrics_and_recovery_log_once() -> None:
    async with RunnerFixture() as fixture:
        fixture.guest.page = GuestSample(load1=0.5)
        await fixture.clock.advance(5.0)
        fixture.guest.page = None
        await fixture.clock.advance(1.0)
        assert fixture.log.messages == ["permit received", "the metrics are incomplete", "scrapes succeed again"]
        reason = "the metrics say nothing about CPU and memory, so the size does not shrink"
        assert fixture.log.lines[1][2] == {"vm": "default/vm-1", "fault": "guest", "reason": reason}


async def test_alternating_scrapes_log_once_a_minute() -> None:
    """A guest that hangs every other second once caused a line per second."""
    async with RunnerFixture() as fixture:
        for _ in range(70):
            fixture.guest.error = PortError(Fault.GUEST, "answers 500")
            await fixture.clock.advance(1.0)
            fixture.guest.error = None
            await fixture.clock.advance(1.0)
        scrapes = [message for message in fixture.log.messages if "scrape" in message]
        assert scrapes == ["scrape failed", "scrapes succeed again"] * 3
        fixture.guest.error = PortError(Fault.GUEST, "answers 500")
        await fixture.clock.advance(90.0)
        assert fixture.log.messages[-1] == "scrape failed", "once the minute is over"


async def test_kills_on_incomplete_pages_log_once() -> None:
    """The state ignores such a page, so each one seemed to show the first kill."""
    async with RunnerFixture() as fixture:
        await fixture.clock.advance(2.0)
        for _ in range(30):
            fixture.guest.page = GuestSample(load1=0.5, oom_kills=2.0)
            await fixture.clock.advance(1.0)
            fixture.guest.page = None
            await fixture.clock.advance(1.0)
        assert fixture.log.messages.count("the kernel OOM-killed processes") == 1
