"""The need that an HPA measures is use divided by target, for the pods as they are, not as ordered (S1.12)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from fractions import Fraction

import pytest

from scheduler_plugin.groups.core.hvpa.needs import total_needs
from scheduler_plugin.groups.core.hvpa.spec import (
    AxisRules,
    ChangeParams,
    DirectionRules,
    EffectiveIntervals,
    HvpaMode,
    PastPods,
    PodsMemory,
    PossibleSize,
    ResourceChangeParams,
    ScalingInterval,
    ScalingTimes,
    UpdateMode,
)
from scheduler_plugin.groups.core.workload import (
    HorizontalRecommendation,
    MeasuredUse,
    Recommendations,
    ReplicaBounds,
    Resource,
    ResourceList,
    Rule,
    RunningPods,
    SizedContainer,
    Workload,
)
from tests.scheduler_plugin.groups.core.hvpa.stories import (
    NOON,
    decided,
    out_of_memory,
    requests,
    running,
    sized,
    spec_for,
    wanted,
)

BY_CPU: tuple[Resource, ...] = ("cpu",)
SPEC = replace(
    spec_for(HvpaMode.EFFECTIVE_INTERVALS, sized(100, 100), sized(8000, 32_000)), desired_by_utilization=BY_CPU
)


def said(*uses: MeasuredUse, ratio: float | None = None, desired: int = 2) -> Recommendations:
    ratios: tuple[tuple[Resource, float], ...] = () if ratio is None else (("cpu", ratio),)
    return Recommendations(HorizontalRecommendation(desired, 1, 10, ratios=ratios, uses=uses))


def use(need: int, container: str = "") -> MeasuredUse:
    return MeasuredUse("cpu", Fraction(need), container)


def pods(ready: int, cpu: int, difference: str = "") -> RunningPods:
    return RunningPods(ready, (SizedContainer("app", sized(cpu)),), difference)


def total(found: Recommendations, workload: Workload, *past: PastPods) -> tuple[int, int | None]:
    """The whole need, and the sure one."""
    (need,) = total_needs(SPEC, workload, found, ScalingTimes(pods=PodsMemory(past)))
    return need.total, need.certain


ORDERED = running(4, sized(4000))
TWO_SMALL = PastPods(NOON, 2, (SizedContainer("app", sized(500)),))
FOUR_SMALL = PastPods(NOON, 4, (SizedContainer("app", sized(500)),))
TWO_LARGE = PastPods(NOON, 2, (SizedContainer("app", sized(4000)),))


def test_the_order_does_not_count() -> None:
    """Ordered are 4 of 4 vCPUs; there are 2 of 500m that need 1 vCPU each."""
    assert total(said(use(1000)), ORDERED, TWO_SMALL) == (2000, 2000)
    assert total(said(ratio=2.0), ORDERED, TWO_SMALL) == (2000, 2000)
    assert total(said(desired=4), ORDERED, TWO_SMALL) == (2000, 1501)


def test_a_measurement_may_speak_of_pods_before() -> None:
    assert total(said(use(1000)), ORDERED, TWO_SMALL, FOUR_SMALL) == (4000, 2000)
    assert total(said(use(1000)), ORDERED, TWO_SMALL, TWO_LARGE) == (2000, 2000)
    assert total(said(ratio=2.0), ORDERED, TWO_SMALL, TWO_LARGE) == (16_000, 2000)


def test_use_of_whole_pods_is_shared_by_requests() -> None:
    pod = (SizedContainer("app", sized(300)), SizedContainer("proxy", sized(100)))
    assert total(said(use(1000)), ORDERED, PastPods(NOON, 2, pod)) == (1500, 1500)


def test_use_of_one_container_is_its_own() -> None:
    pod = (SizedContainer("app", sized(300)), SizedContainer("proxy", sized(100)))
    assert total(said(use(1000), use(900, "app")), ORDERED, PastPods(NOON, 2, pod)) == (1800, 1800)
    assert total(said(use(900, "proxy"), ratio=1.0), ORDERED, PastPods(NOON, 2, pod)) == (600, 600)


def test_pods_without_requests_say_nothing_of_use() -> None:
    bare = PastPods(NOON, 2, (SizedContainer("app", ResourceList()),))
    assert total(said(use(1000)), ORDERED, bare) == (0, 0)


def test_while_no_pod_serves_nothing_is_measured() -> None:
    none = replace(TWO_SMALL, ready=0)
    assert total_needs(SPEC, ORDERED, said(use(1000)), ScalingTimes(pods=PodsMemory((none,)))) == ()


def test_base_counts_once_per_pod() -> None:
    base = EffectiveIntervals(base=ResourceChangeParams(cpu=ChangeParams(300)))
    found = replace(said(use(1000)), vertical=wanted(None, sized(400)).vertical)
    workload = replace(ORDERED, pods=pods(2, 500))
    (need,) = total_needs(replace(SPEC, effective=base), workload, found, ScalingTimes(pods=PodsMemory((TWO_SMALL,))))
    assert (need.base, need.total) == (300, 1400)


def test_sizes_grow_for_what_is_sure_only() -> None:
    """A moment ago two pods were ready, now four: each may need 1 vCPU, and half of it is sure."""
    past = ScalingTimes(pods=PodsMemory((TWO_SMALL,)))
    small = replace(running(4, sized(100)), pods=pods(4, 500))
    spec = replace(SPEC, replicas=ReplicaBounds(4, 4))
    assert requests(decided(spec, small, said(use(1000)), past)) == sized(500)
    between = replace(running(4, sized(800)), pods=pods(4, 500))
    assert decided(spec, between, said(use(1000)), past).changes is False
    large = replace(running(4, sized(2000)), pods=pods(4, 500))
    assert requests(decided(spec, large, said(use(1000)), past)) == sized(1000)


@pytest.mark.parametrize("need", [100, 5000])
def test_nothing_is_decided_while_pods_differ(need: int) -> None:
    workload = replace(running(2, sized(1000)), pods=pods(2, 500, "1 of 2 pods are ready"))
    decision = decided(SPEC, workload, said(use(need)))
    assert (decision.changes, {each.rule for each in decision.withheld}) == (False, {Rule.PODS_DIFFER})
    assert decision.withheld[0].message == "until the pods match their spec: 1 of 2 pods are ready"


def test_memory_that_ran_out_waits_for_no_pod() -> None:
    """A pod that is killed again and again is not ready before it has more."""
    workload = replace(running(2, sized(1000, 1000)), pods=pods(1, 1000, "1 of 2 pods are ready"))
    decision = decided(SPEC, out_of_memory(workload), wanted(None, sized(1000, 2000)))
    assert requests(decision) == sized(memory=2000)


def test_deciding_anyway_begins_another_wait() -> None:
    workload = replace(running(2, sized(1000)), pods=pods(2, 1000, "1 of 2 pods are ready"))
    long_ago = ScalingTimes(pods=PodsMemory(differ_since=NOON - timedelta(hours=1)))
    decision = decided(SPEC, workload, said(use(5000)), long_ago)
    assert requests(decision) == sized(5000)


def test_impossible_size_is_reverted_at_once() -> None:
    """Ordered are two of 4 vCPUs and possible is 1: four of 1 carry the same."""
    memory = ScalingTimes(last_down=NOON, pods=PodsMemory(possible=(PossibleSize("app", "cpu", 1000, NOON),)))
    workload = replace(running(2, sized(4000)), pods=pods(2, 1000))
    decision = decided(SPEC, workload, said(use(2000)), memory)
    assert (decision.replicas, requests(decision)) == (4, sized(1000))
    assert decision.explanation[-1] == "app/cpu: 4 to 1 (no pod can have more)"


def test_last_replicas_may_request_more_than_possible() -> None:
    memory = ScalingTimes(pods=PodsMemory(possible=(PossibleSize("app", "cpu", 1000, NOON),)))
    workload = replace(running(10, sized(1000)), pods=pods(10, 1000))
    assert requests(decided(SPEC, workload, said(use(2000)), memory)) == sized(2000)


def test_replicas_at_most_halve_in_one_step() -> None:
    """Eight of 1 vCPU become one of 8 by way of four of 2: never is more than twice the need ordered."""
    workload = replace(running(8, sized(1000)), pods=pods(8, 1000))
    found = replace(said(use(900)), vertical=wanted(None, sized(900)).vertical)
    decision = decided(SPEC, workload, found)
    assert (decision.replicas, requests(decision)) == (None, sized(1800))


def test_replicas_jump_if_none_between_would_do() -> None:
    """Up to two replicas may have 8 vCPUs, and more of them 1 each."""
    rows = (ScalingInterval(2, sized(8000)), ScalingInterval(None, sized(1000)))
    spec = replace(SPEC, effective=EffectiveIntervals(rows), replicas=ReplicaBounds(1, 20))
    workload = replace(running(8, sized(1000)), pods=pods(8, 1000))
    found = replace(said(use(900)), vertical=wanted(None, sized(900)).vertical)
    assert requests(decided(spec, workload, found)) == sized(7200)


@pytest.mark.parametrize(
    ("size", "need", "replicas", "cpu"),
    [(300, 330, None, None), (300, 331, 3, None), (300, 499, 4, None), (300, 500, None, 500), (4000, 4199, None, None)],
)
def test_small_growths_add_replicas(size: int, need: int, replicas: int | None, cpu: int | None) -> None:
    """Sizes grow by 200m or more. Replicas serve a smaller need, unless it exceeds the size by a tenth at most."""
    workload = replace(running(2, sized(size)), pods=pods(2, size))
    decision = decided(SPEC, workload, said(use(need)))
    assert (decision.replicas, requests(decision)) == (replicas, sized(cpu))


def test_sizes_that_may_not_grow_add_replicas() -> None:
    spec = replace(SPEC, vertical=AxisRules(up=DirectionRules(UpdateMode.OFF)))
    workload = replace(running(2, sized(1000)), pods=pods(2, 1000))
    decision = decided(spec, workload, said(use(4000)))
    assert (decision.replicas, requests(decision)) == (8, sized())


@pytest.mark.parametrize(
    ("mode", "base", "replicas"),
    [
        (UpdateMode.AUTO, 50, 4),
        (UpdateMode.AUTO, 100, None),
        (UpdateMode.AUTO, 150, None),
        (UpdateMode.OFF, 50, 5),
        (UpdateMode.OFF, 100, None),
    ],
)
def test_base_above_size_adds_no_replicas(mode: UpdateMode, base: int, replicas: int | None) -> None:
    """Each replica needs its base, so even the most replicas would not be enough."""
    each = ResourceChangeParams(cpu=ChangeParams(value=base))
    spec = replace(
        SPEC,
        replicas=ReplicaBounds(2, 100),
        effective=EffectiveIntervals(base=each),
        vertical=AxisRules(up=DirectionRules(mode)),
    )
    found = replace(said(use(160)), vertical=wanted(None, sized(160)).vertical)
    decision = decided(spec, replace(running(2, sized(100)), pods=pods(2, 100)), found)
    assert (decision.replicas, requests(decision)) == (replicas, sized())
