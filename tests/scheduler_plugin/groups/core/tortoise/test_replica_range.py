"""The numbers of replicas between which an HPA chooses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.tortoise_memory import ReplicaMemory, capped, proposed, step_back
from scheduler_plugin.groups.core.workload import ReplicaBounds
from tests.examples import examples

MONDAY = datetime(2026, 5, 4, 10, tzinfo=UTC)
USUAL = Configuration()


def test_half_and_twice_of_what_the_slot_needed() -> None:
    found = ReplicaMemory.empty(USUAL.layout).learned(7, USUAL, MONDAY).learned(5, USUAL, MONDAY)
    assert found.at(MONDAY) == ReplicaBounds(4, 14)
    assert found.converted_to(Configuration(gathering_data_period_type="daily").layout).at(MONDAY) == ReplicaBounds(
        4, 14
    )


def test_few_replicas_have_the_minimum_and_its_counterpart() -> None:
    assert [proposed(replicas, USUAL) for replicas in (0, 1)] == [ReplicaBounds(3, 12)] * 2


def test_caps_hold_for_both_numbers() -> None:
    assert capped(ReplicaBounds(40, 300), USUAL, None) == ReplicaBounds(10, 100)
    assert capped(ReplicaBounds(40, 300), USUAL, 8) == ReplicaBounds(8, 8)


def test_the_way_back_from_an_emergency_ends() -> None:
    steps, is_over = [100], False
    while not is_over:
        minimum, is_over = step_back(steps[-1], 5, USUAL.replica_reduction_factor)
        steps.append(minimum)
    assert steps[:4] == [100, 95, 90, 85]
    assert steps[-3:] == [6, 5, 5]
    assert steps == sorted(steps, reverse=True)


@settings(max_examples=examples(12, 80))
@given(
    st.lists(st.tuples(st.integers(0, 24 * 60), st.integers(0, 400)), min_size=1, max_size=30),
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(1, 50)),
)
def test_bounds_are_ordered_and_capped(seen: list[tuple[int, int]], minimum: int, max_replicas: int | None) -> None:
    configuration = Configuration(minimum_min_replicas=minimum, maximum_min_replicas=max(10, minimum))
    memory = ReplicaMemory.empty(configuration.layout)
    for hour, replicas in sorted(seen):
        now = MONDAY + timedelta(hours=hour)
        memory = memory.learned(replicas, configuration, now)
        found = memory.at(now)
        assert found is not None
        assert minimum <= found.min <= found.max
        limited = capped(found, configuration, max_replicas)
        assert limited.min <= limited.max <= min(100, max_replicas or 100)
