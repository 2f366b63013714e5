"""A VM whose policy allows sleep, and what its guest and its controller report."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from agent.core.actions import OrderSleep
from agent.core.events import Scraped, SleepOrdered
from agent.core.explain import explain
from agent.core.policy import SleepPolicy
from agent.core.vm import Vm
from protocol.guest.sleep import SleepReport, SleepState
from protocol.units import ZERO, Seconds
from tests.agent.core.story import POLICY, Story, cu, sample, vm

SLEEPY = replace(POLICY, sleep=SleepPolicy(Seconds(60.0)))


def quiet_since(story: Story, seconds: float, *awake: str, cores: float = 0.0) -> Story:
    """A page of the guest says for how long its database has been quiet, and what keeps it awake."""
    story.busy += cores
    page = sample(story.busy, story.stalled, 0.0)
    return story.happens(Scraped(structs.replace(page, quiet=seconds, awake=awake)))


def idle(story: Story, *awake: str, until: float, quiet: float = 1000.0) -> Story:
    """Let seconds pass in which the guest is idle; the agent sends its regular requests, which are granted."""
    while story.now < until:
        story.at(story.now + 1.0)
        quiet_since(story, quiet, *awake)
        answered(story)
    return story


def answered(story: Story) -> Story:
    """Carry out the agent's actions, except an order to sleep, and grant each request."""
    if not orders(story):
        story.acts()
    asking = story.state.scheduler.in_flight
    return story if asking is None else story.answers(asking.request.resources)


def settled_sleeper(size: float = 1) -> Story:
    """An agent at one second whose VM may sleep."""
    story = Story(SLEEPY).sees(vm(cu(size)))
    quiet_since(story, 1000.0)
    return answered(story).at(1.0)


def seen(story: Story) -> Vm:
    found = story.state.vm.observed
    assert found is not None
    return found


def shows(story: Story, phase: str, state: SleepState, *, order: str = "a", message: str = "", **more: object) -> Story:
    """The controller writes the status."""
    found = seen(story)
    report = SleepReport(order, state, "2026-11-27T02:10:00Z", message, sessions=3)
    has = found.use if phase == "Running" else ZERO
    changed = structs.replace(
        found, phase=phase, sleep=report, actual=has, resizable=phase == "Running", version=found.version + 1
    )
    return story.sees(structs.replace(changed, **more))


def ordered(story: Story, order: str = "a") -> Story:
    """The order of the present plan is written."""
    assert [type(action) for action in story.acts()] == [OrderSleep]
    found = seen(story)
    return story.happens(SleepOrdered(structs.replace(found, order=order, version=found.version + 1)))


def asleep(size: float = 1) -> Story:
    """A VM that has slept from 62 s on, and whose agent has given up the permit."""
    story = ordered(idle(settled_sleeper(size), until=62.0))
    return answered(shows(story, "Asleep", SleepState.ASLEEP))


def orders(story: Story) -> bool:
    """Return True if the agent orders the VM to sleep now."""
    return any(isinstance(action, OrderSleep) for action in story.plans().actions)


def why(story: Story) -> str:
    """The explanation of the VM's sleep."""
    found = explain(story.state, "default/vm-1", story.instant).sleep
    assert found is not None
    return str(found["because"])
