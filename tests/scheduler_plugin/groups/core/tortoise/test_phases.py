"""From a new Tortoise to one that works, and through an emergency."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from scheduler_plugin.groups.core.tortoise.autoscaler import Place, Scaling
from scheduler_plugin.groups.core.tortoise.tortoise_memory import (
    Phase,
    PhaseInputs,
    ResourcePhase,
    ResourceState,
    TortoiseMode,
    by_states,
    has_passed,
    is_missing,
    is_within,
    next_phase,
    resource_phases,
)
from tests.scheduler_plugin.groups.core.tortoise.cluster_model import CPU

NOW = datetime(2026, 5, 4, tzinfo=UTC)
WEEK = timedelta(days=7)
GATHERING, WORKING, OFF = ResourceState.GATHERING_DATA, ResourceState.WORKING, ResourceState.OFF
AUTO = PhaseInputs(TortoiseMode.AUTO, has_horizontal=True)
LACKING = PhaseInputs(TortoiseMode.AUTO, has_horizontal=True, metrics_missing=True)
ASKED = PhaseInputs(TortoiseMode.EMERGENCY, has_horizontal=True)


def test_a_tortoise_begins_when_there_is_a_recommendation() -> None:
    waiting = PhaseInputs(TortoiseMode.AUTO, has_horizontal=True, ready=False)
    assert next_phase(None, [], waiting) is Phase.INITIALIZING
    assert next_phase(Phase.INITIALIZING, [GATHERING], waiting) is Phase.INITIALIZING
    assert next_phase(Phase.INITIALIZING, [GATHERING], AUTO) is Phase.GATHERING_DATA


@pytest.mark.parametrize(
    ("states", "phase"),
    [
        ([GATHERING, OFF], Phase.GATHERING_DATA),
        ([GATHERING, WORKING], Phase.PARTLY_WORKING),
        ([OFF, WORKING], Phase.WORKING),
        ([OFF], None),
    ],
)
def test_the_resources_make_the_phase(states: list[ResourceState], phase: Phase | None) -> None:
    assert by_states(states) is phase
    assert next_phase(Phase.WORKING, states, AUTO) is (phase or Phase.WORKING)


@pytest.mark.parametrize("alarm", [LACKING, ASKED])
@pytest.mark.parametrize(
    ("phase", "follows"),
    [
        (Phase.WORKING, Phase.EMERGENCY),
        (Phase.PARTLY_WORKING, Phase.EMERGENCY),
        (Phase.BACK_TO_NORMAL, Phase.EMERGENCY),
        (Phase.EMERGENCY, Phase.EMERGENCY),
        (Phase.INITIALIZING, Phase.GATHERING_DATA),
    ],
)
def test_emergency_needs_known_numbers(alarm: PhaseInputs, phase: Phase, follows: Phase) -> None:
    assert next_phase(phase, [], alarm) is follows


def test_emergency_ends_gradually_after_cause() -> None:
    assert next_phase(Phase.EMERGENCY, [WORKING], LACKING) is Phase.EMERGENCY
    assert next_phase(Phase.EMERGENCY, [WORKING], AUTO) is Phase.BACK_TO_NORMAL
    assert next_phase(Phase.BACK_TO_NORMAL, [WORKING], AUTO) is Phase.BACK_TO_NORMAL


def test_restore_needs_an_hpa() -> None:
    assert (
        next_phase(Phase.BACK_TO_NORMAL, [WORKING], PhaseInputs(TortoiseMode.AUTO, has_horizontal=False))
        is Phase.WORKING
    )
    assert (
        next_phase(Phase.BACK_TO_NORMAL, [WORKING], PhaseInputs(TortoiseMode.OFF, has_horizontal=True)) is Phase.WORKING
    )


def test_missing_metrics_need_horizontal_scaling() -> None:
    off = PhaseInputs(TortoiseMode.OFF, has_horizontal=True, metrics_missing=True)
    vertical = PhaseInputs(TortoiseMode.EMERGENCY, has_horizontal=False)
    assert [next_phase(Phase.WORKING, [WORKING], seen) for seen in (off, vertical)] == [Phase.WORKING] * 2


def test_metrics_may_be_missing_for_the_grace_period() -> None:
    grace = timedelta(minutes=5)
    assert [is_missing(NOW, grace, NOW + timedelta(seconds=late)) for late in (299, 300)] == [False, True]
    assert not is_missing(None, grace, NOW)


def test_a_time_of_another_clock_holds_nothing_up() -> None:
    month, minute = timedelta(days=30), timedelta(minutes=1)
    assert [has_passed(minute, at, NOW) for at in (None, NOW + month, NOW - minute, NOW)] == [True, True, True, False]
    assert [is_within(at, minute, NOW) for at in (NOW + month, NOW + minute / 2, NOW - minute / 2, NOW - minute)] == [
        False,
        True,
        True,
        False,
    ]


def test_resource_gathers_week_then_works() -> None:
    memory: dict[Place, ResourcePhase] = {}
    found = []
    for day in (0, 1, 7, 8):
        memory = resource_phases(memory, {CPU: Scaling.HORIZONTAL}, WEEK, NOW + timedelta(days=day))
        found.append(memory[CPU])
    working = ResourcePhase(WORKING, NOW + WEEK)
    assert found == [ResourcePhase(GATHERING, NOW)] * 2 + [working] * 2


def test_gathering_that_began_in_the_future_begins_now() -> None:
    """Another clock was a month ahead when it was written."""
    ahead: dict[Place, ResourcePhase] = {CPU: ResourcePhase(GATHERING, NOW + 30 * timedelta(days=1))}
    begun = resource_phases(ahead, {CPU: Scaling.HORIZONTAL}, WEEK, NOW)
    assert begun == {CPU: ResourcePhase(GATHERING, NOW)}
    assert resource_phases(begun, {CPU: Scaling.HORIZONTAL}, WEEK, NOW + WEEK)[CPU].state is WORKING


def test_a_resource_that_was_off_gathers_data_again() -> None:
    off = resource_phases({}, {CPU: Scaling.OFF}, WEEK, NOW)
    later = NOW + WEEK
    assert resource_phases(off, {CPU: Scaling.OFF}, WEEK, later) == off
    back = resource_phases(off, {CPU: Scaling.VERTICAL}, WEEK, later)
    assert back == {CPU: ResourcePhase(GATHERING, later)}
    assert resource_phases(back, {CPU: Scaling.OFF}, WEEK, later) == {CPU: ResourcePhase(OFF, later)}


def test_a_container_that_went_is_forgotten() -> None:
    known: dict[Place, ResourcePhase] = {("old", "cpu"): ResourcePhase(WORKING, NOW)}
    assert resource_phases(known, {}, WEEK, NOW) == {}
