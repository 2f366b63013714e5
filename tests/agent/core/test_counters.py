"""Counters that fall, and CPUs that a page lacks: only what cannot be compared is unknown, and unknown is not idle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.actions import PatchVm
from agent.core.events import Scraped
from agent.core.goal import goal, is_calm
from agent.core.guest import COUNTER_JITTER, CpuSeconds, GuestSample, ObservedSample, Rates, rates
from agent.core.policy import Policy, Timing
from protocol.units import Bytes, Instant, MilliCpu, Resources, Seconds
from tests.agent.core.story import GIB, POLICY, Story, asks, cu, holding, settled, vm

CPUS = 4
FULL = cu(4 * CPUS)
AT_ONCE = holding(0.1)
"""Policies that shrink on the first look that asks for less."""

MODES = ("programs", "kernel", "steal")


@dataclass
class Counters:
    """Counters of one CPU, far from zero so that a reset shows as a decrease."""

    programs: float = 1000.0
    kernel: float = 1000.0
    steal: float = 1000.0
    iowait: float = 1000.0

    @property
    def shown(self) -> CpuSeconds:
        """As a page shows it."""
        return CpuSeconds(self.programs + self.kernel, self.steal, self.iowait, self.kernel)


@dataclass
class Guest:
    """A guest of four CPUs, and the pressure on its CPU and memory."""

    cpus: dict[str, Counters] = field(default_factory=lambda: {str(cpu): Counters() for cpu in range(CPUS)})
    cpu_stall: float = 1000.0
    mem_stall: float = 1000.0

    def page(self, *without: str) -> GuestSample:
        """Its metrics, without some of its CPUs."""
        return GuestSample(
            cpus={name: cpu.shown for name, cpu in self.cpus.items() if name not in without},
            boot_time=1.0,
            mem_total=Bytes(64 * GIB),
            mem_available=Bytes(64 * GIB),
            cpu_stall=self.cpu_stall,
            mem_stall=self.mem_stall,
        )


def between(before: dict[str, CpuSeconds], after: dict[str, CpuSeconds], cpus: int = 0) -> Rates:
    """The rates of one second."""
    return rates(
        ObservedSample(GuestSample(cpus=before), Instant(0.0)),
        ObservedSample(GuestSample(cpus=after), Instant(1.0)),
        cpus,
    )


def test_falling_steal_leaves_busy_known() -> None:
    """A guest that was moved counts steal from zero again, on each of its CPUs."""
    before = {str(cpu): CpuSeconds(10.0, steal=5.0) for cpu in range(4)}
    found = between(before, {name: CpuSeconds(11.0) for name in before})
    assert (found.busy, found.steal, found.unknown) == (4.0, 0.0, 0.0)
    partly = between(before, {name: CpuSeconds(10.25) for name in before})
    assert (partly.busy, partly.unknown) == (1.0, 3.0)


@pytest.mark.parametrize(
    ("after", "busy", "unknown"),
    [
        (CpuSeconds(10.5, kernel=1.75), 0.75, 0.25),
        (CpuSeconds(9.0, kernel=2.5), 0.5, 0.5),
        (CpuSeconds(10.5, kernel=2.0, iowait=1.0), 0.5, 0.0),
        (CpuSeconds(10.5, kernel=1.995), 0.505, 0.0),
        (CpuSeconds(0.1), None, 0.0),
    ],
    ids=["kernel fell", "programs fell", "iowait fell", "less than a tick", "everything fell"],
)
def test_each_counter_counts_by_itself(after: CpuSeconds, busy: float | None, unknown: float) -> None:
    found = between({"0": CpuSeconds(10.0, iowait=4.0, kernel=2.0)}, {"0": after})
    assert found.busy == (None if busy is None else pytest.approx(busy))
    assert found.unknown == pytest.approx(unknown)


def test_cpus_that_came_or_are_missing_are_unknown() -> None:
    cpus = {str(cpu): CpuSeconds(10.0) for cpu in range(4)}
    two = {name: cpus[name] for name in ("0", "1")}
    assert between(two, cpus).unknown == 2.0
    assert between(cpus, two).unknown == 0.0
    assert between(cpus, two, cpus=4).unknown == 2.0
    assert between({"9": CpuSeconds(1.0)}, two).busy is None


def test_unknown_time_is_kept_and_asks_for_nothing() -> None:
    sample, has = Guest().page(), Resources(MilliCpu(4000), Bytes(GIB))
    found = goal(sample, Rates(busy=1.0, unknown=3.0), has, Policy(), settling=False)
    assert found.cpu == MilliCpu.cores(1.0 / 0.85)
    assert found.possible.cpu == MilliCpu.cores(4.0 / 0.85)
    assert found.parts[0].because == "1.00 cores busy, target 85%; 3.00 cores unknown, so no shrink"
    lost = goal(sample, Rates(lost=frozenset({"cpu_stall", "mem_stall"})), has, Policy(), settling=False)
    assert lost.possible == has
    assert not is_calm(Rates(busy=0.0, unknown=1.0), has, Policy())


def test_a_partial_interval_counts_in_no_mean() -> None:
    """Readers of the agent's count must not mistake unknown time for idle time."""
    story, guest = Story(POLICY).sees(vm(FULL, high=16)), Guest()
    story.happens(Scraped(guest.page()))
    _works(guest, (1.0, 0.0, 0.0))
    guest.cpus["0"].programs = 0.0
    story.at(1.0).happens(Scraped(guest.page()))
    assert (story.state.guest.rates.busy, story.state.guest.counted.observed) == (3.0, 0.0)
    _works(guest, (1.0, 0.0, 0.0))
    story.at(2.0).happens(Scraped(guest.page()))
    assert story.state.guest.counted.used == 4.0


def _works(guest: Guest, split: tuple[float, float, float]) -> None:
    """One second of full load on every CPU, split between programs, the kernel and what the host stole."""
    for cpu in guest.cpus.values():
        for mode, share in zip(MODES, split, strict=True):
            setattr(cpu, mode, getattr(cpu, mode) + share / sum(split))


SPLITS = st.tuples(*(st.floats(0.01, 1.0) for _ in MODES))
FALLS = st.lists(st.tuples(st.sampled_from("0123"), st.sampled_from((*MODES, "iowait")), st.floats(0.0, 900.0)))
MISSING = st.lists(st.sampled_from("0123"), max_size=3)
PRESSURE = st.sampled_from(("", "cpu_stall", "mem_stall"))
STEPS = st.lists(st.tuples(SPLITS, FALLS, MISSING, PRESSURE), max_size=12)


@given(STEPS)
def test_full_load_never_shrinks(
    steps: list[tuple[tuple[float, float, float], list[tuple[str, str, float]], list[str], str]],
) -> None:
    """Whatever the counters do, a guest whose CPUs are all busy keeps them, even with a policy that shrinks at once.

    What falls no lower than it was read at last time looks like a counter that stands still: that is no fall here.
    """
    story, guest = Story(replace(POLICY, smoothing=AT_ONCE)).sees(vm(FULL, high=16)), Guest()
    story.happens(Scraped(guest.page())).acts()
    story.answers(FULL)
    for second, (split, falls, missing, pressure) in enumerate(steps, start=1):
        read = {name: replace(cpu) for name, cpu in guest.cpus.items()}
        _works(guest, split)
        for name, counter, value in falls:
            if value < getattr(read[name], counter) - COUNTER_JITTER:
                setattr(guest.cpus[name], counter, value)
        if pressure:
            setattr(guest, pressure, second / 100)
        story.at(float(second)).happens(Scraped(guest.page(*missing)))
        found = story.state.guest.rates
        if found.busy is not None:
            assert found.busy <= CPUS + 0.001
            assert found.busy + found.unknown >= CPUS - 0.001 * CPUS - 4 * 0.01
        assert all(each.target.cpu == FULL.cpu for each in story.acts() if isinstance(each, PatchVm))


def test_denied_vm_keeps_its_request_between_scrapes() -> None:
    """With scrapes every 20 s, metrics were stale after 5 s: the request was withdrawn, so nothing moved for the VM."""
    timing = Timing(scrape=Seconds(20.0))
    story = settled(2, replace(POLICY, smoothing=holding(4.0, 60.0), timing=timing)).at(21.0)
    assert story.looks(cores=0.5, span=21.0).acts() == [asks(cu(4), cu(2), 2)]
    again = story.answers(cu(2)).at(40.0).acts()
    assert again == [asks(cu(4), cu(2), 3)]


@pytest.mark.parametrize("scrape", [1.0, 45.0])
def test_busy_vm_grows_with_any_scrape_interval(scrape: float) -> None:
    """Rates over more than 30 s counted as outdated, so an agent that scraped every 45 s never saw any CPU use."""
    timing = Timing(scrape=Seconds(scrape))
    story = settled(2, replace(POLICY, smoothing=holding(4.0, 3 * scrape), timing=timing))
    busy = story.at(1.0 + scrape).looks(cores=0.5, span=1.0 + scrape).acts()
    assert busy == [asks(cu(4), cu(2), 2)]


def test_counter_of_several_cpus() -> None:
    """A control group has one counter for all CPUs; one that fell leaves all of them unknown."""

    def page(busy: float, at: float) -> ObservedSample:
        return ObservedSample(GuestSample(cpus={"all": CpuSeconds(busy, cpus=4), "0": CpuSeconds(0.0)}), Instant(at))

    assert rates(page(10.0, 0.0), page(13.0, 1.0), 2) == Rates(3.0, 0.0, 0.0, 0.0, span=1.0)
    assert rates(page(10.0, 0.0), page(19.0, 1.0), 2) == Rates(4.0, 0.0, 0.0, 0.0, span=1.0)
    assert rates(page(10.0, 0.0), page(3.0, 1.0), 2) == Rates(0.0, 0.0, 0.0, 0.0, span=1.0, unknown=4.0)
