"""The modes that choose between both recommendations (S1.2-S1.4), decided whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.units import Bytes, MilliCpu, Seconds
from scheduler_plugin.groups.core.hvpa.spec import (
    AxisRules,
    DirectionRules,
    HvpaMode,
    Mixed,
    Preference,
    ScalingTimes,
    UpdateMode,
)
from scheduler_plugin.groups.core.workload import Rule, SizedContainer, WithheldChange, WorkloadDecision
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


def chosen(mode: HvpaMode, replicas: int, desired: int, target: int) -> tuple[int | None, int | None]:
    """The written replicas and CPU, starting from 1000m."""
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
def test_hpa_preferred_sizes_after_replicas(
    replicas: int, desired: int, target: int, written: tuple[int | None, int | None]
) -> None:
    assert chosen(HvpaMode.HPA_PREFERRED, replicas, desired, target) == written


@pytest.mark.parametrize(
    ("mode", "desired", "target", "written"),
    [
        (HvpaMode.HPA_BIASED, 6, 2000, (6, None)),
        (HvpaMode.HPA_BIASED, 4, 2000, (None, 2000)),
        (HvpaMode.HPA_BIASED, 6, 1000, (6, None)),
        (HvpaMode.VPA_BIASED, 6, 2000, (None, 2000)),
        (HvpaMode.VPA_BIASED, 6, 1000, (6, None)),
        (HvpaMode.VPA_BIASED, 4, 500, (None, 500)),
        (HvpaMode.VPA_BIASED, 4, 1000, (None, None)),
    ],
)
def test_biased_or_only_recommendation_applies(
    mode: HvpaMode, desired: int, target: int, written: tuple[int | None, int | None]
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
def test_mixed_thresholds_need_both(
    preference: Preference, desired: int, target: int, written: tuple[int | None, int | None]
) -> None:
    spec = replace(spec_for(HvpaMode.MIXED), mixed=Mixed(2, sized(300), preference))
    decision = decided(spec, running(4, ONE), wanted(desired, sized(target)))
    cpu = requests(decision).cpu
    assert (decision.replicas, None if cpu is None else cpu.value) == written


def test_mixed_sizes_above_limit() -> None:
    spec = replace(spec_for(HvpaMode.MIXED), mixed=Mixed(3, sized(5000, 5000)))
    workload = running(4, sized(1000, 1000), sized(1200))
    decision = decided(spec, workload, wanted(5, sized(1300, 1300)))
    assert decision.containers == (SizedContainer("app", sized(1300, 1300), sized(1560)),)
    assert decision.withheld == (WithheldChange("replicas", 5, 4, Rule.POLICY, "mode Mixed"),)


def test_mixed_missing_threshold_is_zero() -> None:
    spec = replace(spec_for(HvpaMode.MIXED), mixed=Mixed(3, sized(memory=1)))
    assert requests(decided(spec, running(4, ONE), wanted(5, sized(1200)))) == sized(1200)


def test_what_is_not_chosen_is_kept_and_named() -> None:
    decision = decided(spec_for(HvpaMode.HPA_BIASED), running(4, sized(1000, 100)), wanted(6, sized(2000, 900)))
    assert decision == WorkloadDecision(
        replicas=6,
        withheld=(
            WithheldChange("app/cpu", MilliCpu(2000), MilliCpu(1000), Rule.POLICY, "mode HpaBiased"),
            WithheldChange("app/memory", Bytes(900_000_000), Bytes(100_000_000), Rule.POLICY, "mode HpaBiased"),
        ),
        explanation=("replicas: 4 to 6 (mode HpaBiased)",),
    )


def test_waiting_wish_does_not_starve_other() -> None:
    """VPA would win, but its changes wait for a maintenance window that is not now."""
    waiting = AxisRules(DirectionRules(UpdateMode.MAINTENANCE_WINDOW), DirectionRules(UpdateMode.OFF))
    spec = replace(spec_for(HvpaMode.VPA_BIASED), vertical=waiting)
    grown = decided(spec, running(4, ONE), wanted(6, TWO))
    assert (grown.replicas, [kept.rule for kept in grown.withheld]) == (6, [Rule.MAINTENANCE_WINDOW])
    shrunk = decided(spec, running(4, ONE), wanted(6, HALF))
    assert (shrunk.replicas, [kept.rule for kept in shrunk.withheld]) == (6, [Rule.UPDATE_MODE])


def test_small_change_does_not_starve_other() -> None:
    decision = decided(spec_for(HvpaMode.VPA_BIASED), running(4, ONE), wanted(6, sized(1003)))
    assert (decision.replicas, [kept.rule for kept in decision.withheld]) == (6, [Rule.MIN_CHANGE])


def test_a_vpa_alone_sizes_and_leaves_the_replicas() -> None:
    decision = decided(spec_for(HvpaMode.VPA_BIASED), running(4, ONE), wanted(None, TWO))
    assert (decision.replicas, requests(decision)) == (None, TWO)


def test_bounds_of_the_replicas_hold_without_an_hpa() -> None:
    assert decided(spec_for(HvpaMode.HPA_BIASED), running(12, ONE), wanted()).replicas == 10


def test_a_workload_scaled_to_zero_is_left_alone() -> None:
    decision = decided(spec_for(HvpaMode.HPA_BIASED), running(0, ONE), wanted(3, TWO))
    assert decision == WorkloadDecision(
        explanation=("scaled to zero: nothing is decided until there is a replica again",)
    )


@pytest.mark.parametrize(("ago", "rule"), [(119, [Rule.DELAY]), (120, []), (-5, [])])
def test_future_scaling_time_does_not_delay(ago: int, rule: list[Rule]) -> None:
    up = AxisRules(up=DirectionRules(delay=Seconds(120.0)))
    spec = replace(spec_for(HvpaMode.HPA_BIASED), horizontal=up)
    memory = ScalingTimes(last_up=NOON.fromtimestamp(NOON.timestamp() - ago, NOON.tzinfo))
    assert [kept.rule for kept in decided(spec, running(4, ONE), wanted(6), memory).withheld] == rule
