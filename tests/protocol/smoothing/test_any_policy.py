"""Every policy that can be parsed returns a size for every need (S0.7)."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.smoothing.policy import SmoothingPolicyError, parse_policy
from protocol.smoothing.spec import SPECS
from protocol.smoothing.stage import LARGEST, Sample, Stage
from protocol.units import Bytes, Instant, MilliCpu

levels = st.sampled_from([0, 1e-30, "1n", 0.25, 1, 3, "1Gi", 1e30, "1e30", "999999999999999999999Ei"])
spans = st.sampled_from([1e-300, "1ns", 0.5, 5, "5m", "366d"]) | st.floats(1e-9, 1e7)
numbers = st.sampled_from([0.0, 1e-300, 0.5, 1 - 1e-16, 1.0, 1.5, 999.0, 1e6, 1e300, 1e308])
segments = st.lists(st.fixed_dictionaries({"every": levels}, optional={"at": levels}), max_size=3)
counts = st.integers(0, 4)
FIELDS: dict[str, dict[str, st.SearchStrategy[object]]] = {
    "model": dict.fromkeys(("base", "slope", "per", "max"), levels),
    "segments": {"steps": segments},
    "hysteresis": {"inputs": levels, "outputs": levels, "ratio": numbers, "patience": spans},
    "hold": {"window": spans, "pause": spans, "keep": numbers, "extra": levels},
    "percentile": {"window": spans, "lowThreshold": numbers, "highThreshold": numbers, "minSamples": counts},
    "histogram": {"percentile": numbers, "margin": numbers, "halfLife": spans, "smallest": levels},
    "quantize": {"base": levels, "step": levels, "ratio": numbers, "maxStep": levels, "segments": segments},
    "sustain": {"over": spans},
    "surge": {"factor": numbers, "window": spans},
}


def stage(name: str) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries({name: st.fixed_dictionaries({}, optional=FIELDS[name])})


stages = st.lists(st.sampled_from(sorted(FIELDS)).flatmap(stage), min_size=1, max_size=8)
needs = st.sampled_from([0.0, 1e-300, 0.25, 2.0, 2.0**40, 1e29, 1e300]) | st.floats(0, 1e12)
looks = st.lists(st.tuples(st.floats(0, 1e9), needs, st.none() | needs), min_size=1, max_size=8)


def test_every_stage_is_among_those_made_up() -> None:
    assert FIELDS.keys() == SPECS.keys()


@given(stages, st.sampled_from(["cpu", "memory"]), looks)
def test_valid_policy_answers_every_need(
    document: list[dict[str, object]], resource: str, seen: list[tuple[float, float, float | None]]
) -> None:
    try:
        policy = parse_policy({"resource": resource, "stages": document})
    except SmoothingPolicyError:
        return
    pipeline, now = policy.start(), 0.0
    for pause, need, current in seen:
        now += pause
        target = pipeline.target(Instant(now), Sample(need, current))
        assert 0 <= target <= max(LARGEST, need)
        assert (MilliCpu.cores(target) >= MilliCpu(0), Bytes(ceil(target)) >= Bytes(0)) == (True, True)
        assert len(pipeline.explain()) == len(document)


@given(stages, st.sampled_from(["cpu", "memory"]), st.lists(st.tuples(looks, st.integers(1, 9)), max_size=3))
def test_pipeline_is_its_stages_in_order(
    document: list[dict[str, object]],
    resource: str,
    rounds: list[tuple[list[tuple[float, float, float | None]], int]],
) -> None:
    try:
        policy = parse_policy({"resource": resource, "stages": document})
    except SmoothingPolicyError:
        return
    stages: list[Stage] = []
    for _, spec in policy.stages:
        stages.append(spec.build(stages))
    pipeline, now = policy.start(), 0.0
    for seen, times in rounds:
        for pause, need, current in seen:
            sample = Sample(need, current)
            for _ in range(times):
                now += pause
                assert pipeline.target(Instant(now), sample) == through(stages, resource, Instant(now), sample)
            assert [step.reason for step in pipeline.explain()] == [stage.explain() for stage in stages]


def through(stages: list[Stage], resource: str, now: Instant, sample: Sample) -> float:
    """The target of a pipeline that skips no stage."""
    value = min(LARGEST, sample.value)
    for stage in stages:
        value = min(LARGEST, stage.step(now, value, sample))
    return max(value, sample.value) if resource == "memory" else value


@pytest.mark.parametrize(
    "document",
    [
        [{"model": {"base": "1e30", "slope": "1e30", "per": "1e-30"}}] * 6,
        [{"model": {"base": "1e30", "slope": "1e30", "per": "1e-30"}}] * 6 + [{"hysteresis": {"inputs": 1}}],
        [{"surge": {"factor": 1000}}] * 32,
        [{"histogram": {"smallest": "1e30", "margin": 1000}}] * 32,
    ],
)
def test_combined_stages_are_capped(document: list[dict[str, object]]) -> None:
    pipeline = parse_policy(document).start()
    targets = [pipeline.target(Instant(float(at)), Sample(2.0**40, 1.0)) for at in range(3)]
    assert targets[-1] == LARGEST
