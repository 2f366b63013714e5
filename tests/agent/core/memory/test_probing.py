"""Probing step by step: how long each result is remembered, and how consecutive shrinks count."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from agent.core.actions import PatchVm
from agent.core.events import Scraped
from agent.core.explain import explain
from agent.core.guest import CpuSeconds, GuestSample
from agent.core.memory import probing as probing_module
from agent.core.memory.memory_view import MemoryView, kernel_share
from agent.core.memory.probing import Probing
from agent.core.memory.rereading import Cost
from agent.core.memory.trials import Filled, Filling, Growing, Growth, Observation, Phase, Resting, Returning, Shrink
from agent.core.memory.working_set import FailedGrowth, WorkingSetFloor
from agent.core.policy import CachePolicy, MemoryPolicy, Policy
from agent.core.vm import Vm
from protocol.units import Bytes, ComputeUnit, Instant, MilliCpu, Resources
from protocol.virtual_machine import Bounds
from tests.agent.core.story import Story, cu, settled

GIB = 1024**3
ROOT = Path(__file__).parents[4]
POLICY = CachePolicy()
DAY = 86_400.0


def gib(count: float) -> Bytes:
    return Bytes(int(count * GIB))


def look(use: float, cost: Cost | None = None, need: float = 0.0, maximum: float = 16, free: float = 0.0) -> MemoryView:
    """A sample of a VM of this many GiB; all except the free memory is page cache."""
    quarter = Bytes(GIB // 4)
    return MemoryView(gib(use), gib(maximum), quarter, gib(need), gib(free), gib(use - free), cost)


def busy(stall: float = 0.0) -> Cost:
    return Cost(seconds=1.0, stalled=stall, waited=stall, work=0.5)


def floor(size: float, at: float = 0.0, cores: float = 0.5) -> WorkingSetFloor:
    return WorkingSetFloor(gib(size), gib(size - 1), Instant(at), 1, Instant(at + 3600), busy(0.3), cores, Bytes(0))


def test_diagram_names_every_state_and_observation() -> None:
    """The diagram is in the module and in docs/policies.md; a note below it explains everything that it omits."""
    text = probing_module.__doc__ or ""
    diagram = [line.removeprefix("    ") for line in text.splitlines() if line.startswith("    ")]
    assert "\n".join(diagram) in (ROOT / "docs/policies.md").read_text()
    names = {state.__name__ for state in get_args(Phase)} | {observation.name for observation in Observation}
    assert names <= set(re.findall(r"\w+", text))


def test_what_was_learned_is_forgotten_after_a_day() -> None:
    probing = Probing(floor=floor(8))
    probing.observe(look(8, busy()), Instant(DAY), POLICY)
    assert probing.floor is not None
    probing.observe(look(8, busy()), Instant(DAY + 1), POLICY)
    assert probing.floor is None


def test_forgets_floor_without_new_metrics() -> None:
    probing, blind = Probing(floor=floor(8)), replace(look(8), free=None)
    probing.observe(blind, Instant(DAY), POLICY)
    assert probing.keep > Bytes(0)
    probing.observe(blind, Instant(DAY + 1), POLICY)
    assert (probing.floor, probing.keep) == (None, Bytes(0))


def test_harm_while_idle_keeps_greater_floor() -> None:
    probing = Probing(floor=floor(12))
    probing.observe(look(6, busy()), Instant(0.0), POLICY)
    probing.observe(look(4, busy()), Instant(1.0), POLICY)
    for second in range(2, 60):
        probing.observe(look(4, busy(stall=0.5)), Instant(float(second)), POLICY)
    assert probing.floor is not None
    assert (probing.floor.size, probing.keep) == (gib(12), gib(6))


def test_load_after_idle_shrink_regains_memory() -> None:
    idle, thrashing = Cost(seconds=1.0), Cost(1.0, stalled=0.5, waited=0.5, work=0.2)
    probing = Probing(floor=floor(12, cores=4.0))
    for second in range(1000):
        probing.observe(look(6, idle), Instant(float(second)), POLICY)
    assert probing.is_lifted(Instant(1000.0), POLICY)
    for second in range(1000, 1060):
        probing.observe(look(4, thrashing), Instant(float(second)), POLICY)
    assert probing.keep == gib(6)
    for second in range(1060, 1400):
        probing.observe(look(6, thrashing), Instant(float(second)), POLICY)
    assert probing.keep == gib(12)


def test_harmed_light_load_is_not_idle() -> None:
    light, hurt = Cost(seconds=1.0, work=0.2), Cost(1.0, stalled=0.5, waited=0.5, work=0.2)
    probing = Probing(floor=floor(12, cores=4.0))
    for second in range(1000):
        probing.observe(look(6, light), Instant(float(second)), POLICY)
    for second in range(1000, 1060):
        probing.observe(look(4, hurt), Instant(float(second)), POLICY)
    for second in range(1060, 4600):
        probing.observe(look(6, light), Instant(float(second)), POLICY)
        assert probing.keep == gib(6)


@pytest.mark.parametrize(("fills", "kept"), [(True, 6), (False, 8)])
def test_refilling_unused_memory_is_no_harm(*, fills: bool, kept: float) -> None:
    rereads = Cost(seconds=1.0, reread=2**25, read=2**25, stalled=0.5, waited=0.5, work=0.5)
    probing = Probing()
    probing.observe(look(8, busy(), free=2.5), Instant(0.0), POLICY)
    for second in range(1, 61):
        free = 2 - second / 32 if fills else 2
        probing.observe(look(6, rereads, free=free), Instant(float(second)), POLICY)
    assert probing.keep == gib(kept)


def test_late_harm_reverts_shrink() -> None:
    """A shrink that hurts only after its watch is reverted, too."""
    probing = Probing()
    probing.observe(look(8, busy()), Instant(0.0), POLICY)
    for second in range(1, 200):
        probing.observe(look(6, busy()), Instant(float(second)), POLICY)
    assert isinstance(probing.phase, Resting)
    for second in range(200, 300):
        probing.observe(look(6, busy(stall=0.5)), Instant(float(second)), POLICY)
    assert probing.keep == gib(8)


def test_shrinks_within_a_watch_revert_together() -> None:
    probing = Probing()
    for at, use in enumerate((8.0, 6.0, 5.0)):
        probing.observe(look(use, busy()), Instant(float(at)), POLICY)
    assert isinstance(probing.phase, Shrink)
    assert (probing.phase.before, probing.phase.after) == (gib(8), gib(5))


@pytest.mark.parametrize(("shows", "taken_back"), [(True, 6.75), (False, 8)])
def test_need_soon_after_shrink_reverts_it(*, shows: bool, taken_back: float) -> None:
    probing = Probing()
    for at, use, need in ((0.0, 8, 0.0), (1.0, 6, 0.0), (1000.0, 6, 6.6)):
        seen = look(use, busy(), need=need)
        probing.observe(seen if shows else replace(seen, free=None), Instant(at), POLICY)
    assert probing.floor is not None
    assert (probing.floor.size, probing.keep) == (gib(taken_back), gib(taken_back))


def test_small_need_reverts_only_what_is_needed() -> None:
    probing = Probing()
    probing.observe(look(16, busy(), free=13), Instant(0.0), POLICY)
    probing.observe(look(3, busy(), need=2), Instant(1.0), POLICY)
    probing.observe(look(3, busy(), need=3.1), Instant(1200.0), POLICY)
    assert probing.keep == gib(3.25)


@pytest.mark.parametrize(("maximum", "asked"), [(16, 3600.0), (4, 1.0)])
def test_claim_expires(maximum: float, asked: float) -> None:
    probing = Probing()
    probing.observe(look(8, busy(), maximum=maximum), Instant(0.0), POLICY)
    probing.observe(look(4, busy(), maximum=maximum), Instant(1.0), POLICY)
    hurt = busy(stall=0.5).scaled(60)
    probing.observe(look(4, hurt, maximum=maximum), Instant(61.0), POLICY)
    assert probing.keep == gib(8)
    probing.observe(look(4, busy(), maximum=maximum), Instant(60.0 + asked), POLICY)
    assert probing.keep == gib(8 if maximum > 4 else 4)
    probing.observe(look(4, busy(), maximum=maximum), Instant(61.0 + 3600), POLICY)
    assert probing.keep == gib(3.75)


def test_blocked_return_ends_at_next_try() -> None:
    """Programs that fill the memory of a fruitless growth keep it only until the growth may be retried."""
    learned, returning = (
        FailedGrowth(gib(4), gib(8), Instant(0.0), 2, Instant(7200.0), 0.0),
        Returning(gib(4), Instant(7200.0)),
    )
    probing = Probing(failed_growth=learned, phase=returning, recent=busy(stall=0.5).scaled(60))
    probing.observe(look(8, busy(stall=0.5), need=8), Instant(7199.0), POLICY)
    assert (probing.keep, probing.phase) == (gib(4), returning)
    for second in range(7200, 7400):
        probing.observe(look(8, busy(stall=0.5), need=8), Instant(float(second)), POLICY)
    assert isinstance(probing.phase, Growing)


def test_late_need_does_not_blame_shrink() -> None:
    probing = Probing()
    probing.observe(look(8, busy()), Instant(0.0), POLICY)
    probing.observe(look(6, busy()), Instant(1.0), POLICY)
    probing.observe(look(6, busy(), need=6.5), Instant(3700.0), POLICY)
    assert probing.floor is None
    assert isinstance(probing.phase, Shrink), "its watch goes on"
    assert probing.phase.is_expired


def test_late_need_spares_shrink_before_growth() -> None:
    growth, shrunk = Growth(gib(4), gib(6), busy(stall=0.5)), Shrink(gib(5), gib(4), Instant(0.0), busy())
    probing = Probing(phase=Growing(growth, shrunk), recent=busy(stall=0.5).scaled(60))
    probing.observe(look(4, busy(stall=0.5), need=5), Instant(3601.0), POLICY)
    assert probing.phase == Growing(growth)


def test_manual_shrink_ends_growth_trial() -> None:
    probing = Probing(phase=Growing(Growth(gib(4), gib(6), busy(stall=0.5))), recent=busy(stall=0.5).scaled(60))
    probing.observe(look(4, busy(stall=0.5)), Instant(0.0), POLICY)
    assert probing.keep == gib(6)
    probing.observe(look(3, busy(stall=0.5)), Instant(1.0), POLICY)
    assert isinstance(probing.phase, Shrink)


def test_unused_memory_is_returned_at_once() -> None:
    probing = Probing()
    probing.observe(look(8, busy(), free=5), Instant(0.0), POLICY)
    assert probing.keep == gib(3.75)


def test_unused_memory_of_rereading_guest_is_kernel_reserve() -> None:
    rereads = Cost(seconds=1.0, reread=1e6, read=1e6, work=0.5)
    probing = Probing()
    for at in range(200):
        probing.observe(look(8, rereads, free=3), Instant(float(at)), POLICY)
        assert probing.keep >= gib(7.5)
    probing = Probing(floor=replace(floor(8), spare=gib(3), retry_at=Instant(0.0)))
    for at in range(200):
        probing.observe(look(8, busy(), free=3), Instant(float(at)), POLICY)
    assert gib(7.5) <= probing.keep < gib(8), "a step like any other"


def test_no_second_shrink_before_verdict() -> None:
    probing, kept = Probing(), []
    for at, use, cost in ((0.0, 8, busy()), (1.0, 6, None), (2.0, 6, busy())):
        probing.observe(look(use, cost, free=2), Instant(at), POLICY)
        kept.append(probing.keep)
    assert kept == [gib(6.75), gib(6), gib(4.5)]


def test_what_is_about_to_be_filled_is_kept() -> None:
    probing = Probing()
    reading = Cost(seconds=1.0, read=GIB / 60, work=0.5)
    probing.observe(look(8, reading, free=5), Instant(0.0), POLICY)
    assert probing.keep == gib(6.75)


def test_kernel_share_has_a_minimum() -> None:
    has, policy = cu(4), MemoryPolicy()
    assert kernel_share(GuestSample(), has, policy) == policy.kernel_allowance
    assert kernel_share(GuestSample(mem_total=gib(3.5)), has, policy) == gib(0.5)
    assert kernel_share(GuestSample(mem_total=gib(3.99)), has, policy) == policy.kernel_allowance


def test_lowered_bound_spares_kernel_share() -> None:
    mib, cores = 2**20, MilliCpu(1000)
    has = Resources(cores, Bytes(4096 * mib))
    story = Story(Policy())

    def sees(maximum: int, version: int) -> None:
        bounds = Bounds(Resources(cores, Bytes(256 * mib)), Resources(cores, Bytes(maximum * mib)))
        story.sees(Vm(bounds, has, has, Bytes(128 * mib), version))

    def tells() -> None:
        total, used = 4016 * mib, 2040 * mib
        page = GuestSample(
            {"0": CpuSeconds(0.1 * story.now)}, mem_total=Bytes(total), mem_available=Bytes(total - used)
        )
        story.happens(Scraped(page))

    sees(4096, 1)
    tells()
    story.acts()
    unit = ComputeUnit(MilliCpu(250), Bytes(128 * mib))
    story.answers(has, unit=unit).at(1.0)
    sees(1024, 2)
    tells()
    assert [action.target.mem for action in story.acts() if isinstance(action, PatchVm)] == [Bytes(2176 * mib)]


def test_fruitless_floor_is_forgotten() -> None:
    suffering = Cost(seconds=10.0, reread=GIB, read=GIB, stalled=5.0, waited=5.0, work=5.0)
    probing = Probing(floor=floor(8), phase=Filled(Growth(gib(4), gib(8), suffering.scaled(6)), gib(8)))
    for second in range(10):
        probing.observe(look(8, suffering), Instant(10.0 * second), POLICY)
    assert (probing.floor, probing.keep) == (None, gib(4))
    assert probing.failed_growth is not None
    assert (probing.failed_growth.base, probing.failed_growth.size) == (gib(4), gib(8))


def test_trials_are_told_while_they_last() -> None:
    story = settled(4)
    probing = story.state.guest.probing

    def told() -> str:
        return explain(story.state, "default/vm-1", story.instant).working_set[0]

    suffering = Cost(seconds=10.0, reread=10 * 2**20, read=10 * 2**20, stalled=2.0, waited=2.0, work=5.0)
    growth = Growth(gib(4), gib(6), suffering)
    probing.phase = Growing(growth)
    why = "with 4.00 GiB the database rereads 1 MiB/s and stalls on that 20% of the time"
    assert told() == f"wants 6.00 GiB for the page cache: {why}"
    for phase in (Filling(growth, gib(6)), Filled(growth, gib(6))):
        probing.phase = phase
        assert told() == f"tests whether 6.00 GiB reduces rereads: {why}"
    probing.phase = Shrink(gib(4), gib(3), story.instant, busy())
    assert told() == "watches for another 3 min whether shrinking from 4.00 GiB to 3.00 GiB hurts"
