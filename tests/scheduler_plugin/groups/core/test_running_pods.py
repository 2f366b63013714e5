"""The memory of pods: the state that a measurement may describe, how long pods differ, and their possible sizes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from protocol.units import MilliCpu
from scheduler_plugin.groups.core.hvpa.gates import (
    MAX_PASTS,
    MEASURED_WITHIN,
    PATIENCE,
    POSSIBLE_FOR,
    REFUSED_PATIENCE,
    followed,
    requested,
    waits_for,
)
from scheduler_plugin.groups.core.hvpa.spec import PastPods, PodsMemory, PossibleSize
from scheduler_plugin.groups.core.workload import ResourceList, RunningPods, SizedContainer

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SMALL, LARGE = ((SizedContainer("app", ResourceList(MilliCpu(cpu))),) for cpu in (500, 1000))
TWO, FOUR = RunningPods(2, SMALL), RunningPods(4, SMALL)


def test_pods_are_remembered_while_metrics_describe_them() -> None:
    memory = followed(followed(PodsMemory(), TWO, NOON), FOUR, NOON + SECOND)
    assert memory.past == (PastPods(NOON, 2, SMALL), PastPods(NOON + SECOND, 4, SMALL))
    later = NOON + MEASURED_WITHIN
    assert followed(memory, FOUR, later) == memory
    assert followed(memory, FOUR, later + SECOND).past == (PastPods(NOON + SECOND, 4, SMALL),)


def test_a_size_that_changes_is_another_past() -> None:
    memory = followed(followed(PodsMemory(), TWO, NOON), RunningPods(2, LARGE), NOON)
    assert [each.sizes for each in memory.past] == [SMALL, LARGE]


def test_a_past_of_the_future_proves_nothing() -> None:
    ahead = NOON + timedelta(days=30)
    memory = PodsMemory((PastPods(ahead, 9), PastPods(ahead, 2, SMALL)), ahead, (PossibleSize("app", "cpu", 5, ahead),))
    assert followed(memory, TWO, NOON) == PodsMemory((PastPods(ahead, 2, SMALL),))
    differs = replace(TWO, difference="2 of 4 pods are ready")
    assert followed(memory, differs, NOON).differ_since == NOON


def test_readiness_that_flaps_does_not_fill_the_memory() -> None:
    memory = PodsMemory()
    for step in range(5 * MAX_PASTS):
        memory = followed(memory, (TWO, FOUR)[step % 2], NOON + step * SECOND)
    assert len(memory.past) == MAX_PASTS


@pytest.mark.parametrize(("refused", "patience"), [((), PATIENCE), (SMALL, REFUSED_PATIENCE)])
def test_pods_that_differ_are_waited_for_a_while(refused: tuple[SizedContainer, ...], patience: timedelta) -> None:
    differs = RunningPods(2, SMALL, "2 pods have another size", refused)
    memory = followed(PodsMemory(), differs, NOON)
    assert waits_for(memory, differs, NOON) == "2 pods have another size"
    before, then = NOON + patience - SECOND, NOON + patience
    assert waits_for(followed(memory, differs, before), differs, before)
    assert not waits_for(followed(memory, differs, then), differs, then)


def test_pods_as_ordered_are_not_waited_for() -> None:
    memory = followed(followed(PodsMemory(), replace(TWO, difference="late"), NOON), TWO, NOON)
    assert (memory.differ_since, waits_for(memory, TWO, NOON), waits_for(memory, None, NOON)) == (None, "", "")


def test_refusal_limits_size_for_a_day() -> None:
    """It is recorded once the waiting is over, and recorded again each time."""
    differs = RunningPods(2, SMALL, "2 pods have another size", SMALL)
    memory = followed(PodsMemory(), differs, NOON)
    assert memory.largest_possible("app", "cpu") is None
    then = NOON + REFUSED_PATIENCE
    memory = followed(followed(memory, differs, then), differs, then)
    assert memory.possible == (PossibleSize("app", "cpu", 500, then),)
    assert (
        memory.largest_possible("app", "cpu"),
        memory.largest_possible("app", "memory"),
        memory.largest_possible("log", "cpu"),
    ) == (500, None, None)
    assert followed(memory, TWO, then + POSSIBLE_FOR - SECOND).possible == memory.possible
    assert followed(memory, TWO, then + POSSIBLE_FOR).possible == ()
    assert followed(memory, None, then).possible == memory.possible


def test_a_pod_requests_nothing_for_an_unknown_container() -> None:
    assert [requested(SMALL, *key) for key in (("app", "cpu"), ("app", "memory"), ("log", "cpu"))] == [500, 0, 0]
