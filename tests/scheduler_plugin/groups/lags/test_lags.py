"""A group whose pods and metrics lag behind its orders (S1.12): it settles, and neither runs away nor runs short.

The need is what is used over the HPA's target of 80 %. Of every look it is checked what is ordered.
"""

from __future__ import annotations

from fractions import Fraction
from math import inf

import pytest
from hypothesis import Phase, assume, example, given, settings
from hypothesis import strategies as st

from protocol.kubernetes.objects import items
from scheduler_plugin.groups.core.hvpa.gates import PATIENCE
from scripts.autoscale.replay.groups.lagging_group import Lags, Rollout
from tests.examples import examples
from tests.scheduler_plugin.groups.lags.lagging_world import LOOK, LaggingWorld, world

HOUR = 3600.0
TWICE = 2
LEAST_CHANGE = 20
VPA_MARGIN = Fraction(3, 2)
"""A VPA asks for 15 % more than what is used, in steps of up to 10m and 5 %."""
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""A failing example plays hours, so it is shown as it is."""

lags = st.builds(
    Lags,
    start=st.integers(0, 240).map(float),
    metrics=st.integers(15, 60).map(float),
    rollout=st.sampled_from(Rollout),
    resize=st.integers(0, 60).map(float),
    deletes=st.one_of(st.just(inf), st.integers(30, 600).map(float)),
    largest=st.one_of(st.just(inf), st.integers(1000, 4000).map(float)),
    broken=st.integers(0, 1),
    flapping=st.integers(0, 1),
    flap=st.integers(10, 120).map(float),
)
replicas, sizes, demands = st.integers(2, 10), st.integers(200, 1000), st.integers(2000, 20_000)


def lagging(found: Lags, count: int, size: int) -> LaggingWorld:
    """A group of which always half serves, and which follows small changes."""
    least = max(2, 2 * (found.broken + found.flapping))
    bounds = {"minReplicas": least, "maxReplicas": 20}
    return world(found, max(least, count), size, hpaTemplate=bounds, minCpuChange={"value": f"{LEAST_CHANGE}m"})


def need_of(demand: int) -> Fraction:
    return demand * Fraction(100, 80)


@pytest.mark.parametrize("utilisation_only", [False, True])
@pytest.mark.parametrize(
    "found",
    [
        Lags(start=30.0, metrics=15.0),
        Lags(start=30.0, metrics=60.0),
        Lags(rollout=Rollout.IN_PLACE),
        Lags(rollout=Rollout.ON_DELETE, deletes=60.0),
        Lags(rollout=Rollout.ON_DELETE),
    ],
    ids=["a rollout", "old metrics", "in place", "pods deleted one by one", "pods never deleted"],
)
def test_one_order_carries_a_constant_need(found: Lags, utilisation_only: bool) -> None:
    """Two replicas of 500m that use 1 vCPU each need 2.5, and get it once, however late it arrives."""
    run = world(found, 2, 500)
    run.utilisation_only = utilisation_only
    run.runs(HOUR, 2000)
    assert [(count, size) for _, count, size in run.orders] == [(3, 834)]


@given(lags, replicas, sizes, demands, st.booleans(), st.booleans())
@example(Lags(start=30.0, metrics=30.0), 2, 500, 2000, True, True)
@example(Lags(30.0, 20.0, Rollout.IN_PLACE, resize=24.0, deletes=30.0), 9, 835, 2464, True, True)  # 32.8 % is 32 %
@example(Lags(213.0, 41.0, Rollout.IN_PLACE, 49.0, largest=1000.0, flapping=1, flap=17.0), 7, 220, 7434, False, True)
@example(Lags(79.0, 30.0, Rollout.ON_DELETE, 21.0, deletes=30.0), 8, 1000, 7313, True, False)
@example(Lags(110.0, 39.0, Rollout.IN_PLACE, 49.0, inf, 2058.0, 1, 1, 48.0), 9, 283, 16_807, False, True)
@example(Lags(43.0, 32.0, Rollout.IN_PLACE, 60.0, inf, 2276.0, broken=1), 2, 222, 14_166, False, False)
@settings(max_examples=examples(3, 120), phases=PHASES)
def test_constant_need_settles_within_twice(  # noqa: PLR0917 - everything that varies
    found: Lags, count: int, size: int, demand: int, with_vpa: bool, utilisation_only: bool
) -> None:
    """The order is at most twice the need (or the initial size), and stays above the need once it covers it."""
    assume(not (with_vpa and found.broken + found.flapping))
    run = lagging(found, count, size)
    run.with_vpa, run.utilisation_only = with_vpa, utilisation_only
    run.has_run_for_a_day(demand)
    before, need = run.ordered, need_of(demand)
    looks = run.runs(3 * HOUR, demand)
    most = max(need, demand * VPA_MARGIN) if with_vpa else need
    assert all(each <= before or each <= TWICE * most for each in looks.ordered), run.orders
    assert not looks.falls_short(need), run.orders
    assert all(at < 2 * HOUR for at, _, _ in run.orders), run.orders


@given(lags, st.integers(2, 8), st.integers(500, 4000), st.integers(130, 400))
@settings(max_examples=examples(2, 80), phases=PHASES)
def test_a_step_arrives_within_lag_and_two_looks(found: Lags, count: int, before: int, percent: int) -> None:
    """From metrics that show it on, two looks later so much is ordered that the new need is carried."""
    assume(found.flapping == 0 and found.largest == inf)
    run, after = lagging(found, count, 500), before * percent // 100
    run.runs(1.5 * HOUR, before)
    ordered = run.runs(found.metrics + 2 * LOOK, after).ordered
    assert ordered[-1] >= need_of(after) * Fraction(98, 100) - LEAST_CHANGE * run.pods.replicas, run.orders
    assert all(each <= ordered[0] or each <= TWICE * need_of(after) for each in ordered), run.orders


@given(lags, st.integers(2, 8), st.integers(2000, 16_000), st.integers(10, 80))
@settings(max_examples=examples(2, 60), phases=PHASES)
def test_a_fall_never_runs_short(found: Lags, count: int, before: int, percent: int) -> None:
    run, after = lagging(found, count, 500), before * percent // 100
    run.runs(HOUR, before)
    assert not run.runs(2 * HOUR, after).falls_short(need_of(after)), run.orders


def test_a_rollout_does_not_restart_a_wait() -> None:
    """Fewer pods serve during a rollout. Their use must not revert the removal of a replica that needs larger ones."""
    run = lagging(Lags(start=97.0, metrics=15.0), 9, 442)
    run.has_run_for_a_day(15_719)
    run.runs(3 * HOUR, 15_719)
    assert run.orders[-1] == (2520.0, 7, 3444)


@pytest.mark.parametrize("rollout", Rollout)
def test_metrics_of_ten_minutes_order_once(rollout: Rollout) -> None:
    run = world(Lags(start=213.0, metrics=600.0, rollout=rollout, resize=300.0, deletes=60.0), 2, 500)
    run.runs(3 * HOUR, 2000)
    assert [(count, size) for _, count, size in run.orders] == [(3, 834)]


def test_a_refused_size_becomes_more_replicas() -> None:
    """No pod can have more than 500m: the group reports so, requests that size again, and gets more replicas."""
    run = world(Lags(rollout=Rollout.IN_PLACE, start=30.0, largest=500.0), 2, 500)
    run.runs(45, 2000)
    status, message = run.condition("PodsAsOrdered")
    assert (status, "pods have another size" in message) == ("False", True)
    assert run.condition("PodsResizable")[0] == "False"
    run.runs(HOUR, 2000)
    assert run.pods.size == 500
    assert need_of(2000) <= run.ordered <= TWICE * need_of(2000)
    assert run.condition("PodsAsOrdered") == ("", "")


def test_unready_pod_delays_decisions_but_not_for_ever() -> None:
    run = world(Lags(start=30.0, broken=1), 2, 500)
    run.runs(60, 2000)
    assert run.orders == []
    assert run.condition("PodsAsOrdered") == ("False", "1 of 2 pods are ready")
    kept = items(run.group, "status", "kept")[0]
    assert (kept["rule"], kept["message"]) == ("PodsDiffer", "until the pods match their spec: 1 of 2 pods are ready")
    run.runs(PATIENCE.total_seconds(), 2000)
    assert run.ordered >= need_of(2000)


def test_pods_that_are_as_ordered_say_nothing() -> None:
    run = world(Lags(start=30.0), 2, 1000)
    run.runs(HOUR, 1500)
    assert run.condition("PodsAsOrdered") == ("", "")
