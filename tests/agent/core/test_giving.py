"""Tests of a VM on a node that is short of room: what it offers, gives back and keeps (B.17)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
from msgspec import structs

from agent.core.actions import Action, PatchVm, RequestPermit
from agent.core.desired_size import desired_size, least_size
from agent.core.events import Fault, MonitorAnswered, MonitorJoined, MonitorLost, SchedulerAnswered, Started
from agent.core.explain import explain
from agent.core.policy import Policy
from agent.core.state import GiveBack
from agent.core.vm import VmFloor
from protocol.guest.monitor_messages import DownscaleRequest, DownscaleResult
from protocol.messages import PluginResponse
from protocol.smoothing.policy import parse_policy
from protocol.units import Bytes, Instant, Resources, Seconds
from tests.agent.core.story import POLICY, UNIT, Story, cu, holding, vm

SLOW = replace(POLICY, smoothing=holding(600.0))
"""A policy that keeps a need for ten minutes."""

BY_NEED = "its node is short of room: growing only by its recent need"

COARSE = replace(
    POLICY,
    smoothing=replace(
        holding(600.0), cpu=parse_policy([{"quantize": {"segments": [{"at": "0", "every": "2"}]}}], "cpu")
    ),
)
"""A policy that gives CPU in steps of eight units."""


def plays(
    story: Story, until: float, cores: float, shrink_to: Resources | None = None, used: float = 0.0
) -> Iterator[tuple[float, Action]]:
    """Actions of the agent until then, with times: one sample per second, and every request is granted."""
    while story.now < until:
        story.at(story.now + 1).looks(cores=cores, used=used)
        while actions := story.acts():
            for action in actions:
                yield story.now, action
                if isinstance(action, PatchVm):
                    story.obeys()
                elif isinstance(action, RequestPermit):
                    story.happens(
                        SchedulerAnswered(PluginResponse(action.request.resources, UNIT, shrink_to=shrink_to))
                    )


def passes(
    story: Story, until: float, cores: float, shrink_to: Resources | None = None, used: float = 0.0
) -> list[Resources]:
    """The sizes that are ordered until then."""
    return [action.target for _, action in plays(story, until, cores, shrink_to, used) if isinstance(action, PatchVm)]


def busy_lately(policy: Policy = SLOW) -> Story:
    """A VM of eight units that needed them half a minute ago, and has needed one since."""
    story = Story(policy).sees(vm(cu(8))).looks(cores=1.0)
    assert (passes(story, 5, 1.0), passes(story, 30, 0.1)) == ([], [])
    return story


def size(cpu_units: float, mem_units: float) -> Resources:
    """That much CPU and that much memory, in compute units."""
    return Resources(cu(cpu_units).cpu, cu(mem_units).mem)


def offer(story: Story, report: Resources | None = None) -> Resources | None:
    seen = story.state.vm.observed
    assert seen is not None
    return least_size(story.state, report or seen.use, story.instant)


def test_vm_offers_what_its_policy_keeps() -> None:
    story = busy_lately()
    assert (offer(story), story.plans().because) == (cu(1), "holding: less has not been proven to be enough")


def test_nothing_is_offered_before_it_is_proven() -> None:
    story = Story(SLOW).sees(vm(cu(8))).looks()
    passes(story, 20, 0.1)
    assert offer(story) is None
    passes(story, 21, 0.1)
    assert offer(story) == cu(1)


def test_stale_metrics_offer_nothing() -> None:
    assert offer(busy_lately().at(36)) is None


def test_vm_gives_exactly_what_is_requested() -> None:
    story = busy_lately()
    assert passes(story, 40, 0.1, cu(5)) == [cu(5)]
    assert passes(story, 50, 0.1, cu(1)) == [cu(1)]


def test_vm_never_gives_what_it_needs() -> None:
    story = busy_lately()
    assert passes(story, 31, 0.45) == []
    assert passes(story, 45, 0.1, cu(1)) == [cu(4)]
    assert passes(story, 60, 0.1, cu(1)) == [cu(1)]


def test_needed_memory_keeps_no_cpu() -> None:
    """Its memory needs six units, and so its policy keeps the CPU of six, which a neighbour lacks. Only a cluster that
    lacks headroom asks VMs to stay, and gets that CPU.
    """
    story = Story(SLOW).sees(vm(cu(6))).looks(used=3.0)
    assert passes(story, 30, 0.1, used=3.0) == []
    assert (offer(story), passes(story, 31, 0.1, cu(5), used=3.0)) == (None, [])
    assert passes(story, 40, 0.1, cu(6), used=3.0) == []
    assert offer(story) == size(1, 6)
    assert passes(story, 50, 0.1, size(1, 6), used=3.0) == [size(1, 6)]
    lean_until = story.state.scheduler.give_back.lean_until
    assert passes(story, lean_until - 1, 0.3, used=3.0) == [size(3, 6)]
    assert passes(story, lean_until, 0.3, used=3.0) == [cu(6)]
    apart_until = story.state.scheduler.give_back.apart_until
    assert (passes(story, apart_until - 1, 0.1, used=3.0), offer(story)) == ([], size(1, 6))
    assert (passes(story, apart_until, 0.1, used=3.0), offer(story)) == ([], None)


def test_giving_vm_explains_why_it_shrinks() -> None:
    story = busy_lately()
    story.state.scheduler.give_back.apply(cu(5), cu(9), story.instant)
    assert story.plans().because == "its node is short of room: keeping only its recent need"


def test_floor_is_kept() -> None:
    story = busy_lately()
    seen = story.state.vm.observed
    assert seen is not None
    story.sees(structs.replace(seen, floor=VmFloor(cu(6), Instant(1000.0)), version=9))
    assert passes(story, 40, 0.1, cu(1)) == [cu(6)]


def test_lean_vm_grows_for_its_need_alone() -> None:
    """By its policy it would grow back to eight units immediately, and take the room that its neighbour waits for."""
    story = busy_lately(COARSE)
    assert passes(story, 40, 0.1, cu(2)) == [cu(2)]
    assert story.plans().because == BY_NEED
    lean_until = story.state.scheduler.give_back.lean_until
    assert passes(story, 100, 0.1) == []
    assert passes(story, lean_until - 1, 0.4) == [size(4, 2)]
    assert passes(story, lean_until, 0.4) == [cu(8)]


def test_vm_that_should_stay_gives_nothing_back() -> None:
    """By its policy it would have eight units, but it needs four, and then five of CPU."""
    story = Story(COARSE).sees(vm(cu(4))).looks(cores=0.4)
    assert (passes(story, 35, 0.4, cu(4)), story.plans().because) == ([], BY_NEED)
    assert (passes(story, 40, 0.6, cu(5)), story.plans().because) == ([size(5, 4)], BY_NEED)


def test_pod_that_should_stay_keeps_odd_memory() -> None:
    """Its permit is in whole steps of memory, and does not cover the remainder."""
    odd = Resources(cu(4).cpu, Bytes(cu(2).mem.value + 1))
    view = structs.replace(vm(odd), is_pod=True)
    story = Story(SLOW).sees(view).looks()
    passes(story, 40, 0.1, Resources(cu(4).cpu, cu(2).mem))
    assert desired_size(story.state, view, story.instant).proposed == odd
    story.state.scheduler.give_back.apply(cu(1), cu(9), story.instant)
    assert desired_size(story.state, view, story.instant).proposed == cu(1)


def test_vm_that_regrets_offers_nothing_for_a_while() -> None:
    story = busy_lately()
    assert passes(story, 40, 0.1, cu(2)) == [cu(2)]
    assert passes(story, 45, 0.5) == [size(4, 2)]
    regrets_until = story.state.scheduler.give_back.offers_from
    passes(story, regrets_until - 1, 0.1)
    assert (regrets_until, offer(story)) == (101.0, None)
    passes(story, regrets_until, 0.1)
    assert offer(story) == cu(1)


def test_explanation_shows_what_was_asked() -> None:
    story = busy_lately()
    passes(story, 40, 0.1, cu(5))
    giving = explain(story.state, "default/vm-1", story.instant).giving
    assert giving == {
        "asked": {"cpu": "1250m", "mem": "5Gi"},
        "least": {"cpu": "250m", "mem": "1Gi"},
        "lean_seconds": story.state.scheduler.give_back.lean_until - 40,
    }


def test_original_scheduler_is_offered_nothing() -> None:
    story = Story(SLOW, unit=UNIT).sees(vm(cu(8))).looks()
    passes(story, 40, 0.1)
    assert offer(story) is None


def test_growing_vm_needs_what_it_asks_for() -> None:
    """Its memory grows for the page cache while its CPU idles, so no memory is offered."""
    story = busy_lately()
    assert offer(story, Resources(cu(8).cpu, cu(9).mem)) == Resources(cu(1).cpu, cu(9).mem)
    assert offer(story, cu(9)) is None


def test_memory_that_the_monitor_keeps_is_not_offered() -> None:
    story = busy_lately()
    story.happens(MonitorJoined(1))
    assert offer(story) == cu(1)
    ask = DownscaleRequest(cu(1))
    story.happens(Started(ask)).happens(MonitorAnswered(DownscaleResult(1, ok=False, status="in use")))
    assert offer(story) == Resources(cu(1).cpu, cu(8).mem)
    story.happens(MonitorLost(Fault.GUEST, "gone"))
    assert offer(story) == Resources(cu(1).cpu, cu(8).mem)


def requests(story: Story, until: float, cores: float) -> list[tuple[float, bool]]:
    """The times of requests that the VM sends for the size that it has, and True for each that offers something."""
    done = plays(story, until, cores)
    return [(at, action.request.needs is not None) for at, action in done if isinstance(action, RequestPermit)]


def test_lean_vm_tells_new_offer_at_once() -> None:
    """Other VMs keep their usual interval: only from a VM that was asked recently may the scheduler want more."""
    asked, alone = (replace(SLOW, timing=msgspec.structs.replace(SLOW.timing, tick=Seconds(60.0))) for _ in range(2))
    stories = [busy_lately(asked), busy_lately(alone)]
    stories[0].state.scheduler.give_back.apply(cu(8), cu(9), stories[0].instant)
    assert [requests(story, 90, 0.1) for story in stories] == [[(31.0, True)], [(61.0, True)]]


def test_new_offers_wait_their_time() -> None:
    giving = GiveBack()
    giving.apply(cu(2), cu(9), Instant(100.0))
    giving.note_offer(None, Instant(100.0))
    assert [giving.awaits_offer(Instant(at)) for at in (101.5, 102.0, 339.0, 340.0)] == [False, True, True, False]
    giving.note_offer(cu(1), Instant(200.0))
    assert not giving.awaits_offer(Instant(300.0))
