"""Properties for every spec, workload and recommendation: order, traps, oscillation and bounds (S1.5-S1.8, S1.12).

The load is constant: this many thousandths of a vCPU over all replicas, and some memory in each. The recommenders see
it perfectly, and an hour passes between two decisions, so that no delay is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.units import Bytes, MilliCpu, Seconds
from scheduler_plugin.groups.core.hvpa.modes import vpa_weight
from scheduler_plugin.groups.core.hvpa.policy import decide
from scheduler_plugin.groups.core.hvpa.spec import (
    AxisRules,
    ChangeParams,
    ContainerPolicy,
    DirectionRules,
    EffectiveIntervals,
    HvpaMode,
    HvpaSpec,
    Interval,
    Mixed,
    Preference,
    ResourceChangeParams,
    ScalingInterval,
    ScalingTimes,
)
from scheduler_plugin.groups.core.workload import (
    ContainerRecommendation,
    HorizontalRecommendation,
    Recommendations,
    ReplicaBounds,
    ResourceList,
    SizeBounds,
    SizedContainer,
    VerticalRecommendation,
    Workload,
)
from tests.examples import examples
from tests.scheduler_plugin.groups.core.hvpa.stories import NOON, decided, running, sized, spec_for, wanted

STEPS = 120
ANY_CHANGE = ResourceChangeParams(ChangeParams(0), ChangeParams(0))
WHOLE = ResourceChangeParams(memory=ChangeParams(percentage=Fraction(100)))
MEMORY = 1_000_000_000

replica_bounds = st.tuples(st.integers(1, 4), st.integers(0, 12)).map(lambda two: ReplicaBounds(two[0], sum(two)))
weights = st.integers(1, 10).map(lambda tenths: Fraction(tenths, 10))
any_weights = st.integers(0, 10).map(lambda tenths: Fraction(tenths, 10))
counts = st.one_of(st.none(), st.integers(1, 16))
intervals = st.lists(st.builds(Interval, any_weights, counts, counts), max_size=4).map(tuple)
rows = st.lists(st.tuples(st.integers(1, 16), st.integers(1, 8000)), max_size=3)


@dataclass(frozen=True)
class Load:
    """The load of a workload; an HPA recommends ``desired`` replicas for it.

    A recommendation for one replica that carries it all is the load to the thousandth; one for each is rounded up.
    """

    cpu: int
    desired: int
    for_one: bool = False

    def recommended(self, workload: Workload) -> Recommendations:
        replicas = 1 if self.for_one else workload.replicas
        each = ResourceList(MilliCpu(-(-self.cpu // replicas)), Bytes(MEMORY))
        vertical = VerticalRecommendation((ContainerRecommendation("app", each),), replicas)
        return Recommendations(HorizontalRecommendation(self.desired, 1, 99), vertical)


loads = st.builds(Load, st.integers(1, 60_000), st.integers(1, 16))


def settled(spec: HvpaSpec, workload: Workload, load: Load, first: Recommendations | None = None) -> Workload:
    """The state in which the workload settles; ``first`` is all that is known in the first step."""
    memory, now = ScalingTimes(), NOON
    for step in range(STEPS):
        said = first if first is not None and step == 0 else load.recommended(workload)
        decision, memory = decide(spec, workload, said, memory, now)
        if not decision.changes and step > 0:
            return workload
        workload = decision.applied(workload)
        workload = replace(workload, ready=workload.replicas)
        now += timedelta(hours=1)
    raise AssertionError(f"still changing after {STEPS} steps: {workload}")


def spec_of(mode: HvpaMode, bounds: ReplicaBounds, rows: list[tuple[int, int]], any_change: bool = False) -> HvpaSpec:
    rules = DirectionRules(delay=Seconds(300.0), min_change=ANY_CHANGE if any_change else ResourceChangeParams())
    axis = AxisRules(rules, rules)
    table = tuple(ScalingInterval(count, sized(cpu)) for count, cpu in rows)
    overlap = ANY_CHANGE if any_change else EffectiveIntervals().overlap
    return replace(
        spec_for(mode, sized(100, 100), sized(8000, 4000)),
        replicas=bounds,
        effective=EffectiveIntervals(table, WHOLE, overlap),
        horizontal=axis,
        vertical=axis,
        mixed=Mixed(1, sized(200, 200), Preference.VPA),
    )


@given(replica_bounds, rows, st.integers(1, 16), st.integers(100, 8000), loads)
@settings(max_examples=examples(20, 150))
def test_recommendation_order_does_not_matter(
    bounds: ReplicaBounds, rows: list[tuple[int, int]], replicas: int, cpu: int, load: Load
) -> None:
    """Without least changes and overlap, where it comes to rest depends on the load and on nothing else."""
    spec = spec_of(HvpaMode.EFFECTIVE_INTERVALS, bounds, rows, any_change=True)
    workload, load = running(replicas, sized(cpu, 1000)), replace(load, for_one=True)
    both = load.recommended(workload)
    ends = {
        settled(spec, workload, load, first)
        for first in (None, replace(both, horizontal=None), replace(both, vertical=None))
    }
    ends.add(settled(spec, running(1, sized(100, 100)), load))
    assert len(ends) == 1


@given(replica_bounds, rows, st.integers(1, 16), st.integers(100, 8000), loads)
@settings(max_examples=examples(20, 150))
def test_effective_intervals_never_fall_below_need(
    bounds: ReplicaBounds, rows: list[tuple[int, int]], replicas: int, cpu: int, load: Load
) -> None:
    """Not at any step: scaling out shrinks nothing before its time, and sizes grow before replicas go."""
    spec = spec_of(HvpaMode.EFFECTIVE_INTERVALS, bounds, rows)
    workload = running(bounds.clamp(replicas), sized(cpu, 1000))
    memory, now, had = ScalingTimes(), NOON, 0
    for _ in range(20):
        decision, memory = decide(spec, workload, load.recommended(workload), memory, now)
        workload = decision.applied(workload)
        workload = replace(workload, ready=workload.replicas)
        request = workload.containers[0].requests.cpu
        has = workload.replicas * (request.value if request else 0)
        assert has >= min(had, load.cpu)
        had, now = max(had, has), now + timedelta(hours=1)


@given(st.sampled_from(HvpaMode), replica_bounds, intervals, st.integers(1, 16), st.integers(1, 20_000), loads)
@settings(max_examples=examples(25, 200))
def test_constant_load_settles_in_every_mode(  # noqa: PLR0917 - all that may vary
    mode: HvpaMode, bounds: ReplicaBounds, found: tuple[Interval, ...], replicas: int, cpu: int, load: Load
) -> None:
    spec = replace(spec_of(mode, bounds, []), intervals=found)
    rests = settled(spec, running(replicas, sized(cpu, 1000)), load)
    assert bounds.min <= rests.replicas <= bounds.max


@given(replica_bounds, intervals, st.integers(1, 16), st.integers(1, 16))
@settings(max_examples=examples(30, 200))
def test_no_interval_traps_the_replicas(
    bounds: ReplicaBounds, found: tuple[Interval, ...], replicas: int, desired: int
) -> None:
    """They stop short of the proposal only where all that leads there is vertical only; not even then at maxAllowed."""
    replicas, desired = bounds.clamp(replicas), bounds.clamp(desired)
    spec = replace(spec_of(HvpaMode.WEIGHT_BASED, bounds, []), intervals=found)
    rests = settled(spec, running(replicas, sized(1000, 1000)), Load(1000 * replicas, desired)).replicas
    if rests != desired:
        assert vpa_weight(found, bounds, rests, desired) == 1
    beyond = sized(9000) if desired > rests else sized(1)
    at_bound = running(rests, sized(8000 if desired > rests else 100))
    freed = decided(spec, at_bound, wanted(desired, beyond))
    assert freed.applied(at_bound).replicas == desired or vpa_weight(found, bounds, rests, desired) < 1


amounts = st.one_of(st.none(), st.integers(0, 10**12))
lists = st.builds(lambda cpu, memory: sized(cpu).with_value("memory", memory), amounts, amounts)


def container_of(requests: ResourceList, limits: ResourceList) -> SizedContainer:
    """As Kubernetes has them: a limit is never below its request."""
    above = limits.map(lambda resource, limit: max(limit.value, (requests[resource] or limit).value))
    return SizedContainer("app", requests, above)


@given(
    st.sampled_from(HvpaMode),
    replica_bounds,
    intervals,
    st.tuples(lists, lists),
    st.builds(container_of, lists, lists),
    st.tuples(st.integers(0, 10**6), st.integers(-3, 10**6), lists),
    st.booleans(),
)
@settings(max_examples=examples(25, 200))
def test_nothing_is_ever_written_outside_its_bounds(  # noqa: PLR0917 - everything that a decision looks at
    mode: HvpaMode,
    bounds: ReplicaBounds,
    found: tuple[Interval, ...],
    allowed: tuple[ResourceList, ResourceList],
    container: SizedContainer,
    said: tuple[int, int, ResourceList],
    controls_limits: bool,
) -> None:
    replicas, desired, target = said
    policy = ContainerPolicy("app", SizeBounds(*allowed), controls_limits=controls_limits)
    spec = replace(spec_of(mode, bounds, []), intervals=found, containers=(policy,))
    decision = decided(spec, Workload(replicas, replicas, (container,)), wanted(desired, target))
    assert decision.replicas is None or bounds.min <= decision.replicas <= bounds.max
    for written in decision.containers:
        for resource, request in written.requests:
            limit = written.limits[resource] or container.limits[resource]
            held = request.value if controls_limits or limit is None else min(request.value, limit.value)
            bounded = policy.bounds.clamp(resource, request.value)
            assert held == request.value
            assert bounded == request.value or mode is HvpaMode.WEIGHT_BASED or limit is not None
            assert limit is None or not limit or request <= limit


@pytest.mark.parametrize("mode", HvpaMode)
def test_the_same_input_gives_the_same_output(mode: HvpaMode) -> None:
    spec, workload = spec_of(mode, ReplicaBounds(1, 9), [(3, 2000)]), running(3, sized(1000, 1000))
    said = Load(9000, 5).recommended(workload)
    assert decide(spec, workload, said, ScalingTimes(), NOON) == decide(spec, workload, said, ScalingTimes(), NOON)
