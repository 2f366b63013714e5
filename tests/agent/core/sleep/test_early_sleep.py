"""An idle VM sleeps before its time if its node is short of room and the scheduler asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from agent.core.actions import OrderSleep, PatchVm, RequestPermit
from agent.core.events import Fault, PolicySet, SchedulerAnswered, SleepNotOrdered, SleepOrdered, WindowChanged
from agent.core.explain import explain
from agent.core.policy import SleepPolicy
from protocol.guest.sleep import SleepState
from protocol.messages import PluginResponse
from protocol.units import ZERO, MilliCpu, Resources, Seconds
from tests.agent.core.sleep.sleepers import idle, orders, quiet_since, seen, shows, why
from tests.agent.core.story import POLICY, UNIT, Story, cu, vm

PATIENT = replace(POLICY, sleep=SleepPolicy(Seconds(400.0)))
"""A VM sleeps after 400 s, and after 100 s if its node is short of room."""

MAY_SLEEP = Resources(MilliCpu(0), cu(1).mem)


def awake(until: float) -> Story:
    """A VM at its minimum that has been observed running and quiet from the start."""
    story = Story(PATIENT).sees(vm(cu(1)))
    quiet_since(story, 1000.0)
    return idle(story, until=until)


def offer(story: Story) -> Resources | None:
    """The VM's offer in its next request, which stays in flight."""
    while True:
        quiet_since(story.at(story.now + 1.0), 1000.0)
        for action in story.acts():
            if isinstance(action, RequestPermit):
                return action.request.needs


def hears(story: Story, shrink_to: Resources | None = ZERO) -> Story:
    """The request in flight is granted, and the response has this shrink request."""
    asking = story.state.scheduler.in_flight
    assert asking is not None
    return story.happens(SchedulerAnswered(PluginResponse(asking.request.resources, UNIT, shrink_to=shrink_to)))


def asked(until: float = 110.0) -> Story:
    """A VM that offered to sleep and was asked to."""
    story = awake(until)
    assert offer(story) == MAY_SLEEP
    return hears(story)


def test_idle_vm_sleeps_early_if_its_node_asks() -> None:
    story = asked()
    assert explain(story.state, "default/vm-1", story.instant).giving["asked"] == {"cpu": "0", "mem": "0"}
    assert story.acts() == [OrderSleep(1, is_early=True)]
    early = "; ordered early, because its node is short of room"
    assert why(story) == f"awake: the order is being written{early}"
    story.happens(SleepOrdered(structs.replace(seen(story), order="a", version=2)))
    assert offer(story) == MAY_SLEEP, "it is on its way, so no other VM has to go"
    shows(hears(story, None), "Asleep", SleepState.ASLEEP)
    assert why(story) == f"asleep since 2026-11-27T02:10:00Z, 3 sessions open{early}"
    shows(story, "Waking", SleepState.WAKING)
    assert why(story) == "waking"


def test_vm_that_is_not_asked_stays_awake() -> None:
    story = awake(390.0)
    assert (offer(story), orders(hears(story, None)), "of 400 s" in why(story)) == (MAY_SLEEP, False, True)


def test_vm_offers_after_a_quarter_of_delay() -> None:
    assert (offer(awake(80.0)), offer(awake(100.0))) == (None, MAY_SLEEP)


def test_memory_of_awake_vm_is_offered_too() -> None:
    """Its policy keeps four units of memory for a minute; the node may have them without putting the VM to sleep."""
    story = awake(110.0)
    size = Resources(cu(1).cpu, cu(4).mem)
    story.sees(
        structs.replace(seen(story), use=size, actual=size, bounds=replace(seen(story).bounds, min=cu(1)), version=9)
    )
    story.state.monitor.join(2)
    assert offer(story) == MAY_SLEEP
    assert [type(action) for action in hears(story, cu(1)).acts()] != [OrderSleep]


def test_vm_does_not_shrink_first() -> None:
    story = asked()
    assert not any(isinstance(action, PatchVm) for action in story.plans().actions)
    assert not story.state.scheduler.give_back.is_lean(story.instant)


OBSTACLES: list[Callable[[Story], object]] = [
    lambda story: quiet_since(story, 99.0),
    lambda story: quiet_since(story, 1000.0, "backup"),
    lambda story: quiet_since(story, 1000.0, cores=4.0),
    lambda story: story.happens(WindowChanged("Mon 07:00-20:00 UTC")),
    lambda story: story.happens(PolicySet(POLICY)),
    lambda story: story.sees(structs.replace(seen(story), never_sleeps="it is a standby", version=2)),
    lambda story: story.sees(structs.replace(seen(story), phase="Scaling", version=2)),
]


@pytest.mark.parametrize("happens", OBSTACLES)
def test_obstacles_keep_vm_awake_on_a_short_node(happens: Callable[[Story], object]) -> None:
    """The same obstacles apply as at any time: it is not ordered to sleep, and does not offer it."""
    story = asked()
    assert orders(story)
    happens(story.at(story.now + 0.5))
    assert not orders(story)
    story.at(story.now + 7.0)
    happens(story)
    needs = [action.request.needs for action in story.acts() if isinstance(action, RequestPermit)]
    assert len(needs) == 1
    assert needs != [MAY_SLEEP]


def test_refusal_ends_the_offer_for_a_while() -> None:
    story = asked()
    story.acts()
    story.happens(SleepOrdered(structs.replace(seen(story), order="a", version=2)))
    shows(story, "Running", SleepState.REFUSED, message="a query runs")
    assert why(story) == "awake: refused to sleep: a query runs; retrying in 100 s"
    offers_again_after_100_seconds(story, none_for=85.0)


def test_unwritten_order_is_not_called_early() -> None:
    story = asked()
    story.acts()
    story.happens(SleepNotOrdered(Fault.VM_API, "403"))
    assert "ordered early" not in why(story)


def test_vm_that_grew_after_giving_offers_no_sleep() -> None:
    story = awake(110.0)
    story.state.scheduler.give_back.gave_at = story.instant
    story.state.scheduler.give_back.note_growth(story.instant)
    assert offer(story) is None


def test_woken_vm_offers_sleep_only_after_quiet() -> None:
    story = asked()
    story.acts()
    story.happens(SleepOrdered(structs.replace(seen(story), order="a", version=2)))
    shows(story, "Asleep", SleepState.ASLEEP)
    assert offer_asleep(story) is None
    shows(hears(story, None), "Waking", SleepState.WAKING)
    assert offer_asleep(story) is None
    shows(hears(story, None), "Running", SleepState.AWAKE)
    offers_again_after_100_seconds(story, none_for=90.0)


def offers_again_after_100_seconds(story: Story, *, none_for: float) -> None:
    began = story.now
    while story.now < began + none_for:
        assert offer(story) is None
        hears(story, None)
    idle(story, until=began + 100.0)
    assert offer(story) == MAY_SLEEP


def offer_asleep(story: Story) -> Resources | None:
    (ask,) = story.acts()
    assert isinstance(ask, RequestPermit)
    return ask.request.needs
