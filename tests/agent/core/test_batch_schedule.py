"""The VMs of a node send requests that can wait on one schedule, so that one message carries many (decision 55)."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.core.actions import RequestPermit
from agent.core.events import SchedulerAnswered, Started
from agent.core.permits import MIN_LEAD
from agent.core.policy import MIN_REQUEST_DELAY, BatchSchedule
from protocol.messages import PluginResponse
from protocol.units import Instant, Seconds
from tests.agent.core.story import POLICY, UNIT, Story, cu, vm

SCHEDULE = BatchSchedule(Seconds(5.0), Instant(2.0))
TICK = replace(POLICY, timing=msgspec.structs.replace(POLICY.timing, tick=Seconds(15.0), tick_jitter=Seconds(2.0)))


def story(begins: float, tick: float = 15.0, wait: float | None = None) -> Story:
    """A VM that uses two units and has been permitted them."""
    found = Story(
        replace(TICK, timing=msgspec.structs.replace(TICK.timing, tick=Seconds(tick))), now=begins, jitter=0.0
    )
    found.state.schedule = SCHEDULE
    found.sees(vm(cu(2))).looks(cores=0.25, used=1.0)
    return asks(found, wait)


def asks(found: Story, wait: float | None = None) -> Story:
    """Send a request, which is granted; the scheduler asks for the next one within ``wait`` seconds."""
    (request,) = [each for each in found.acts() if isinstance(each, RequestPermit)]
    again = None if wait is None else Seconds(wait)
    return found.happens(SchedulerAnswered(PluginResponse(request.request.resources, UNIT, ask_again=again)))


def test_schedule_aligns_requests_of_vms() -> None:
    found = [story(begins) for begins in (0.3, 1.7, 1.99)]
    assert [each.plans().wake_at for each in found] == [12.0, 12.0, 12.0]
    assert [asks(each.at(12.001)).plans().wake_at for each in found] == [27.0, 27.0, 27.0]


def test_growth_ignores_schedule() -> None:
    found = story(0.3).at(3.1).looks(cores=0.5, stall=0.5, used=1.5)
    (request,) = [each for each in found.plans().actions if isinstance(each, RequestPermit)]
    assert not request.request.resources.within(cu(2))


def test_short_ticks_ignore_schedule() -> None:
    assert story(0.3, tick=9.0).state.scheduler.next_at == 9.3


def test_vms_that_ask_soon_share_moments() -> None:
    """At the times of the schedule and halfway between them, but not right after one."""
    vms = [story(begins, wait=2.5) for begins in (0.3, 1.4, 1.6, 2.01)]
    assert [each.state.scheduler.next_at for each in vms] == [2.0, 2.0, 4.5, 4.5]
    assert [asks(each.at(4.501), 2.5).state.scheduler.next_at for each in vms] == [7.0] * 4


@given(st.floats(0.0, 86_400.0), st.floats(0.0, 1e6), st.booleans())
def test_ask_again_is_bounded(wait: float, begins: float, has_schedule: bool) -> None:
    found = story(begins)
    found.state.schedule = SCHEDULE if has_schedule else None
    first = found.at(found.state.scheduler.next_at).now
    for _ in range(4):
        next_at = asks(found, wait).state.scheduler.next_at
        assert MIN_LEAD - 1e-6 <= next_at - found.now <= 15.0 + 1e-6
        found.at(next_at)
    assert found.now - first >= 3 * MIN_REQUEST_DELAY - 1e-6


@given(st.floats(0.0, 1e6), st.floats(10.0, 1e3), st.floats(0.0, 1.0))
def test_schedule_keeps_tick_bounds(now: float, tick: float, jitter: float) -> None:
    found = Story(
        replace(TICK, timing=msgspec.structs.replace(TICK.timing, tick=Seconds(tick))), now=now, jitter=jitter
    )
    found.state.schedule = SCHEDULE
    (request,) = [each for each in found.sees(vm(cu(2))).at(now + 1.0).acts() if isinstance(each, RequestPermit)]
    found.happens(Started(request))
    assert tick - SCHEDULE.interval - 1e-6 <= found.state.scheduler.next_at - found.now <= tick + 1e-6
