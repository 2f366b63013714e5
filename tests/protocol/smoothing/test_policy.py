"""Policies as people write them: read, refused with the path of the bad value, started, explained and resumed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from protocol.smoothing.default import DEFAULT_MEMORY
from protocol.smoothing.policy import SmoothingPolicyError, parse_policy
from protocol.smoothing.spec import SPECS, StageSpec
from protocol.smoothing.stage import Sample, StageExplanation
from protocol.units import Instant

EVERYTHING = """
resource: cpu
stages:
- segments: [{at: 0, every: 1}, {at: 16, every: 4}]
- model: {base: 100m, slope: 10m, per: 1, max: "4"}
- hysteresis: {inputs: 20}
- sustain: {over: 500ms}
- histogram: {percentile: 0.9, margin: 1.15, halfLife: 24h, smallest: 10m, use: floor}
- surge: {factor: 1.5, window: 20}
- hold: {window: 5m, pause: 1m, keep: 0.9, extra: 50m}
- percentile:
- quantize: {base: 100m, step: 100m, ratio: 2, maxStep: 1}
- quantize: {segments: [{every: 250m}]}
- hysteresis: {outputs: 100m, ratio: 0.1, patience: 1h}
"""


def test_stages_keep_their_order() -> None:
    policy = parse_policy(yaml.safe_load(EVERYTHING))
    assert [name for name, _ in policy.stages] == [
        *("segments", "model", "hysteresis", "sustain", "histogram", "surge", "hold", "percentile"),
        *("quantize", "quantize", "hysteresis"),
    ]
    assert {name for name, _ in policy.stages} == SPECS.keys()


def test_kube_dns_policy_example() -> None:
    policy = parse_policy(yaml.safe_load(EVERYTHING)["stages"][:3])
    pipeline = policy.start()
    assert pipeline.target(Instant(0.0), Sample(18, None)) == pytest.approx(0.3)
    assert pipeline.target(Instant(1.0), Sample(10, 0.3)) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("document", "resource", "message"),
    [
        (None, "cpu", "policy: expected a list of 1 to 32 stages"),
        ([], "cpu", "policy: expected a list of 1 to 32 stages"),
        ("hold", "cpu", "policy: expected a list of 1 to 32 stages"),
        ({"stages": [{"hold": {"window": 1}}] * 33}, "cpu", "stages: expected a list of 1 to 32 stages"),
        ({"steps": []}, "cpu", 'steps: unknown field; expected "stages" and "resource"'),
        ({"resource": "disk", "stages": []}, "cpu", 'resource: expected "cpu" or "memory", got \'disk\''),
        (["hold"], "cpu", "[0]: expected a mapping of one stage's name to its fields"),
        ([{"hold": {}, "surge": {}}], "cpu", "[0]: expected a mapping of one stage's name to its fields"),
        ([{"wait": {}}], "cpu", f"[0]: unknown stage 'wait'; expected one of {', '.join(SPECS)}"),
        (
            [{"surge": {}}, {"quantize": {"segments": [{}]}}],
            "cpu",
            "[1].quantize.segments[0]: Object missing required field `every`",
        ),
        (
            [{"hold": {"window": "soon"}}],
            "cpu",
            '[0].hold.window: expected seconds or a duration such as "90s", "5m" or "1h30m", got \'soon\'',
        ),
        ([{"hold": {"window": 0}}], "cpu", "[0].hold.window: expected a span above zero and at most a year, got 0"),
        (
            [{"hold": {"window": True}}],
            "cpu",
            '[0].hold.window: expected seconds or a duration such as "90s", "5m" or "1h30m", got True',
        ),
        (
            [{"hold": {"window": "5w"}}],
            "cpu",
            '[0].hold.window: expected seconds or a duration such as "90s", "5m" or "1h30m", got \'5w\'',
        ),
        ([{"hold": {"window": 5, "keep": 2}}], "cpu", "[0].hold: expected keep above 0 and at most 1"),
        ([{"hold": {"window": 5, "kep": 1}}], "cpu", "[0].hold: Object contains unknown field `kep`"),
        (
            [{"model": {"base": "1X"}}],
            "cpu",
            '[0].model.base: expected a quantity such as 2, "250m" or "1Gi", got \'1X\'',
        ),
        ([{"model": {"base": -1}}], "cpu", "[0].model.base: expected a quantity of zero or more, got -1"),
        ([{"model": {"base": []}}], "cpu", '[0].model.base: expected a quantity such as 2, "250m" or "1Gi", got []'),
        ([{"model": {"per": 0}}], "cpu", "[0].model: expected per above zero"),
        ([{"segments": []}], "cpu", "[0].segments: expected at least one step"),
        ([{"segments": [{"every": 0}]}], "cpu", "[0].segments.steps[0]: expected every above zero"),
        ([{"percentile": {"target": 0.5}}], "cpu", "[0].percentile: expected 0 <= low <= target <= high <= 1"),
        ([{"percentile": {"target": "x"}}], "cpu", "[0].percentile.target: Expected `float`, got `str`"),
        ([{"histogram": {"percentile": 2}}], "cpu", "[0].histogram: expected percentile of 0 to 1"),
        ([{"histogram": {"margin": 0}}], "cpu", "[0].histogram: expected margin above zero and at most 1000"),
        ([{"histogram": {"smallest": 0}}], "cpu", "[0].histogram: expected smallest above zero"),
        ([{"quantize": {}}], "cpu", "[0].quantize: expected either base or step, or segments"),
        ([{"quantize": {"base": 1, "ratio": 0.5}}], "cpu", "[0].quantize: expected ratio of 1 to 1000"),
        ([{"quantize": {"base": 1, "maxStep": 0}}], "cpu", "[0].quantize: expected maxStep above zero"),
        ([{"surge": {"factor": 0.5}}], "cpu", "[0].surge: expected factor of 1 to 1000"),
        ([{"hysteresis": {"ratio": 1}}], "cpu", "[0].hysteresis: expected ratio of at least 0 and below 1"),
        (
            [{"hysteresis": {"inputs": 1, "ratio": 0.1}}],
            "cpu",
            "[0].hysteresis: expected either inputs, or outputs and ratio",
        ),
        (
            [{"hold": {"window": 5}}, {"hysteresis": {"inputs": 1}}],
            "cpu",
            "[1].hysteresis: expected only model, segments and quantize before a hysteresis with inputs",
        ),
        (
            {"stages": [{"sustain": {"over": 1}}]},
            "memory",
            "stages[0].sustain: memory must grow immediately, and this stage can delay it",
        ),
        (
            {"resource": "memory", "stages": [{"percentile": {}}]},
            "cpu",
            "stages[0].percentile: memory must grow immediately, and this stage can delay it",
        ),
    ],
)
def test_bad_policy_names_path(document: object, resource: str, message: str) -> None:
    with pytest.raises(SmoothingPolicyError) as caught:
        parse_policy(document, "memory" if resource == "memory" else "cpu")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("stage", "meant"),
    [
        ("hold", {"window": "5m", "keep": 1, "extra": 0}),
        ("sustain", {"over": 2.25}),
        ("percentile", {"window": "5m", "target": 0.8, "lowThreshold": 0.6, "highThreshold": 0.95, "minSamples": 3}),
        ("surge", {"factor": 1.5, "window": 20}),
        ("model", {"base": 0, "slope": 1, "per": 1}),
        ("hysteresis", {"outputs": 0, "ratio": 0}),
        ("histogram", {"percentile": 0.9, "margin": 1.15, "halfLife": "24h", "smallest": "10m", "use": "floor"}),
    ],
)
def test_a_stage_without_fields_has_sensible_ones(stage: str, meant: dict[str, object]) -> None:
    assert parse_policy([{stage: None}]) == parse_policy([{stage: {}}]) == parse_policy([{stage: meant}])


def test_histogram_of_memory_reaches_large_vms() -> None:
    """Its buckets end at 70 TB; those of CPU would end below a gigabyte."""
    pipeline, need = parse_policy([{"histogram": {}}], "memory").start(), 8.0 * 2**30
    for minute in range(3 * 24 * 60):
        pipeline.target(Instant(minute * 60.0), Sample(need, need))
    assert pipeline.target(Instant(3 * 86400.0), Sample(1.0, need)) == pytest.approx(1.15 * need, rel=0.06)


def test_path_is_relative_to_policy() -> None:
    with pytest.raises(SmoothingPolicyError) as caught:
        parse_policy({"stages": [{"hold": {"window": 0}}]}, path="scaling.cpu")
    assert caught.value.path == "scaling.cpu.stages[0].hold.window"


def test_a_spec_that_builds_nothing_says_so() -> None:
    with pytest.raises(TypeError, match="Spec builds nothing"):
        StageSpec().build([])


def test_an_update_tells_what_every_stage_did() -> None:
    pipeline = parse_policy([{"hold": {"window": 60}}, {"quantize": {"base": "250m"}}]).start()
    assert pipeline.explain() == ()
    assert pipeline.target(Instant(0.0), Sample(1.1, 2.0)) == 2.0
    assert pipeline.explain() == (
        StageExplanation("hold", 1.1, 2.0, "no whole window observed yet (60 s)"),
        StageExplanation("quantize", 2.0, 2.0, "rounded up to 0.25, then every 0.25"),
    )


needs = st.lists(st.tuples(st.floats(0.1, 60), st.floats(0, 64)), min_size=1, max_size=60)


@given(needs)
def test_memory_is_never_less_than_what_is_needed(steps: Sequence[tuple[float, float]]) -> None:
    policy = parse_policy([{"model": {"slope": "500m"}}], "memory")
    pipeline, now = policy.start(), 0.0
    for pause, need in steps:
        now += pause
        assert pipeline.target(Instant(now), Sample(need, 1.0)) >= need


@given(needs)
def test_memory_default_shrinks_after_five_minutes(
    steps: Sequence[tuple[float, float]],
) -> None:
    pipeline, now, current, seen = DEFAULT_MEMORY.start(), 0.0, 8.0, list[tuple[float, float]]()
    for pause, need in steps:
        now += pause
        seen.append((now, need))
        target = pipeline.target(Instant(now), Sample(need, current))
        if target < current:
            assert now - seen[0][0] > 300
            assert all(value <= target for at, value in seen if at >= now - 300)
        current = target


@pytest.mark.parametrize("stage", [name for name in SPECS if name not in {"segments", "quantize"}])
def test_time_never_runs_backwards(stage: str) -> None:
    """A sample from before the last one, as in recordings after a clock was set, counts as simultaneous with it."""
    set_back, standing = (parse_policy([{stage: {}}]).start() for _ in range(2))
    needs = [(10_000.0, 2.0), (10_001.0, 2.0), (4_000.0, 1.0), (4_060.0, 3.0), (10_400.0, 1.0)]
    assert [set_back.target(Instant(at), Sample(need, 2.0)) for at, need in needs] == [
        standing.target(Instant(max(at, 10_001.0) if need != 2.0 else at), Sample(need, 2.0)) for at, need in needs
    ]
