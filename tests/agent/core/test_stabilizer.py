"""The policies' effect on a need: what they may delay, must not delay, hold, and forget."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.core.actions import RequestPermit
from agent.core.events import PolicySet
from agent.core.explain import explain
from agent.core.policy import Policy, Smoothing
from agent.core.stabilizer import Stabilizer
from protocol.smoothing.policy import parse_policy
from protocol.units import Bytes, Instant, MilliCpu, Resources
from tests.agent.core.story import GIB, POLICY, Story, asks, cu, holding, patches, settled, vm

SLOW = Smoothing(parse_policy([{"sustain": {"over": 60}}], "cpu"), holding(4.0).memory)


def of(smoothing: Smoothing) -> Policy:
    return replace(POLICY, smoothing=smoothing)


def looking_for(story: Story, seconds: int, cores: float) -> Story:
    for _ in range(seconds):
        story.at(story.now + 1.02).looks(cores=cores, span=1.02)
    return story


def size_of(story: Story) -> Resources:
    seen = story.state.vm.observed
    assert seen is not None
    return seen.use


def test_grows_at_once_shrinks_by_stages() -> None:
    story = settled(1).looks(cores=0.25)
    assert story.acts() == [asks(cu(2), cu(1), 2)]
    story.answers(cu(2)).acts()
    looking_for(story.obeys(), 3, 0.0)
    assert story.acts() == []
    assert looking_for(story, 2, 0.0).acts() == [patches(cu(1), 2)]


def test_policy_can_delay_cpu_not_memory() -> None:
    story = settled(1, of(SLOW)).looks().at(2.02).looks(cores=0.5, span=1.02)
    assert story.acts() == []
    story.at(3.04).looks(cores=0.5, used=1.0, span=1.02)
    assert story.acts() == [asks(cu(2), cu(1), 2, used=1.0)]


def test_unknown_need_bypasses_delay() -> None:
    story = settled(1, of(SLOW)).looks()
    seen = story.state.guest.observed
    assert seen is not None
    story.at(2.0).busy += 0.5
    story.state.guest.stabilizer.observe(None, cu(1), story.instant)
    story.state.guest.goal = replace(story.state.guest.goal, cpu=MilliCpu(500), mem=None)
    assert story.acts() == [asks(cu(2), cu(1), 2)]


def test_default_policy_grows_fast_shrinks_in_two_steps() -> None:
    story = settled(1, of(Smoothing())).looks()
    sizes: list[tuple[int, int]] = []
    for second in range(1, 700):
        has = size_of(story).cpu
        loaded = second <= 400
        story.at(1.0 + second).looks(cores=0.9 * has.as_cores if loaded else 0.01, stall=1.0 if loaded else 0.0)
        for action in story.acts():
            if isinstance(action, RequestPermit):
                story.answers(action.request.resources)
        story.acts()
        if story.state.vm.patching is not None:
            sizes.append((second, size_of(story.obeys()).cpu.value))
    up, down = sizes[:4], sizes[4:]
    assert up == [(1, 500), (2, 1000), (3, 1500), (5, 2000)], "the most that the VM may have"
    assert [size for _, size in down] == [1250, 750, 500, 250]
    assert [20 < at - 400 < 25 or 210 < at - 400 < 240 for at, _ in down] == [True] * 4


def test_held_size_is_exact() -> None:
    stabilizer = Stabilizer(holding(4.0))
    has = Resources(MilliCpu(1100), Bytes(3 * GIB))
    stabilizer.observe(cu(1), has, Instant(0.0))
    assert stabilizer.target == has
    assert stabilizer.explain() == (
        "1100m vCPU (hold: no whole window observed yet (4 s)) and "
        "3.00 GiB memory (hold: no whole window observed yet (4 s))"
    )
    stabilizer.observe(has, has, Instant(1.0))
    assert stabilizer.explain() == "1100m vCPU and 3.00 GiB memory"


def test_held_size_is_not_rounded_up() -> None:
    odd = Resources(MilliCpu(1100), Bytes(5 * GIB))
    story = Story().sees(vm(odd)).looks()
    story.acts()
    story.answers(odd).at(1.0).looks()
    assert story.plans().actions == ()


def test_after_a_gap_a_policy_begins_anew() -> None:
    stabilizer = Stabilizer(holding(4.0))
    for second in range(6):
        stabilizer.observe(cu(1), cu(4), Instant(float(second)))
    assert stabilizer.target == cu(1)
    stabilizer.observe(cu(1), cu(4), Instant(8.5))
    assert stabilizer.target == cu(4)


def told(stabilizer: Stabilizer, need: Resources | None, at: float) -> Resources | None:
    """The target for ``need`` of a VM of four units."""
    stabilizer.observe(need, cu(4), Instant(at))
    return stabilizer.target


def test_unknown_need_becomes_gap() -> None:
    stabilizer = Stabilizer(holding(4.0))
    assert [told(stabilizer, cu(1), float(second)) for second in range(6)] == [cu(4)] * 5 + [cu(1)]
    assert told(stabilizer, None, 6.0) is None
    assert stabilizer.explain() == "no target: the need is unknown"
    assert told(stabilizer, cu(1), 7.0) == cu(1)
    assert [told(stabilizer, None, 8.0), told(stabilizer, cu(1), 10.5)] == [None, cu(4)]


def test_proof_does_not_extend_to_larger_size() -> None:
    story = looking_for(settled(4), 6, 0.0)
    assert story.sees(vm(cu(6), version=2)).acts() == [asks(cu(6), cu(4), 2)]
    story.answers(cu(6))
    assert looking_for(story, 1, 0.0).acts() == [patches(cu(1), 2)]


def test_each_stage_explains_itself() -> None:
    found = explain(settled(2).looks(cores=0.1).state, "default/vm-1", Instant(1.0))
    assert [tuple(step.values()) for step in found.smoothing] == [
        ("cpu", "hold", "200m", "500m", "no whole window observed yet (4 s)"),
        ("memory", "hold", "0", "2Gi", "no whole window observed yet (4 s)"),
    ]
    assert explain(Story().state, "default/vm-1", Instant(1.0)).smoothing == []


def test_another_policy_is_a_new_beginning() -> None:
    story = settled(2).looks()
    story.happens(PolicySet(of(Smoothing())))
    assert story.state.guest.stabilizer.smoothing == Smoothing()
    assert story.state.guest.stabilizer.steps() == []


AMOUNTS = st.builds(
    lambda c, m: Resources(MilliCpu(c * 50), Bytes(m * GIB // 4)), st.integers(0, 40), st.integers(0, 40)
)


@given(st.lists(st.tuples(AMOUNTS, st.floats(0.1, 400.0)), min_size=1, max_size=30))
def test_default_never_undercuts_memory_need(needs: list[tuple[Resources, float]]) -> None:
    stabilizer, now, has = Stabilizer(Smoothing()), 0.0, cu(4)
    for need, pause in needs:
        now += pause
        stabilizer.observe(need, has, Instant(now))
        assert stabilizer.target is not None
        assert need.mem <= stabilizer.target.mem
        has = stabilizer.target
