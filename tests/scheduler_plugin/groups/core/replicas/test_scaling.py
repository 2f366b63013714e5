"""How many replicas a group has by its own load: vertical first, and nothing flaps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.units import MilliCpu, Seconds
from scheduler_plugin.groups.core.replicas.scaling import Scaling, ScalingDecision, ScalingMemory, decide
from scheduler_plugin.groups.core.workload import ReplicaBounds, Rule
from tests.examples import examples
from tests.scheduler_plugin.groups.core.replicas.group_story import replica

NOW = 1000.0
TWO_CPUS = Scaling(ReplicaBounds(1, 4), MilliCpu(2000), 0.7, Seconds(30.0), Seconds(300.0))
LONG_ENOUGH = ScalingMemory(more_since=NOW - 10.0, fewer_since=NOW - 300.0)


def decided(*busy: float | None, memory: ScalingMemory = LONG_ENOUGH, current: int | None = None) -> ScalingDecision:
    members = [replica(number, busy_cores=load) for number, load in enumerate(busy)]
    return decide(TWO_CPUS, len(busy) if current is None else current, members, memory, NOW)


@pytest.mark.parametrize(
    ("busy", "replicas"),
    [
        ((0.1,), 1),
        ((1.4,), 1),
        ((1.41,), 2),
        ((2.0,), 2),
        ((2.0, 2.0), 3),
        ((1.4, 1.4), 2),
        ((2.0, 2.0, 2.0, 2.0), 4),
        ((0.6, 0.6), 1),
        ((0.64, 0.64), 2),
        ((0.0, 0.0, 0.0), 1),
    ],
)
def test_another_replica_comes_only_when_those_there_are_cannot_grow_any_more(
    busy: tuple[float, ...], replicas: int
) -> None:
    found = decided(*busy)
    assert (found.replicas, found.wanted, found.rule) == (replicas, replicas, None)


def test_it_says_what_it_saw() -> None:
    assert decided(1.9).because == "1.9 CPUs are busy, a replica may have 2 and use 70% of it"
    assert decided(1.0).because == "the load fits the replicas that there are"


def test_where_a_load_is_not_known_nothing_changes() -> None:
    found = decided(2.0, None)
    assert (found.replicas, found.wanted, found.because) == (2, None, "the load of 1 replicas is not known")
    boots = [replica(0, busy_cores=2.0), replica(1, available=False), replica(2, leaving=True)]
    assert decide(TWO_CPUS, 2, boots, ScalingMemory(), NOW).replicas == 2


def test_an_outage_of_all_replicas_is_no_want_of_load() -> None:
    down = [replica(number, available=False) for number in range(3)]
    found = decide(TWO_CPUS, 3, down, LONG_ENOUGH, NOW)
    assert (found.replicas, found.wanted, found.because) == (3, None, "no replica serves")
    assert found.memory.fewer_since is None


def test_the_bounds_hold_at_once() -> None:
    assert decided(1.0, current=9).replicas == 4


def test_a_group_that_was_scaled_to_zero_on_purpose_stays_so() -> None:
    found = decided()
    assert (found.replicas, found.wanted, found.because) == (0, None, "scaled to zero replicas: left alone")


def test_growing_waits_after_growing_and_equality_passes() -> None:
    late, soon = (decided(2.0, memory=replace(LONG_ENOUGH, last_up=NOW - ago)) for ago in (30.0, 29.0))
    assert (late.replicas, late.memory) == (2, ScalingMemory(last_up=NOW))
    assert (soon.replicas, soon.wanted, soon.rule) == (1, 2, Rule.DELAY)
    assert soon.because.endswith("the delay of 30 s is not over")


def test_a_moment_of_load_adds_nothing() -> None:
    first = decided(2.0, memory=ScalingMemory())
    assert (first.replicas, first.wanted, first.rule, first.memory.more_since) == (1, 2, Rule.DELAY, NOW)
    assert first.because.endswith("the delay of 10 s is not over")
    assert decided(2.0, memory=ScalingMemory(more_since=NOW - 9.9)).replicas == 1
    assert decided(1.0, memory=LONG_ENOUGH).memory == ScalingMemory()


@pytest.mark.parametrize(
    ("memory", "replicas"),
    [
        (ScalingMemory(), 2),
        (ScalingMemory(fewer_since=NOW - 299.0), 2),
        (LONG_ENOUGH, 1),
        (replace(LONG_ENOUGH, last_up=NOW - 299.0), 2),
        (replace(LONG_ENOUGH, last_down=NOW - 299.0), 2),
        (ScalingMemory(NOW - 300.0, NOW - 300.0, fewer_since=NOW - 300.0), 1),
    ],
)
def test_shrinking_waits_until_fewer_were_enough_for_long(memory: ScalingMemory, replicas: int) -> None:
    found = decided(0.1, 0.1, memory=memory)
    assert (found.replicas, found.wanted) == (replicas, 1)
    if replicas == 1:
        assert found.memory == ScalingMemory(memory.last_up, NOW)
    else:
        assert found.memory.fewer_since == (NOW if memory.fewer_since is None else memory.fewer_since)


def test_a_moment_of_load_ends_the_wait_for_fewer() -> None:
    assert decided(1.4, 1.4).memory.fewer_since is None


@settings(max_examples=examples(20, 120))
@given(st.floats(0.0, 8.0), st.integers(1, 4))
def test_a_constant_load_comes_to_rest_and_stays(total: float, current: int) -> None:
    counts, memory, now = [current], ScalingMemory(), NOW
    for _ in range(40):
        each = min(2.0, total / counts[-1])
        members = [replica(number, busy_cores=each) for number in range(counts[-1])]
        found = decide(TWO_CPUS, counts[-1], members, memory, now)
        counts, memory, now = [*counts, found.replicas], found.memory, now + 100.0
    assert len(set(counts[-20:])) == 1
    turns = [b - a for a, b in pairwise(counts) if a != b]
    assert all(turn > 0 for turn in turns) or all(turn < 0 for turn in turns)
