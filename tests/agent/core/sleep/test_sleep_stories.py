"""Automatic sleep: when the agent orders it, what the agent does meanwhile, and how the VM wakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
from msgspec import structs

from agent.core.actions import OrderSleep, RequestPermit
from agent.core.events import (
    Fault,
    MonitorJoined,
    MonitorNotified,
    PolicySet,
    RequestFailed,
    ScrapeFailed,
    SleepNotOrdered,
    SleepOrdered,
    VmSeen,
    WindowChanged,
)
from agent.core.explain import explain
from agent.core.growth import follow
from agent.core.policy import SleepPolicy
from agent.core.vm import VmFloor
from protocol.guest.monitor_messages import UpscaleRequest
from protocol.guest.sleep import SleepState
from protocol.messages import AgentRequest, Metrics
from protocol.units import ZERO, Bytes, Instant, Seconds
from protocol.virtual_machine import Bounds
from tests.agent.core.sleep.sleepers import (
    SLEEPY,
    answered,
    asleep,
    idle,
    ordered,
    orders,
    quiet_since,
    seen,
    settled_sleeper,
    shows,
    why,
)
from tests.agent.core.story import GIB, NETWORK, POD, POLICY, UNIT, Story, cu, patches, vm


def test_quiet_vm_is_ordered_to_sleep() -> None:
    """Only the minute in which the agent saw it run counts, not the idle time that the guest claims before that."""
    story = idle(settled_sleeper(), until=59.0)
    assert (orders(story), why(story)) == (False, "awake: quiet for 59 s of 60 s")
    quiet_since(story.at(60.0), 1000.0)
    assert story.acts() == [OrderSleep(1)]
    assert why(story) == "awake: the order is being written"
    story.happens(SleepOrdered(structs.replace(seen(story), order="a", version=2)))
    assert not orders(story)
    assert why(story) == "awake: ordered to sleep; waiting for neonvm-controller"


def test_no_order_without_the_setting() -> None:
    story = idle(settled_sleeper(), until=70.0)
    assert orders(story)
    story.happens(PolicySet(POLICY))
    assert (orders(story), why(story)) == (False, "awake: its policy does not set sleep.after")


def changed(story: Story, **fields: object) -> Story:
    found = seen(story)
    return story.happens(VmSeen(structs.replace(found, version=found.version + 1, **fields)))


OBSTACLES: list[tuple[Callable[[Story], object], str]] = [
    (lambda story: quiet_since(story, 59.0), "quiet for 59 s of 60 s"),
    (lambda story: quiet_since(story, 99.0, "cron", "backup"), "its database is busy: cron, backup"),
    (lambda story: story.looks(), "its guest does not report database idle time"),
    (lambda story: story.at(80.0), "no recent metrics from its guest"),
    (lambda story: story.happens(WindowChanged("Mon 07:00-20:00 UTC")), "kept awake by the window Mon 07:00-20:00 UTC"),
    (lambda story: changed(story, never_sleeps="it is a standby"), "it is a standby"),
    (lambda story: changed(story, phase="Scaling"), "its phase is Scaling"),
    (lambda story: changed(story, phase=""), "its phase is unknown"),
    (lambda story: changed(story, enabled=False, resizable=False), "its opt-in label is missing"),
    (lambda story: story.happens(VmSeen(structs.replace(seen(story), version=0))), "its object has no resourceVersion"),
    (lambda story: changed(story, order="z"), "ordered to sleep; waiting for neonvm-controller"),
    (lambda story: quiet_since(story, 99.0, cores=4.0), "it needs"),
    (lambda story: story.happens(MonitorJoined(2)).happens(MonitorNotified(UpscaleRequest(1))), "its monitor reports"),
]


@pytest.mark.parametrize(("happens", "because"), OBSTACLES, ids=[because[:24] for _, because in OBSTACLES])
def test_obstacle_prevents_order_and_is_explained(happens: Callable[[Story], object], because: str) -> None:
    story = idle(settled_sleeper(), until=70.0)
    assert orders(story)
    happens(story.at(70.5))
    assert not orders(story)
    assert because in why(story)


def test_window_end_puts_vms_to_sleep_in_turn() -> None:
    """A whole fleet may have the same window, so each VM waits a random part of five minutes."""
    story = idle(settled_sleeper().happens(WindowChanged("Mon 07:00-20:00 UTC")), until=70.0)
    story.jitter = 0.1
    story.happens(WindowChanged(None))
    assert (orders(story), "next order in 30 s, so that not all VMs sleep at once" in why(story)) == (False, True)
    assert orders(idle(story, until=100.0))
    story.happens(WindowChanged(None))
    assert orders(story), "nothing has ended"


def test_enabling_sleep_puts_vms_to_sleep_in_turn() -> None:
    """All VMs that have been idle for long might sleep at that moment; each waits a part of the idle time."""
    story = idle(settled_sleeper(), until=70.0)
    story.jitter = 0.1
    longer = replace(POLICY, sleep=SleepPolicy(Seconds(3600.0)))
    for before in (POLICY, longer):
        story.happens(PolicySet(before))
        assert not orders(story)
        story.happens(PolicySet(SLEEPY))
        assert (orders(story), "next order in 6 s, so that" in why(story)) == (False, True)
    assert orders(idle(story, until=80.0))
    story.happens(PolicySet(SLEEPY))
    assert orders(story), "nothing has changed"


def test_no_order_while_scheduler_is_at_odds() -> None:
    """The agent is denied, holds its size, has no response or is refused. Without a permit the VM could not wake."""
    story = idle(settled_sleeper(), until=62.0)
    ends: list[tuple[Callable[[], Story], str]] = [
        (lambda: story.answers(cu(1), migrate=True), "it is about to migrate"),
        (lambda: story.happens(RequestFailed(NETWORK, "away")), "no permit from the scheduler"),
    ]
    for end, because in ends:
        story.at(story.now + 7.0)
        quiet_since(story, 1000.0)
        assert [type(action) for action in story.acts()] == [RequestPermit]
        assert (orders(story), "in flight" in why(story)) == (False, True)
        end()
        assert (orders(story), because in why(story)) == (False, True)


def test_no_order_beside_the_original() -> None:
    story = Story(SLEEPY, unit=UNIT).sees(vm(cu(1)))
    quiet_since(story, 1000.0)
    idle(answered(story), until=70.0)
    assert (orders(story), why(story)) == (False, "awake: the original project's scheduler does not support sleep")


def test_cpu_shrinks_before_sleep_memory_need_not() -> None:
    """Memory above the minimum is given back on the way to sleep; CPU above it is a load."""
    story = settled_sleeper(2)
    changed(story, bounds=replace(seen(story).bounds, min=cu(1)))
    story.state.monitor.join(2)
    quiet_since(story.at(70.0), 1000.0)
    assert not orders(story)
    assert "its CPU is above the minimum of 250m" in why(story)
    changed(story, floor=VmFloor(cu(2), Instant(inf)))
    quiet_since(story.at(71.0), 1000.0)
    answered(story)
    quiet_since(story.at(72.0), 1000.0)
    assert orders(story), "a floor is the least for its hour"


def test_refused_orders_wait_longer_each_time() -> None:
    story = idle(settled_sleeper(), until=62.0)
    for count, wait in enumerate((60.0, 120.0, 240.0, 240.0)):
        ordered(story, order=f"order-{count}")
        refused, at = f"a query runs ({count})", story.now
        shows(story, "Running", SleepState.REFUSED, order=f"order-{count}", message=refused)
        assert f"awake: refused to sleep: {refused}; retrying in {wait:.0f} s" == why(story)
        idle(story, until=at + wait - 1.0)
        assert not orders(answered(story))
        idle(story, until=at + wait)
        while not orders(story):
            answered(story)
    shows(ordered(story, order="b"), "Asleep", SleepState.ASLEEP, order="b")
    assert story.state.sleep.refusal is None


def test_unwritten_order_is_tried_again() -> None:
    story = idle(settled_sleeper(), until=62.0)
    story.acts()
    story.happens(SleepNotOrdered(Fault.VM_API, "403"))
    assert why(story) == "awake: writing the order failed; retrying in 5 s"
    failures = [(each["with_"], each["reason"]) for each in explain(story.state, "a/b", story.instant).troubles]
    assert failures == [("ordering sleep", "403")]
    idle(story, until=67.0)
    ordered(story)
    assert explain(story.state, "a/b", story.instant).troubles == []


def test_asleep_vm_gives_its_permit_up() -> None:
    story = ordered(idle(settled_sleeper(), until=62.0))
    shows(story, "Asleep", SleepState.ASLEEP)
    number = story.state.scheduler.sequence
    request = AgentRequest(POD, ZERO, ZERO, UNIT, None, number)
    assert story.acts() == [RequestPermit(request, Bytes(GIB))]
    assert story.state.ceiling == ZERO, "from the request on"
    story.answers(ZERO)
    assert (story.state.scheduler.permit, story.state.scheduler.denial) == (ZERO, None)
    planned = story.plans()
    assert (planned.actions, planned.because) == (
        (),
        "asleep: holds no permit and requests this size on wake",
    )
    assert planned.wake_at == 69.0, "a heartbeat as ever"
    assert story.at(69.0).acts() == [RequestPermit(replace_number(request, number + 1), Bytes(GIB))]
    assert why(story) == "asleep since 2026-11-27T02:10:00Z, 3 sessions open"
    assert follow(story.state, (), story.instant) == ((), ())


def replace_number(request: AgentRequest, number: int) -> AgentRequest:
    return AgentRequest(request.pod, request.resources, ZERO, UNIT, None, number)


def test_agent_that_begins_while_asleep_claims_nothing() -> None:
    story = Story(SLEEPY).sees(structs.replace(vm(cu(2)), phase="Asleep", actual=ZERO, resizable=False))
    assert story.acts() == [RequestPermit(AgentRequest(POD, ZERO, None, None, None, 1), Bytes(GIB))]
    story.answers(ZERO)
    assert story.state.scheduler.compute_unit == UNIT
    assert story.at(4.0).plans().actions == ()


@pytest.mark.parametrize(("later", "rejected"), [(9.0, 0), (10.0, 1)])
def test_request_repeats_until_scheduler_sees_wake(later: float, rejected: int) -> None:
    """Its response is not accepted; only a scheduler that stays behind is reported as a failure."""
    story = answered(shows(asleep(), "Waking", SleepState.WAKING))
    story = shows(story, "Running", SleepState.AWAKE).at(story.now + later)
    quiet_since(story, 0.0, cores=later)
    story.acts()
    assert story.state.scheduler.in_flight is not None
    story.answers(ZERO)
    assert (story.state.scheduler.permit, story.state.scheduler.rejected) == (cu(1), rejected)
    assert story.state.scheduler.failure is not None


def test_waking_vm_asks_for_what_it_had() -> None:
    """A denial, even of everything, is repeated as soon as allowed; after the grant there is nothing left to
    request.
    """
    story = asleep()
    shows(story.at(100.0), "Waking", SleepState.WAKING, message="10.1.2.3:41000 to port 5432")
    (ask,) = story.acts()
    assert isinstance(ask, RequestPermit)
    assert (ask.request.resources, ask.request.last_permit, ask.request.metrics) == (cu(1), ZERO, None)
    for later in (102.0, 104.0, 106.0):
        story.answers(ZERO)
        assert story.plans().wake_at == later, "no longer each time, as other denied requests wait"
        assert [type(action) for action in story.at(later).acts()] == [RequestPermit]
    story.answers(cu(1))
    assert (story.plans().actions, story.state.ceiling) == ((), cu(1))
    assert why(story) == "waking: 10.1.2.3:41000 to port 5432"
    shows(story, "Running", SleepState.WAKING, message="10.1.2.3:41000 to port 5432")
    assert why(story) == "waking: 10.1.2.3:41000 to port 5432", "its guest is starting"


def test_waking_vm_requests_size_above_lowered_bounds() -> None:
    """Its guest has that size; it shrinks to the bounds once it runs."""
    story = asleep()
    changed(story, use=cu(3), bounds=Bounds(cu(1), cu(2)))
    shows(story.at(100.0), "Waking", SleepState.WAKING)
    (ask,) = story.acts()
    assert isinstance(ask, RequestPermit)
    assert ask.request.resources == cu(3)
    story.answers(cu(3))
    assert story.state.scheduler.denial is None


def test_agent_that_begins_while_waking_may_be_denied() -> None:
    story = Story(SLEEPY).sees(structs.replace(vm(cu(2)), phase="Waking", actual=ZERO, resizable=False))
    assert story.acts() == [RequestPermit(AgentRequest(POD, cu(2), None, None, None, 1), Bytes(GIB))]
    story.answers(ZERO)
    assert (story.state.scheduler.rejected, story.plans().wake_at) == (0, 2.0)


def test_denied_wake_makes_no_guest_smaller() -> None:
    """Its permit was stored and its guest runs before the agent knows: so far it has only been denied."""
    story = asleep()
    shows(story.at(100.0), "Waking", SleepState.WAKING)
    story.acts()
    shows(story.answers(ZERO).at(101.0), "Running", SleepState.AWAKE)
    quiet_since(story, 1.0)
    (ask,) = story.acts()
    assert isinstance(ask, RequestPermit)
    assert ask.request.resources == cu(1)


def test_zero_permit_of_running_vm_is_rejected() -> None:
    story = settled_sleeper().at(9.0)
    story.acts()
    story.answers(ZERO)
    assert story.state.scheduler.rejected == 1


def woken(story: Story, at: float, message: str = "10.1.2.3") -> Story:
    shows(story.at(at), "Waking", SleepState.WAKING, message=message)
    answered(story)
    return shows(story.at(at + 0.3), "Running", SleepState.AWAKE, message=message)


def test_needs_survive_sleep_but_counters_do_not() -> None:
    """Hours of sleep leave no gap in the history, and no rate spans them. Earlier kills are not counted again."""
    story = settled_sleeper()
    idle(story, until=62.0)
    before = story.state.guest.stabilizer.target
    shows(ordered(story), "Asleep", SleepState.ASLEEP)
    answered(story).happens(ScrapeFailed(Fault.GUEST, "late"))
    assert explain(story.state, "a/b", story.instant).troubles == []
    assert explain(story.state, "a/b", story.instant).metrics is None
    woken(story, 30_000.0)
    quiet_since(story.at(30_001.0), 30_000.0, cores=900.0)
    assert story.state.guest.rates.busy is None
    quiet_since(story.at(30_002.0), 30_000.0)
    assert (story.state.guest.stabilizer.target, story.plans().because) == (
        before,
        "sized for cpu busy and memory used",
    )


def test_woken_vm_stays_awake_for_a_while() -> None:
    """The page from before its sleep still reports idle time, which does not count."""
    story = woken(asleep(), 1000.0)
    idle(story, until=1059.0)
    assert "quiet for 59 s of 60 s" in why(story)
    idle(story, until=1061.0)
    while not orders(story):
        answered(story)


def test_wake_for_nothing_is_told_once() -> None:
    story = woken(asleep(), 1000.0)
    idle(story, until=1062.0)
    wake = story.state.sleep.unused_wake(story.state.guest.observed)
    assert wake is not None
    assert wake.by == "10.1.2.3"
    while not orders(story):
        answered(story)
    story.acts()
    assert story.state.sleep.unused_wake(story.state.guest.observed) is None
    found = explain(story.state, "a/b", story.instant).sleep
    assert found is not None
    assert (found["woken_by"], found["woken_for_nothing"]) == ("10.1.2.3", True)


def test_used_wake_is_not_for_nothing() -> None:
    story = woken(asleep(), 1000.0)
    idle(story, until=1100.0, quiet=0.0)
    for second in range(1101, 1180):
        quiet_since(answered(story).at(float(second)), float(second) - 1100.0)
    assert story.state.sleep.unused_wake(story.state.guest.observed) is None
    assert orders(story)


def test_boot_instead_of_wake_is_no_use() -> None:
    story = asleep()
    shows(story.at(1000.0), "Waking", SleepState.WAKING, message="10.1.2.3")
    shows(answered(story).at(1001.0), "Running", SleepState.RESTARTED, message="its memory's file is gone")
    assert story.state.sleep.wake is None


def test_patch_from_before_sleep_holds_nothing() -> None:
    """A patch of unknown outcome gives nothing to a VM that is asleep; its wake asks for what is ordered then."""
    story = asleep()
    story.state.vm.unsettled = patches(cu(4), seen(story).version)
    assert story.state.held == ZERO
    shows(story.at(100.0), "Waking", SleepState.WAKING, use=cu(4))
    (ask,) = story.acts()
    assert isinstance(ask, RequestPermit)
    assert ask.request.resources == cu(4)


def test_load_of_running_vm_is_told_again() -> None:
    story = woken(asleep(), 1000.0)
    quiet_since(story.at(1016.0), 10.0)
    (ask,) = story.acts()
    assert isinstance(ask, RequestPermit)
    assert ask.request.metrics == Metrics(0.5, 0.25, Bytes(0))


def test_monitor_is_not_missed_while_asleep() -> None:
    story = idle(settled_sleeper(), until=62.0).happens(MonitorJoined(2))
    shows(ordered(story), "Asleep", SleepState.ASLEEP)
    assert story.state.monitor.version is None
    assert answered(story).happens(MonitorJoined(2)).state.monitor.version is None
    assert Seconds(0.0) < (story.state.monitor.kept_until or 0.0)
