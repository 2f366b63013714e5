"""The modes that choose between both recommendations (S1.2-S1.4), decided whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.units import Bytes, MilliCpu, Seconds
from scheduler_plugin.groups.core.hvpa import (
    AxisRules,
    DirectionRules,
    Memory,
    Mixed,
    Mode,
    Preference,
    UpdateMode,
)
from scheduler_plugin.groups.core.workload import Container, Decision, Kept, Rule
from tests.scheduler_plugin.groups.core.hvpa.stories import (
    NOON,
    decided,
    requests,
    running,
    sized,
    spec_for,
    wanted,
)

HALF, ONE, TWO = sized(500), sized(1000), sized(2000)


def chosen(mode: Mode, replicas: int, desired: int, target: int) -> tuple[int | None, int | None]:
    """What is written of replicas and of CPU, from 1000m."""
    decision = decided(spec_for(mode), running(replicas, ONE), wanted(desired, sized(target)))
    cpu = requests(decision).cpu
    return decision.replicas, None if cpu is None else cpu.value


@pytest.mark.parametrize(
    ("replicas", "desired", "target", "written"),
    [
        (4, 4, 2000, (None, None)),
        (10, 10, 2000, (None, 2000)),
        (10, 99, 2000, (None, 2000)),
        (4, 4, 500, (None, None)),
        (1, 1, 500, (None, 500)),
        (1, 0, 500, (None, 500)),
        (1, 1, 2000, (None, None)),
        (10, 10, 500, (None, None)),
        (4, 6, 2000, (6, None)),
        (10, 8, 2000, (8, None)),
    ],
)
def test_hpa_preferred_sizes_only_where_replicas_can_go_no_further(
    replicas: int, desired: int, target: int, written: tuple[int | None, int | None]
) -> None:
    assert chosen(Mode.HPA_PREFERRED, replicas, desired, target) == written


@pytest.mark.parametrize(
    ("mode", "desired", "target", "written"),
    [
        (Mode.HPA_BIASED, 6, 2000, (6, None)),
        (Mode.HPA_BIASED, 4, 2000, (None, 2000)),
        (Mode.HPA_BIASED, 6, 1000, (6, None)),
        (Mode.VPA_BIASED, 6, 2000, (None, 2000)),
        (Mode.VPA_BIASED, 6, 1000, (6, None)),
        (Mode.VPA_BIASED, 4, 500, (None, 500)),
        (Mode.VPA_BIASED, 4, 1000, (None, None)),
    ],
)
def test_the_biased_recommendation_wins_and_the_only_one_applies(
    mode: Mode, desired: int, target: int, written: tuple[int | None, int | None]
) -> None:
    assert chosen(mode, 4, desired, target) == written


@pytest.mark.parametrize(
    ("preference", "desired", "target", "written"),
    [
        (Preference.HPA, 5, 1000, (5, None)),
        (Preference.HPA, 4, 1200, (None, 1200)),
        (Preference.HPA, 6, 1300, (None, None)),
        (Preference.HPA, 8, 1300, (8, None)),
        (Preference.HPA, 6, 1301, (None, 1301)),
        (Preference.HPA, 8, 1301, (8, None)),
        (Preference.VPA, 8, 1301, (None, 1301)),
        (Preference.VPA, 1, 699, (None, 699)),
    ],
)
def test_mixed_asks_for_more_than_x_and_y_only_where_both_recommend(
    preference: Preference, desired: int, target: int, written: tuple[int | None, int | None]
) -> None:
    spec = replace(spec_for(Mode.MIXED), mixed=Mixed(2, sized(300), preference))
    decision = decided(spec, running(4, ONE), wanted(desired, sized(target)))
    cpu = requests(decision).cpu
    assert (decision.replicas, None if cpu is None else cpu.value) == written


def test_mixed_sizes_a_container_whose_recommendation_is_above_its_limit() -> None:
    spec = replace(spec_for(Mode.MIXED), mixed=Mixed(3, sized(5000, 5000)))
    workload = running(4, sized(1000, 1000), sized(1200))
    decision = decided(spec, workload, wanted(5, sized(1300, 1300)))
    assert decision.containers == (Container("app", sized(1300, 1300), sized(1560)),)
    assert decision.kept == (Kept("replicas", 5, 4, Rule.POLICY, "mode Mixed"),)


def test_mixed_treats_a_resource_without_a_threshold_as_one_of_zero() -> None:
    spec = replace(spec_for(Mode.MIXED), mixed=Mixed(3, sized(memory=1)))
    assert requests(decided(spec, running(4, ONE), wanted(5, sized(1200)))) == sized(1200)


def test_what_is_not_chosen_is_kept_and_named() -> None:
    decision = decided(spec_for(Mode.HPA_BIASED), running(4, sized(1000, 100)), wanted(6, sized(2000, 900)))
    assert decision == Decision(
        replicas=6,
        kept=(
            Kept("app/cpu", MilliCpu(2000), MilliCpu(1000), Rule.POLICY, "mode HpaBiased"),
            Kept("app/memory", Bytes(900_000_000), Bytes(100_000_000), Rule.POLICY, "mode HpaBiased"),
        ),
        explanation=("replicas: 4 to 6 (mode HpaBiased)",),
    )


def test_a_wish_that_must_wait_does_not_starve_the_other() -> None:
    """VPA would win, but its changes wait for a maintenance window that is not now."""
    waiting = AxisRules(DirectionRules(UpdateMode.MAINTENANCE_WINDOW), DirectionRules(UpdateMode.OFF))
    spec = replace(spec_for(Mode.VPA_BIASED), vertical=waiting)
    grown = decided(spec, running(4, ONE), wanted(6, TWO))
    assert (grown.replicas, [kept.rule for kept in grown.kept]) == (6, [Rule.MAINTENANCE_WINDOW])
    shrunk = decided(spec, running(4, ONE), wanted(6, HALF))
    assert (shrunk.replicas, [kept.rule for kept in shrunk.kept]) == (6, [Rule.UPDATE_MODE])


def test_a_change_that_is_too_small_does_not_starve_the_other() -> None:
    decision = decided(spec_for(Mode.VPA_BIASED), running(4, ONE), wanted(6, sized(1003)))
    assert (decision.replicas, [kept.rule for kept in decision.kept]) == (6, [Rule.MIN_CHANGE])


def test_a_vpa_alone_sizes_and_leaves_the_replicas() -> None:
    decision = decided(spec_for(Mode.VPA_BIASED), running(4, ONE), wanted(None, TWO))
    assert (decision.replicas, requests(decision)) == (None, TWO)


def test_bounds_of_the_replicas_hold_without_an_hpa() -> None:
    assert decided(spec_for(Mode.HPA_BIASED), running(12, ONE), wanted()).replicas == 10


def test_a_workload_scaled_to_zero_is_left_alone() -> None:
    decision = decided(spec_for(Mode.HPA_BIASED), running(0, ONE), wanted(3, TWO))
    assert decision == Decision(explanation=("scaled to zero replicas: left alone until it has one",))


@pytest.mark.parametrize(("ago", "rule"), [(119, [Rule.DELAY]), (120, []), (-5, [])])
def test_a_delay_counts_from_the_last_scaling_and_a_time_to_come_proves_nothing(ago: int, rule: list[Rule]) -> None:
    up = AxisRules(up=DirectionRules(delay=Seconds(120.0)))
    spec = replace(spec_for(Mode.HPA_BIASED), horizontal=up)
    memory = Memory(last_up=NOON.fromtimestamp(NOON.timestamp() - ago, NOON.tzinfo))
    assert [kept.rule for kept in decided(spec, running(4, ONE), wanted(6), memory).kept] == rule
