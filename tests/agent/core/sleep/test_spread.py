"""VMs whose agents restart together do not all sleep in the same second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.policy import SleepPolicy
from protocol.guest.sleep import SleepState
from protocol.units import Seconds
from tests.agent.core.sleep.sleepers import SLEEPY, answered, idle, ordered, orders, quiet_since, shows
from tests.agent.core.story import Story, cu, vm


def restarted(jitter: float, after: float = 60.0) -> Story:
    """An agent that has just started for a VM that has been idle for long."""
    policy = replace(SLEEPY, sleep=SleepPolicy(Seconds(after)))
    story = Story(policy, jitter=jitter).sees(vm(cu(1)))
    quiet_since(story, 10_000.0)
    story.jitter = 0.0
    return answered(story).at(1.0)


@pytest.mark.parametrize(("jitter", "after", "at"), [(0.0, 60.0, 60.0), (0.5, 60.0, 90.0), (0.1, 900.0, 930.0)])
def test_restarted_agents_order_sleep_one_after_another(jitter: float, after: float, at: float) -> None:
    """None of them knows for how long its VM was observed before, and each VM writes its memory to disk."""
    story = idle(restarted(jitter, after), until=at - 1.0, quiet=10_000.0)
    assert not orders(story)
    assert orders(quiet_since(answered(story).at(at + 1.0), 10_000.0))


def test_activity_after_the_restart_counts_in_full() -> None:
    """Clients of different VMs do not stop in the same second, so no spread is needed."""
    story = idle(restarted(0.9), until=20.0, quiet=0.0)
    for second in range(21, 80):
        quiet_since(answered(story).at(float(second)), float(second) - 20.0)
        assert not orders(story)
    assert orders(quiet_since(answered(story).at(80.0), 60.0))


def test_woken_vm_spreads_nothing() -> None:
    """Its own client woke it."""
    story = ordered(idle(restarted(1.0), until=122.0, quiet=10_000.0))
    shows(answered(shows(story, "Asleep", SleepState.ASLEEP)).at(200.0), "Waking", SleepState.WAKING)
    shows(answered(story).at(200.3), "Running", SleepState.AWAKE)
    assert orders(idle(story, until=262.0, quiet=10_000.0))
