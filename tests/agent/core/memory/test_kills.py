"""Processes that the guest's kernel killed: the VM grows a step for them and does not shrink for a while."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from agent.core.actions import RequestPermit
from agent.core.events import Scraped
from agent.core.explain import explain
from agent.core.goal import NO_GOAL, Part, with_part
from agent.core.guest import GuestSample
from agent.core.memory.kills import MEMORY_KILLS, Kills
from agent.core.policy import MemoryPolicy
from protocol.units import Bytes, Instant, MilliCpu, Seconds
from tests.agent.core.story import GIB, POLICY, Story, cu, sample, settled

STEP = MemoryPolicy(pressure_step=0.25, kill_hold=Seconds(60.0))
HAS = Bytes(4 * GIB)
CALM = replace(POLICY, memory=msgspec.structs.replace(POLICY.memory, kill_hold=Seconds(60.0)))


def page(kills: float | None, boot: float = 1.0, used: float = 0.25) -> GuestSample:
    return structs.replace(sample(0.0, 0.0, used), oom_kills=kills, boot_time=boot)


def looks(story: Story, at: float, page: GuestSample) -> Story:
    story.at(at).happens(Scraped(page))
    while actions := story.acts():
        for action in actions:
            if isinstance(action, RequestPermit):
                story.answers(action.request.resources)
            else:
                story.obeys()
    return story


def memory(story: Story) -> int:
    seen = story.state.vm.observed
    assert seen is not None
    return seen.use.mem.value // GIB


def test_kills_grow_vm_and_bar_shrinking() -> None:
    """Every twenty seconds a process is killed, while the guest reports little memory in use after each kill."""
    story, kills = settled(2, CALM), 0.0
    sizes = []
    for second in range(1, 61):
        kills += second % 20 == 0
        looks(story, float(second), page(kills))
        sizes.append(memory(story))
    assert sizes[18:20] == [1, 2]
    assert sizes[19:] == [2] * 20 + [3] * 20 + [4]


def test_bar_ends_after_the_last_kill() -> None:
    """A kill blocks shrinks for the policy's time and no longer, even if the guest claims otherwise."""
    story = looks(settled(2, CALM), 2.0, page(0.0))
    looks(story, 3.0, page(1e15))
    assert memory(story) == 3
    for second in range(4, 62):
        assert memory(looks(story, float(second), page(1e15))) == 3
    for second in range(62, 72):
        looks(story, float(second), page(1e15))
    assert memory(story) == 1
    assert story.state.guest.kills.total == 1_000_000


def test_kills_need_no_fresh_metrics_to_grow() -> None:
    """A guest that thrashes after a kill may not respond for a while; the VM still grows."""
    story = looks(settled(2, CALM), 2.0, page(0.0))
    story.at(3.0).happens(Scraped(page(1.0)))
    story.at(30.0)
    assert story.plans().because == "growing for memory kills"
    assert [each.request.resources.mem for each in story.acts() if isinstance(each, RequestPermit)] == [cu(3).mem]
    story.answers(cu(3))
    story.acts()
    assert story.obeys().at(31.0).plans().because == "no metrics: not below its current size"


def test_explain_tells_of_kills() -> None:
    story = looks(settled(2, CALM), 2.0, page(0.0))
    looks(story, 3.0, page(2.0))
    looks(story, 10.0, page(2.0))
    found = explain(story.state, "db/vm-1", story.instant)
    assert found.parts[-1]["name"] == MEMORY_KILLS
    assert found.parts[-1]["because"] == ("2 OOM kills so far, the last 7 s ago; no shrink for another 53 s")
    assert found.metrics is not None
    assert (found.metrics["oom_kills"], found.metrics["oom_kills_seen"]) == (2, 2)


@pytest.mark.parametrize(
    ("counters", "boots", "total"),
    [
        ((5.0,), (1.0,), 0),
        ((5.0, 6.0), (1.0, 1.0), 1),
        ((5.0, 9.0), (1.0, 1.0), 4),
        ((5.0, 3.0, 4.0), (1.0, 1.0, 1.0), 1),
        ((5.0, 7.0, 8.0), (1.0, 90.0, 90.0), 1),
        ((5.0, None, 7.0), (1.0, 1.0, 1.0), 2),
        ((5.0, None, 7.0), (1.0, 90.0, 90.0), 0),
        ((None, 2.0, 2.0), (1.0, 1.0, 1.0), 0),
    ],
    ids=[
        "the first look",
        "one",
        "several between two looks",
        "a counter that fell",
        "another boot",
        "a page without the counter",
        "another boot and a page without it",
        "an exporter that begins to count",
    ],
)
def test_only_rise_within_boot_is_kill(
    counters: tuple[float | None, ...], boots: tuple[float, ...], total: int
) -> None:
    found, last = Kills(), boots[0]
    for second, (counter, boot) in enumerate(zip(counters, boots, strict=True)):
        found = found.after(page(counter, boot), HAS, Instant(second), STEP, is_rebooted=boot != last)
        last = boot
    assert found.total == total


def test_each_look_asks_for_one_step() -> None:
    """Further kills before the guest has got the step do not request a second one."""
    start = Kills(counter=0.0)
    first = start.after(page(3.0), HAS, Instant(0), STEP, is_rebooted=False)
    assert first.needed(Instant(0)) == Bytes(5 * GIB)
    again = first.after(page(4.0), HAS, Instant(1), STEP, is_rebooted=False)
    assert again.needed(Instant(1)) == Bytes(5 * GIB)
    grown = again.after(page(5.0), Bytes(5 * GIB), Instant(2), STEP, is_rebooted=False)
    assert grown.needed(Instant(2)) == Bytes(25 * GIB // 4)
    assert grown.needed(Instant(62)) == Bytes(0)
    assert grown.part(Instant(62)) is None
    later = grown.after(page(6.0), HAS, Instant(70), STEP, is_rebooted=False)
    assert later.needed(Instant(70)) == Bytes(5 * GIB)


def test_without_a_hold_kills_change_nothing() -> None:
    policy = msgspec.structs.replace(STEP, kill_hold=Seconds(0.0), pressure_step=0.0)
    found = Kills(counter=0.0).after(page(1.0), HAS, Instant(5), policy, is_rebooted=False)
    assert (found.total, found.needed(Instant(5)), found.part(Instant(5))) == (1, Bytes(0), None)
    least = msgspec.structs.replace(policy, kill_hold=Seconds(9.0))
    assert Kills(counter=0.0).after(page(1.0), HAS, Instant(5), least, is_rebooted=False).need == HAS + Bytes(1)


def test_unknown_memory_stays_unknown_after_a_kill() -> None:
    assert with_part(NO_GOAL, Part(MEMORY_KILLS, HAS, "")).mem is None
    cpu = Part("cpu busy", MilliCpu(1), "")
    assert with_part(replace(NO_GOAL, mem=HAS), cpu).mem == HAS


def test_known_kills_are_not_counted_again() -> None:
    guest = looks(settled(2, CALM), 2.0, page(0.0)).state.guest
    assert (guest.kills_in(page(3.0)), guest.kills_in(page(3.0, boot=100.0))) == (3, 0)
