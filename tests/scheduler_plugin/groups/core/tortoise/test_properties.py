"""Properties for any input: bounds, the order of the numbers, emergencies, and rest under a constant need."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.tortoise_memory import Phase, Spec, TortoiseMode
from scheduler_plugin.groups.core.workload import SizeBounds
from tests.examples import examples
from tests.scheduler_plugin.groups.core.tortoise.cluster_model import ClusterModel, cpu

USUAL = Configuration(preferred_max_replicas=10)
SPEC = Spec(USUAL, TortoiseMode.AUTO, sizes={"app": SizeBounds(cpu(0.5), cpu(6))}, max_replicas=40)


@settings(max_examples=examples(8, 50))
@given(st.lists(st.tuples(st.floats(0.1, 120), st.sampled_from(list(TortoiseMode))), max_size=40), st.integers(3, 40))
def test_replicas_and_sizes_stay_within_their_bounds(looks: list[tuple[float, TortoiseMode]], replicas: int) -> None:
    model = ClusterModel.working(SPEC, replicas, 2)
    for need, mode in looks:
        model.spec = replace(model.spec, mode=mode)
        model.passes(need)
        assert 1 <= model.autoscaler.min <= model.autoscaler.max <= 40
        assert 0.5 <= model.cores <= 6
        assert model.autoscaler.target("app", "cpu") in range(65, 91)


@settings(max_examples=examples(8, 50))
@given(st.lists(st.floats(0.1, 120), min_size=2, max_size=30), st.integers(3, 40))
def test_an_emergency_never_shrinks_anything(needs: list[float], replicas: int) -> None:
    model = ClusterModel.working(SPEC, replicas, 2)
    model.passes(needs[0])
    model.spec = replace(model.spec, mode=TortoiseMode.EMERGENCY)
    last = (model.replicas, model.cores)
    for need in needs[1:]:
        decision = model.passes(need)
        assert model.memory.phase is Phase.EMERGENCY
        assert decision.autoscaler is not None
        assert decision.autoscaler.min == decision.autoscaler.max
        assert model.replicas >= last[0]
        assert model.cores == last[1]
        last = (model.replicas, model.cores)


@settings(max_examples=examples(8, 40))
@given(st.floats(0.2, 150), st.integers(3, 40), st.sampled_from([0.5, 1, 2, 4]))
def test_constant_need_never_swings(need: float, replicas: int, cores: float) -> None:
    aims = replace(USUAL, minimum_target_resource_utilization=80, maximum_target_resource_utilization=80)
    model = ClusterModel.working(replace(SPEC, configuration=aims), replicas, cores)
    model.step = timedelta(minutes=30)
    path = model.run(need, 30)
    assert len(set(path[-12:])) == 1
    sizes = [size for _, size in path]
    turns = [now > before for before, now in pairwise(sizes) if now != before]
    assert sum(one != other for one, other in pairwise(turns)) <= 1
