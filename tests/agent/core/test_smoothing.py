"""A policy of stages in the agent: what it may delay, what it never may, and what it forgets."""

from __future__ import annotations

from dataclasses import replace

from agent.core.events import PolicySet
from agent.core.explain import explain
from agent.core.guard import Step
from agent.core.policy import Policy, Smoothing
from agent.core.smoothing import PipelineGuard
from protocol.smoothing.default import DEFAULT_CPU, DEFAULT_MEMORY
from protocol.smoothing.policy import parse_policy
from protocol.units import Bytes, Instant, MilliCpu, Resources, Seconds
from tests.agent.core.story import GIB, POLICY, Story, asks, cu, patches, settled

HOLD = Smoothing(parse_policy([{"hold": {"window": 4}}], "cpu"), parse_policy([{"hold": {"window": 4}}], "memory"))
SLOW = Smoothing(parse_policy([{"sustain": {"over": 60}}], "cpu"), HOLD.memory)


def of(smoothing: Smoothing) -> Policy:
    return replace(POLICY, smoothing=smoothing)


def looking_for(story: Story, seconds: int, cores: float, used: float = 0.0) -> Story:
    for _ in range(seconds):
        story.at(story.now + 1.02).looks(cores=cores, span=1.02, used=used)
    return story


def test_a_policy_grows_at_once_and_shrinks_when_its_stages_say_so() -> None:
    story = settled(1, of(HOLD)).looks(cores=0.25)
    assert story.acts() == [asks(cu(2), cu(1), 2)]
    story.answers(cu(2)).acts()
    looking_for(story.obeys(), 3, 0.0)
    assert story.acts() == []
    assert looking_for(story, 2, 0.0).acts() == [patches(cu(1), 2)]


def test_a_policy_may_delay_the_growth_of_cpu_but_never_that_of_memory() -> None:
    story = settled(1, of(SLOW)).looks().at(2.02).looks(cores=0.5, span=1.02)
    assert story.acts() == []
    story.at(3.04).looks(cores=0.5, used=1.0, span=1.02)
    assert story.acts() == [asks(cu(2), cu(1), 2, used=1.0)]


def test_what_is_held_stays_what_it_is_to_the_thousandth() -> None:
    guard = PipelineGuard(HOLD, Seconds(5.0))
    has = Resources(MilliCpu(1100), Bytes(3 * GIB))
    guard.observe(cu(1), has, Instant(0.0))
    assert guard.floor(Instant(0.0)) == has
    assert guard.explain(Instant(0.0)) == "the policy says 1100m cpu and 3.00 GiB"


def test_after_a_gap_a_policy_begins_anew() -> None:
    guard = PipelineGuard(HOLD, Seconds(5.0))
    for second in range(6):
        guard.observe(cu(1), cu(4), Instant(float(second)))
    assert guard.floor(Instant(5.0)) == cu(1)
    assert guard.floor(Instant(11.0)) is None
    assert guard.growth(cu(3), Instant(11.0)) == cu(3)
    guard.observe(None, cu(4), Instant(11.0))
    assert guard.explain(Instant(11.0)) == "no proof yet: the policy has seen no need, or none for too long"
    guard.observe(cu(1), cu(4), Instant(12.0))
    assert guard.floor(Instant(12.0)) == cu(4)


def test_each_stage_explains_itself() -> None:
    found = explain(settled(2, of(HOLD)).looks(cores=0.1).state, "default/vm-1", Instant(1.0))
    assert found.smoothing == (
        Step("cpu", "hold", "200m", "500m", "no whole window seen yet (4 s)"),
        Step("memory", "hold", "0", "2Gi", "no whole window seen yet (4 s)"),
    )
    assert explain(settled(2).state, "default/vm-1", Instant(1.0)).smoothing == ()


def test_another_policy_is_a_new_beginning() -> None:
    story = settled(2)
    story.happens(PolicySet(of(Smoothing(DEFAULT_CPU, DEFAULT_MEMORY))))
    assert isinstance(story.state.guest.guard, PipelineGuard)
