"""Effective intervals (S1.12): from a total need to replicas and sizes, vertical first, never short on the way."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from protocol.units import MilliCpu, Seconds
from scheduler_plugin.groups.core.hvpa.needs import base_of, scale_in_boundary
from scheduler_plugin.groups.core.hvpa.policy import planned
from scheduler_plugin.groups.core.hvpa.spec import (
    AxisRules,
    ChangeParams,
    ContainerPolicy,
    DirectionRules,
    EffectiveIntervals,
    HvpaMode,
    HvpaSpec,
    PodsMemory,
    PossibleSize,
    ResourceChangeParams,
    ScalingInterval,
    ScalingTimes,
    UpdateMode,
)
from scheduler_plugin.groups.core.workload import (
    NOTHING,
    HorizontalRecommendation,
    ReplicaBounds,
    Resource,
    ResourceList,
    Rule,
    SizedContainer,
    VerticalRecommendation,
    WithheldChange,
    Workload,
)
from tests.scheduler_plugin.groups.core.hvpa.stories import (
    NOON,
    decided,
    requests,
    running,
    sized,
    spec_for,
    wanted,
)

EIGHT_CPUS = spec_for(HvpaMode.EFFECTIVE_INTERVALS, sized(500, 500), sized(8000, 32_000))
TABLE = EffectiveIntervals(
    tuple(
        ScalingInterval(count, sized(cpu, memory))
        for count, cpu, memory in ((1, 500, 2000), (2, 1000, 4000), (3, 2000, 8000), (4, 4000, 16_000))
    )
)


def plan(spec: HvpaSpec, replicas: int, target: ResourceList, desired: int = 1) -> int:
    return planned(spec, running(replicas, target), wanted(desired, target), ScalingTimes()).replicas


def test_replica_grows_before_second() -> None:
    assert [plan(EIGHT_CPUS, 1, sized(cpu)) for cpu in (100, 8000, 8001, 16_001, 999_000)] == [1, 1, 2, 3, 10]


def test_without_a_bound_only_sizes_grow() -> None:
    assert plan(spec_for(HvpaMode.EFFECTIVE_INTERVALS), 1, sized(999_000)) == 1


def test_intervals_bound_size_per_count() -> None:
    spec = replace(spec_for(HvpaMode.EFFECTIVE_INTERVALS, maximum=sized(8000, 32_000)), effective=TABLE)
    found = [
        plan(spec, 1, sized(*total)) for total in ((500, 2000), (501, 2000), (500, 2001), (2001, 1), (4000, 26_000))
    ]
    assert found == [1, 2, 2, 3, 4]
    assert [plan(spec, 1, sized(cpu)) for cpu in (16_000, 16_001, 32_001, 40_001)] == [4, 5, 5, 6]


def test_last_replicas_get_all_allowed() -> None:
    """Beyond the table nothing but growth is left (S1.6)."""
    spec = replace(
        spec_for(HvpaMode.EFFECTIVE_INTERVALS, maximum=sized(8000)), effective=TABLE, replicas=ReplicaBounds(1, 4)
    )
    decision = decided(spec, running(4, sized(4000)), wanted(1, sized(6000)))
    assert (decision.replicas, requests(decision)) == (None, sized(6000))


def test_last_replica_may_exceed_possible_size() -> None:
    """Nothing but a larger size is left, so a size that was refused is neither taken back nor the most."""
    spec = replace(spec_for(HvpaMode.EFFECTIVE_INTERVALS, maximum=sized(8000)), replicas=ReplicaBounds(1, 2))
    refused = ScalingTimes(pods=PodsMemory(possible=(PossibleSize("app", "cpu", 500, NOON),)))
    decision = decided(spec, running(1, sized(1000)), wanted(1, sized(2400)), refused)
    assert (decision.replicas, requests(decision)) == (2, sized(1200))


def test_an_interval_without_an_end_comes_last() -> None:
    effective = EffectiveIntervals((ScalingInterval(None, sized(3000)), ScalingInterval(2, sized(1000))))
    assert [effective.max_size(count).cpu for count in (1, 2, 3)] == [sized(1000).cpu, sized(1000).cpu, sized(3000).cpu]
    assert EffectiveIntervals((ScalingInterval(2, sized(1000)),)).max_size(3) == NOTHING


def test_recommending_hpa_sets_minimum() -> None:
    assert [plan(EIGHT_CPUS, 1, sized(1000), desired) for desired in (0, 1, 3, 99)] == [1, 1, 3, 10]


def test_while_the_need_is_unknown_replicas_only_grow() -> None:
    decision = decided(EIGHT_CPUS, running(2, sized(1000)), wanted(4))
    assert (decision.replicas, requests(decision)) == (4, NOTHING)
    assert decided(EIGHT_CPUS, running(6, sized(1000)), wanted(4)).changes is False


def test_partial_need_removes_no_replica() -> None:
    """Without the VPA only the CPU is known; what memory needs may be the reason for four replicas."""
    by_cpu: tuple[Resource, ...] = ("cpu",)
    spec = replace(EIGHT_CPUS, desired_by_utilization=by_cpu)
    decision = decided(spec, running(4, sized(1000, 8000)), wanted(2))
    assert (decision.replicas, requests(decision)) == (None, sized(500))


@pytest.mark.parametrize("mode", HvpaMode)
def test_new_hpa_recommends_nothing(mode: HvpaMode) -> None:
    by_cpu: tuple[Resource, ...] = ("cpu",)
    spec = replace(EIGHT_CPUS, mode=mode, desired_by_utilization=by_cpu)
    assert decided(spec, running(4, sized(1000)), wanted(0)).changes is False


def test_without_any_recommendation_nothing_changes() -> None:
    assert decided(EIGHT_CPUS, running(2, sized(1000)), wanted()).changes is False


@pytest.mark.parametrize(
    ("desired", "target", "written"),
    [(2, 1000, 4000), (3, 4000, 6000), (5, 4000, 8000), (1, 1000, 2000), (1, 3000, 3000)],
)
def test_utilisation_is_converted_to_need(desired: int, target: int, written: int) -> None:
    """At two replicas of 4 vCPUs, three desired replicas need twelve, and two need eight, regardless of the VPA."""
    by_cpu: tuple[Resource, ...] = ("cpu",)
    spec = replace(EIGHT_CPUS, desired_by_utilization=by_cpu, replicas=ReplicaBounds(2, 2))
    decision = decided(spec, running(2, sized(4000, 4000)), wanted(desired, sized(target)))
    assert decision.applied(running(2, sized(4000))).containers[0].requests.cpu == sized(written).cpu


@pytest.mark.parametrize(
    ("ratio", "target", "written"), [(1.0, 1000, 4000), (0.25, 1000, 1000), (1.25, 1000, 5000), (0.2, 3000, 3000)]
)
def test_hpa_ratio_gives_exact_need(ratio: float, target: int, written: int) -> None:
    """Two replicas are desired for all of them: 10 % are tolerated, and the count is rounded up."""
    by_cpu: tuple[Resource, ...] = ("cpu",)
    spec = replace(EIGHT_CPUS, desired_by_utilization=by_cpu, replicas=ReplicaBounds(2, 2))
    said = replace(wanted(2, sized(target)), horizontal=HorizontalRecommendation(2, 2, 2, ratios=(("cpu", ratio),)))
    decision = decided(spec, running(2, sized(4000, 4000)), said)
    assert decision.applied(running(2, sized(4000))).containers[0].requests.cpu == sized(written).cpu


def test_use_measured_against_requests_counts_alone_too() -> None:
    by_cpu: tuple[Resource, ...] = ("cpu",)
    spec = replace(EIGHT_CPUS, desired_by_utilization=by_cpu)
    decision = decided(spec, running(1, sized(2000)), wanted(3))
    assert (decision.replicas, requests(decision)) == (None, sized(6000))


def test_a_recommendation_may_describe_another_number_of_replicas() -> None:
    """The total is what counts: 2 vCPUs in each of four replicas are four in each of two."""
    said = wanted(1, sized(2000))
    assert said.vertical is not None
    of_four = replace(said, vertical=VerticalRecommendation(said.vertical.containers, replicas=4))
    decision = decided(EIGHT_CPUS, running(1, sized(1000)), of_four)
    assert requests(decision) == sized(8000)


def test_base_share_is_not_divided() -> None:
    """Of 8 GB, 6 stay in each replica: at two they have 7, not 4."""
    base = ResourceChangeParams(memory=ChangeParams(6_000_000_000, Fraction(10)))
    spec = replace(EIGHT_CPUS, effective=EffectiveIntervals(base=base))
    shrunk = decided(spec, running(2, sized(4000, 9000)), wanted(2, sized(4000, 8000)))
    assert requests(shrunk) == sized(memory=8000)
    out = replace(spec, replicas=ReplicaBounds(4, 4))
    found = decided(out, running(4, sized(4000, 9000)), replace(wanted(4, sized(4000, 8000))))
    assert requests(found) == sized(memory=8000)
    assert [base_of(base.memory, size) for size in (10, 7_000_000_000, 70_000_000_000)] == [
        10,
        6_000_000_000,
        7_000_000_000,
    ]


def test_pure_base_need_is_not_shared() -> None:
    whole = ResourceChangeParams(memory=ChangeParams(percentage=Fraction(100)))
    spec = replace(EIGHT_CPUS, effective=EffectiveIntervals(base=whole))
    decision = decided(spec, running(1, sized(4000, 8000)), wanted(1, sized(20_000, 8000)))
    assert decision.replicas == 3
    later = decided(spec, running(3, sized(8000, 8000)), wanted(1, sized(6667, 8000)))
    assert requests(later) == sized(6667)


def test_scaling_out_shrinks_nothing_in_the_same_step() -> None:
    decision = decided(EIGHT_CPUS, running(1, sized(8000, 8000)), wanted(1, sized(10_000, 8000)))
    assert (decision.replicas, requests(decision)) == (2, NOTHING)
    assert decision.explanation == (
        "app/cpu: needs 5 in each of 2 replicas",
        "app/memory: needs 3906250Ki in each of 2 replicas",
        "replicas: 1 to 2 (effective intervals)",
    )


def test_scale_out_also_grows_sizes() -> None:
    decision = decided(EIGHT_CPUS, running(1, sized(1000)), wanted(1, sized(10_000)))
    assert (decision.replicas, requests(decision)) == (2, sized(5000))


@pytest.mark.parametrize(("ready", "written"), [(2, 5000), (1, None), (0, None)])
def test_sizes_shrink_by_ready_replicas(ready: int, written: int | None) -> None:
    workload = replace(running(2, sized(8000)), ready=ready)
    decision = decided(EIGHT_CPUS, workload, wanted(1, sized(5000)))
    assert requests(decision).cpu == (None if written is None else sized(written).cpu)
    kept = WithheldChange("app/cpu", MilliCpu(5000), MilliCpu(8000), Rule.POLICY, "until all replicas are ready")
    assert decision.withheld == (() if written else (kept,))


def test_size_that_shrinks_in_part_says_so() -> None:
    """Three of four are ready: they need 7 vCPU each, until all four need 5.25."""
    workload, four = replace(running(4, sized(8000)), ready=3), replace(EIGHT_CPUS, replicas=ReplicaBounds(4, 4))
    decision = decided(four, workload, wanted(1, sized(5250)))
    assert (requests(decision), decision.withheld) == (sized(7000), ())
    assert decision.explanation[1:] == ("app/cpu: 8 to 7 of 5250m (effective intervals)",)


def test_shrink_after_scale_out_is_kept_in_status() -> None:
    decision = decided(EIGHT_CPUS, running(1, sized(8000)), wanted(1, sized(10_000)))
    assert (decision.replicas, requests(decision)) == (2, NOTHING)
    kept = [(each.subject, each.message) for each in decision.withheld if each.rule is Rule.POLICY]
    assert kept == [("app/cpu", "until all replicas are ready")]


def test_before_scaling_in_sizes_grow_however_little() -> None:
    """Two replicas of 3.4 become one of 6.9: it must have that size before the other is removed."""
    two = running(2, sized(6800))
    grown = decided(EIGHT_CPUS, two, wanted(1, sized(3450)))
    assert (grown.replicas, requests(grown)) == (None, sized(6900))
    assert [kept.rule for kept in grown.withheld] == [Rule.POLICY]
    assert grown.withheld[0] == WithheldChange("replicas", 1, 2, Rule.POLICY, "sizes grow first")
    gone = decided(EIGHT_CPUS, grown.applied(two), wanted(1, sized(3450)))
    assert (gone.replicas, requests(gone)) == (1, NOTHING)


def test_scale_in_needs_spare_tenth() -> None:
    assert [plan(EIGHT_CPUS, 2, sized(each)) for each in (4000, 3601, 3600)] == [2, 2, 1]
    assert [plan(EIGHT_CPUS, 1, sized(each)) for each in (8000, 8001)] == [1, 2]
    assert scale_in_boundary(6000, ChangeParams(2500, Fraction(30))) == 3500
    assert scale_in_boundary(6000, ChangeParams(9000)) == 0
    assert scale_in_boundary(6000, ChangeParams()) == 6000


def test_fixed_replicas_are_sized_alone() -> None:
    off = DirectionRules(UpdateMode.OFF)
    spec = replace(EIGHT_CPUS, horizontal=AxisRules(off, off))
    decision = decided(spec, running(1, sized(4000)), wanted(1, sized(10_000)))
    assert (decision.replicas, requests(decision), [kept.rule for kept in decision.withheld]) == (
        None,
        sized(8000),
        [Rule.UPDATE_MODE],
    )
    shrinks = decided(spec, running(2, sized(4000)), wanted(1, sized(1000)))
    assert (shrinks.replicas, requests(shrinks)) == (None, sized(1000))


def test_waiting_replicas_do_not_flap_sizes() -> None:
    slow = AxisRules(down=DirectionRules(delay=Seconds(300.0)))
    spec = replace(EIGHT_CPUS, horizontal=slow, vertical=slow)
    recently = ScalingTimes(last_down=NOON)
    decision = decided(spec, running(2, sized(3000)), wanted(1, sized(2000)), recently)
    assert (decision.changes, {kept.rule for kept in decision.withheld}) == (False, {Rule.DELAY})


def test_recommendation_for_gone_container_is_ignored() -> None:
    off = replace(EIGHT_CPUS, containers=(ContainerPolicy("app", is_off=True),))
    memory = replace(EIGHT_CPUS, containers=(ContainerPolicy("app", resources=("memory",)),))
    gone = Workload(3, 3, (SizedContainer("other", sized(1000)),))
    target = wanted(1, sized(20_000))
    assert decided(off, running(3, sized(1000)), target).changes is False
    assert decided(memory, running(3, sized(1000)), target).changes is False
    assert decided(EIGHT_CPUS, gone, target).changes is False
