"""The seed's model, segments, quantization and hysteresis, by its own examples and by what must always hold."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.smoothing.curves import INPUT_SLACK, NOISE, CurveModel, Segments
from protocol.smoothing.hysteresis import Hysteresis
from protocol.smoothing.policy import parse_policy
from protocol.smoothing.quantize import MAX_RUNGS, Quantize
from protocol.smoothing.stage import Sample
from protocol.units import Instant, Seconds

NOW = Instant(0.0)
levels = st.floats(0, 1e6, allow_nan=False)


@pytest.mark.parametrize(("value", "expected"), [(0, 100), (10, 105), (1000, 300)])
def test_model_is_capped_line(value: float, expected: float) -> None:
    assert CurveModel(100, 1, per=2, limit=300).at(value) == expected


def test_eighteen_cores_give_300m() -> None:
    assert CurveModel(100, 10).at(Segments([(0, 1), (16, 4)]).at(18)) == 300


def test_a_finer_segment_never_makes_the_result_fall() -> None:
    segments = Segments([(12, 1), (0, 10)])
    assert [segments.at(value) for value in (11, 12, 12.5)] == [12, 12, 13]


def test_very_wide_segment_never_makes_result_fall() -> None:
    segments = Segments([(0, 1), (2, 2000)])
    assert [segments.at(value) for value in (1.9, 2, 2.1, 2000.5, 2001)] == [2, 2000, 2000, 2000, 4000]


def test_wide_segment_rounds_whole_inputs_up() -> None:
    """The slack was a thousandth of a step of any width, so a fleet of ten nodes counted as none."""
    segments = Segments([(0, 10_000)])
    assert [segments.at(value) for value in (0, 1, 10, 10_000, 10_001)] == [0, 10_000, 10_000, 10_000, 20_000]


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 30)), min_size=1, max_size=5), levels, levels)
def test_segments_rise_and_round_up(steps: list[tuple[int, int]], left: float, right: float) -> None:
    segments, low, high = Segments(steps), min(left, right), max(left, right)
    assert segments.at(low) <= segments.at(high)
    assert segments.at(low) >= low - INPUT_SLACK * 30 - 1e-9


@pytest.mark.parametrize(
    ("ladder", "value", "expected"),
    [
        (Quantize(100), 230, 300),
        (Quantize(100, 100), 40, 100),
        (Quantize(None, 32), 107, 128),
        (Quantize(5, 10, 2.0), 100, 155),
        (Quantize(5, 10, 2.0, 30), 100, 125),
        (Quantize(0.25), 0.1 + 0.2 - 0.05, 0.25),
        (Quantize(1, 1, 1.5, 1), 7.2, 8),
        (Quantize(1, 1, 1.5), 3.2, 3.5),
        (Quantize(0.1, 0.1, 1.25), 0.5, 0.676),  # steps of 100, 125, 156 and 195 thousandths
        (Quantize(5, 10, 1.5, unit=1), 100, 134),  # steps of 10, 15, 22, 33 and 49
        (Quantize(2**20, 2**20, 1.1), 8 * 2**20, 9138971),
        (Quantize(), 7.2, 7.2),
    ],
)
def test_quantization_takes_the_next_rung_up(ladder: Quantize, value: float, expected: float) -> None:
    assert ladder.at(value) == pytest.approx(expected, rel=1e-12)


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(1, 3), levels, levels)
def test_quantization_never_rounds_down_and_never_falls(
    base: float, step: float, ratio: float, left: float, right: float
) -> None:
    ladder, low, high = Quantize(base, step, ratio), min(left, right), max(left, right)
    assert ladder.at(low) >= low * (1 - 2 * NOISE)
    assert ladder.at(low) <= ladder.at(high)


@given(st.integers(1, 5000), st.floats(1, 3), st.floats(0.001, 1000))
def test_rungs_are_whole_thousandths_or_bytes(base: int, ratio: float, value: float) -> None:
    milli = Quantize(base / 1000, None, ratio).at(value) * 1000
    assert milli == pytest.approx(round(milli), abs=1e-6 * milli)
    assert float(Quantize(base * 1024, None, ratio).at(value * 2**30)).is_integer()


GI = 2**30


@pytest.mark.parametrize(
    ("steps", "value", "expected"),
    [
        ([(0, 4)], 16.003, 20),
        ([(0, 4)], 16.0, 16),
        ([(0, 0.25)], 0.1 + 0.2 - 0.05, 0.25),
        ([(0, 0.1)], sum([0.1] * 10_000), 1000),
        ([(0, GI)], GI + 1, 2 * GI),
        ([(0, 1024 * GI)], 1024 * GI + 1, 2048 * GI),
        ([(0, 1), (16, 4)], 15.9999, 16),
    ],
)
def test_outputs_round_up_without_slack(steps: list[tuple[float, float]], value: float, expected: float) -> None:
    written = [{"at": at, "every": every} for at, every in steps]
    pipelines = [parse_policy([{"quantize": {"segments": written}}]).start()]
    if len(steps) == 1:
        pipelines.append(parse_policy([{"quantize": {"base": steps[0][1]}}]).start())
    assert [each.target(NOW, Sample(value)) for each in pipelines] == pytest.approx(
        [expected] * len(pipelines), rel=1e-12
    )


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 30)), min_size=1, max_size=5), levels, levels)
def test_output_segments_never_fall(steps: list[tuple[int, int]], left: float, right: float) -> None:
    segments, low, high = Segments(steps, is_output=True), min(left, right), max(left, right)
    assert low * (1 - 2 * NOISE) <= segments.at(low) <= segments.at(high)


def test_slow_ladder_ends_in_equal_steps() -> None:
    ladder = Quantize(1, 1, 1.0001)
    assert ladder.at(1e6) >= 1e6
    assert len(ladder._rungs) == MAX_RUNGS


@pytest.mark.parametrize(
    ("cores", "current", "expected"),
    [(100, 1000, 1000), (90, 1000, 1000), (95, 1000, 1000), (80, 1000, 1000), (75, 1000, 750), (101, 1000, 1010)],
)
def test_hysteresis_shrinks_above_shifted_target(cores: float, current: float, expected: float) -> None:
    model = CurveModel(0, 10)
    stage = Hysteresis.by_inputs(model.at, 20)
    assert stage.step(NOW, model.at(cores), Sample(cores, current)) == expected
    assert stage.explain() == "shrinks only if the size is above that for 20 more of input"


@pytest.mark.parametrize(
    ("value", "current", "expected"),
    [(4.0, 4.5, 4.5), (4.0, 4.6, 4.0), (1.0, 1.3, 1.3), (1.0, 1.6, 1.0), (5.0, 4.0, 5.0), (3.0, None, 3.0)],
)
def test_output_hysteresis_needs_difference_and_ratio(value: float, current: float | None, expected: float) -> None:
    stage = Hysteresis.by_outputs(0.5, 0.1)
    assert stage.step(NOW, value, Sample(value, current)) == expected
    assert stage.explain() == "shrinks only if that saves more than 0.5 and at least 10% of the size"
    assert Hysteresis.by_outputs(0.0, 0.0).explain() == "shrinks only if that saves anything"


def test_patience_ends_what_hysteresis_would_hold_for_ever() -> None:
    stage = Hysteresis.by_outputs(0.0, 0.5, patience=Seconds(100.0))
    steps = [(0.0, 4.0), (50.0, 3.0), (160.0, 2.5), (240.0, 2.5), (261.0, 2.5), (262.0, 2.2)]
    assert [stage.step(Instant(at), value, Sample(value, 4.0)) for at, value in steps] == [4, 4, 3, 3, 2.5, 2.5]
    assert stage.explain() == "no larger need for as long as patience lasts"
    assert stage.step(Instant(263.0), 1.9, Sample(1.9, 4.0)) == 1.9
    assert stage.explain() == "shrinks only if that saves at least 50% of the size"


def test_curves_say_what_they_do() -> None:
    assert [
        CurveModel(1, 2, 3, 4).explain(),
        CurveModel(0, 1, 1, inf).explain(),
        Segments([(0, 1), (16, 4)]).explain(),
        Quantize(1, 2).explain(),
        Quantize(1, 1, 2.0).explain(),
    ] == [
        "1 + 2 per 3 of input, at most 4",
        "0 + 1 per 1 of input",
        "rounded up to multiples of 1 from 0, 4 from 16",
        "rounded up to 1, then every 2",
        "rounded up to 1, 2, 4, 8, ...",
    ]
