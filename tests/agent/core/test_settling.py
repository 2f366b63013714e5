"""After a shrink the guest is busy with it: the VM goes down step by step all the same, and grows at once for a load.

The guests here do what real ones do: taking memory off them is work of their kernel, on every CPU that they have, and
everything else waits for it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from agent.core.explain import explain
from agent.core.policy import Policy, Smoothing, Timing
from protocol.units import Resources, Seconds
from tests.agent.core.settling_guest import LOOK, Guest, Second
from tests.agent.core.story import cu, holding

SHORT = Policy(smoothing=holding(20.0, max_gap=10.0))
"""As the demonstration has it."""

FADING = Policy(smoothing=replace(Smoothing(), memory=SHORT.smoothing.memory))
"""The default, but memory is given back after seconds, not minutes."""

FOREVER = 1000.0
"""Seconds in which even the default has given back all that an idle guest does not need."""


def cpus(guest: Guest) -> list[int]:
    """The sizes that it had, in thousandths of a CPU."""
    return [size.cpu.value for size in guest.sizes]


def shrunk(policy: Policy, noise: float, times: int = 1) -> Guest:
    """A guest right after this many shrinks, which follow on a load."""
    guest = Guest(policy, cu(16), noise).looks(30.0, programs=3.2).looks(5.0, programs=1.2)
    while len(guest.sizes) <= times:
        guest.look()
    return guest


@pytest.mark.parametrize("policy", [SHORT, FADING], ids=["the demonstration's", "the default's for CPU"])
@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0, 2.0, 3.0])
def test_idle_vm_shrinks_to_minimum_monotonically(policy: Policy, noise: float) -> None:
    guest = shrunk(policy, noise)
    while guest.size != cu(1) and guest.story.now < FOREVER:
        guest.look()
    guest.looks(60.0)
    assert cpus(guest) == sorted(cpus(guest), reverse=True)
    assert guest.size == cu(1)
    assert len(cpus(guest)) > 2, "a shrink after a shrink"


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("load", [0.85, 1.2, 2.0])
@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0, 2.0, 3.0])
def test_load_after_shrink_regains_size_in_two_scrapes(noise: float, load: float, times: int) -> None:
    guest = shrunk(SHORT, noise, times).look()
    had = guest.sizes[-2]
    assert not had.within(guest.size)
    assert had.within(guest.looks(2 * LOOK, programs=load * had.cpu.as_cores).size)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("load", [0.85, 1.2, 2.0])
@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0, 3.0])
def test_settling_never_delays_growth(noise: float, load: float, times: int) -> None:
    assert looks_to_recover(noise, load, times) <= looks_to_recover(0.0, load, times)


@cache
def looks_to_recover(noise: float, load: float, times: int) -> int:
    """Sample a load on this share of the size before the last shrink, until the VM has that size again."""
    guest = shrunk(FADING, noise, times).look()
    had, looks = guest.sizes[-2], 0
    while not had.within(guest.size):
        guest.look(programs=load * had.cpu.as_cores)
        looks += 1
    return looks


ALONE = Second(programs=0.0, kernel=1.0, runnable=9.0, cpu_stall=0.9, mem_stall=0.0)
"""The kernel works, and no program does."""
CALM = Second(programs=0.05, kernel=0.07, runnable=2.0, cpu_stall=0.02, mem_stall=0.0)


@pytest.mark.parametrize(("actual", "looks"), [(1, 3), (4, 5)], ids=["finished", "not finished"])
def test_lasting_kernel_time_is_load(actual: int, looks: int) -> None:
    guest = shrunk(SHORT, noise=0.0, times=2)
    seen = guest.story.state.vm.observed
    assert seen is not None
    guest.story.sees(structs.replace(seen, actual=cu(actual), version=seen.version + 1))
    for _ in range(looks):
        assert guest.shows(ALONE).size == cu(1)
    assert cu(4).within(guest.shows(ALONE).size)


def test_kernel_time_after_calm_is_load() -> None:
    guest = shrunk(SHORT, noise=0.0, times=2).shows(CALM)
    assert cu(4).within(guest.shows(ALONE).size)


def test_calm_before_shrink_ends_is_not_settled() -> None:
    guest = shrunk(SHORT, noise=0.0, times=2)
    seen = guest.story.state.vm.observed
    assert seen is not None
    guest.story.sees(structs.replace(seen, actual=cu(4), version=seen.version + 1))
    assert guest.shows(CALM).shows(ALONE).size == cu(1)
    guest.story.sees(structs.replace(seen, version=seen.version + 2))
    assert guest.shows(ALONE).size == cu(1)
    assert cu(4).within(guest.shows(CALM).shows(ALONE).size)


def test_what_is_ignored_is_said() -> None:
    guest = shrunk(SHORT, noise=3.0, times=2).look()
    found = explain(guest.story.state, "default/vm-1", guest.story.instant)
    ignored = "because noise after a shrink is ignored"
    assert [tuple(part.values()) for part in found.parts] == [
        ("cpu busy", "95m", f"0.25 cores busy, target 85%; not 295m, {ignored}"),
        ("cpu waiting", "139m", f"tasks waited 100% of the time, 9 runnable; not 1177m, {ignored}"),
        ("memory used", "426141286", "0.30 GiB in use, target 75%"),
        ("memory waiting", "0", f"tasks waited for memory 100% of the time; not 1280Mi, {ignored}"),
    ]
    assert found.metrics is not None
    assert (found.metrics["cores_busy"], found.metrics["cores_in_kernel"]) == (0.25, 0.21)


SECONDS = st.builds(
    Second,
    programs=st.floats(0.0, 0.5),
    kernel=st.floats(0.0, 4.0) | st.just(0.0),
    runnable=st.floats(0.0, 12.0),
    cpu_stall=st.floats(0.0, 1.0) | st.just(0.0),
    mem_stall=st.floats(0.0, 1.0) | st.just(0.0),
)
ALWAYS = Policy(smoothing=holding(4.0), timing=Timing(settle=Seconds(60.0)))


@given(st.lists(SECONDS | st.just(Second(0.05, 0.0, 1.0, 0.0, 0.0)), max_size=40))
def test_ignored_need_still_bars_shrink(
    seconds: list[Second],
) -> None:
    guest = Guest(ALWAYS, cu(8))
    seen: list[tuple[float, Resources]] = []
    for second in seconds:
        size, number = guest.size, len(guest.sizes)
        guest.shows(second)
        known = guest.story.state.guest.goal
        seen.append((guest.story.now, known.at_least.at_least(known.possible).at_most(size)))
        for smaller in guest.sizes[number:]:
            assert all(most.within(smaller) for at, most in seen if guest.story.now - at <= 4.0)
