"""The replica count of a group by its own load: vertical first, without flapping."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.units import MilliCpu, Seconds
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.replicas.scaling import GroupScaling, ScalingDecision, ScalingMemory, decide
from scheduler_plugin.groups.core.workload import ReplicaBounds, Rule
from tests.scheduler_plugin.groups.core.replicas.group_story import replica

NOW = 1000.0
TWO_CPUS = GroupScaling(ReplicaBounds(1, 4), MilliCpu(2000), 0.7, Seconds(30.0), Seconds(300.0))
LONG_ENOUGH = ScalingMemory(fewer_since=NOW - 300.0)


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
def test_replica_is_added_at_maximum_size(busy: tuple[float, ...], replicas: int) -> None:
    found = decided(*busy)
    assert (found.replicas, found.desired, found.rule) == (replicas, replicas, None)


def test_it_says_what_it_saw() -> None:
    assert decided(1.9).reason == "1.9 CPUs busy over 30 s; target per replica: 70% of at most 2 CPUs"
    assert decided(1.0).reason == "the load fits the current replicas"


@pytest.mark.parametrize(
    ("busy", "replicas"),
    [((None, None), 2), ((2.0, None), 2), ((0.0, None), 2), ((2.0, 2.0, None), 3), ((2.0, 2.0, 2.0, None), 4),
     ((0.0, 0.0, None), 2), ((0.6, 0.6, None), 3)],
)  # fmt: skip
def test_unknown_load_is_conservative(busy: tuple[float | None, ...], replicas: int) -> None:
    assert decided(*busy).replicas == replicas


def test_it_says_whose_load_is_not_known() -> None:
    nothing = decided(None, None)
    assert (nothing.desired, nothing.reason) == (None, "no replica's load over the whole window is known yet")
    reason = "0.0 CPUs busy over 30 s on 3 of 4 replicas; target per replica: 70% of at most 2 CPUs"
    assert decided(0.0, 0.0, 0.0, None).reason == reason
    boots = [replica(0, busy_cores=2.0), replica(1, available=False), replica(2, leaving=True)]
    assert decide(TWO_CPUS, 2, boots, ScalingMemory(), NOW).replicas == 2


def test_full_outage_is_not_idle() -> None:
    down = [replica(number, available=False) for number in range(3)]
    found = decide(TWO_CPUS, 3, down, LONG_ENOUGH, NOW)
    assert (found.replicas, found.desired, found.reason) == (3, None, "no replica serves")
    assert found.memory.fewer_since is None


def test_the_bounds_hold_at_once() -> None:
    assert decided(1.0, current=9).replicas == 4


def test_intentional_zero_replicas_stay() -> None:
    found = decided()
    assert (found.replicas, found.desired, found.reason) == (
        0,
        None,
        texts.SCALED_TO_ZERO,
    )


def test_growing_waits_after_growing_and_equality_passes() -> None:
    late, soon = (decided(2.0, memory=replace(LONG_ENOUGH, last_up=NOW - ago)) for ago in (30.0, 29.0))
    assert (late.replicas, late.memory) == (2, ScalingMemory(last_up=NOW))
    assert (soon.replicas, soon.desired, soon.rule) == (1, 2, Rule.DELAY)
    assert soon.reason.endswith("the delay of 30 s is not over")


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
    assert (found.replicas, found.desired) == (replicas, 1)
    if replicas == 1:
        assert found.memory == ScalingMemory(memory.last_up, NOW)
    else:
        assert found.memory.fewer_since == (NOW if memory.fewer_since is None else memory.fewer_since)


def test_full_load_ends_scale_in_wait() -> None:
    enough, more = decided(1.4, 1.4), decided(2.0, 2.0, memory=replace(LONG_ENOUGH, last_up=NOW))
    assert (enough.memory, more.memory) == (ScalingMemory(), ScalingMemory(last_up=NOW))


def test_times_in_the_future_hold_nothing_up() -> None:
    """The clock of another leader was a month ahead: the group grows at once, and shrinks after its delay from now."""
    ahead = NOW + 30 * 86_400.0
    memory = ScalingMemory(last_up=ahead, last_down=ahead, fewer_since=ahead)
    assert decided(2.0, memory=memory).replicas == 2
    waits = decided(0.1, 0.1, memory=memory)
    assert (waits.replicas, waits.memory) == (2, ScalingMemory(fewer_since=NOW))
