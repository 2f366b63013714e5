"""Stages with state: their output, its reason, and saving and restoring them."""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.smoothing.curves import CurveModel
from protocol.smoothing.growth import Surge, Sustain
from protocol.smoothing.histogram import GROWTH, DecayingHistogram, HistogramStage
from protocol.smoothing.hold import Hold
from protocol.smoothing.hysteresis import Hysteresis
from protocol.smoothing.percentile import MAX_ENOUGH, MAX_SAMPLES, Percentile, percentile_index
from protocol.smoothing.stage import Sample, Stage
from protocol.units import Instant, Seconds


def play(stage: Stage, steps: list[tuple[float, float, float | None]]) -> list[float]:
    """Steps are (instant, value, current)."""
    return [stage.step(Instant(at), value, Sample(value, current)) for at, value, current in steps]


def test_hold_shrinks_to_window_maximum() -> None:
    hold = Hold(Seconds(60.0))
    steps: list[tuple[float, float, float | None]] = [(0, 2, 1), (30, 5, 2), (40, 1, 5), (95, 1, 5), (105, 1, 5)]
    assert play(hold, steps) == [2, 5, 5, 5, 1]


def test_hold_never_grows_for_past_need() -> None:
    stage = Hold(Seconds(60.0))
    assert stage.step(Instant(0.0), 4.0, Sample(4.0, 1.0)) == 4.0
    assert stage.step(Instant(5.0), 0.5, Sample(0.5, 1.0)) == 1.0, "denied, and no longer needed"
    assert stage.step(Instant(10.0), 1.5, Sample(1.5, 1.0)) == 1.5
    assert stage.step(Instant(15.0), 0.5, Sample(0.5, None)) == 4.0, "without anything there, all of the window"


def test_hold_needs_whole_window() -> None:
    hold = Hold(Seconds(60.0))
    assert play(hold, [(0, 1, 8), (60, 1, 8)]) == [8, 8]
    assert hold.explain() == "no whole window observed yet (60 s)"
    assert play(hold, [(61, 1, 8)]) == [1]
    assert hold.explain() == "maximum of a whole window (60 s)"


def test_hold_waits_between_shrinks() -> None:
    hold = Hold(Seconds(10.0), pause=Seconds(100.0))
    assert play(hold, [(0, 1, 8), (20, 1, 8), (21, 0.5, 4), (40, 0.5, 4)]) == [8, 1, 4, 4]
    assert hold.explain() == "shrank too recently (10 s)"
    assert play(hold, [(122, 0.5, 4)]) == [0.5]


def test_hold_can_keep_a_part_and_something_extra() -> None:
    hold = Hold(Seconds(60.0), keep=0.5, extra=0.25)
    assert play(hold, [(0, 4, None), (1, 1, None)]) == [4, 2.25]
    assert hold.explain() == "maximum of the window (60 s, 50% of it and 0.25)"


@pytest.mark.parametrize(
    ("count", "fraction", "index"), [(20, 0.6, 12), (20, 0.95, 19), (3, 0.95, 2), (10, 0, 0), (10, 1, 9)]
)
def test_the_index_of_a_percentile_is_rounded_down(count: int, fraction: float, index: int) -> None:
    assert percentile_index(count, fraction) == index


def seconds(values: list[float], current: float | None) -> list[tuple[float, float, float | None]]:
    return [(float(at), value, current) for at, value in enumerate(values)]


def test_percentile_threshold_example() -> None:
    eight, seven = Percentile(Seconds(300.0)), Percentile(Seconds(300.0))
    assert play(eight, seconds([100.0] * 12 + [200.0] * 8, 150))[-1] == 200
    assert play(seven, seconds([100.0] * 13 + [200.0] * 7, 150))[-1] == 150
    assert eight.explain() == "outside 200 to 200, so to P80 over 300 s"
    assert seven.explain() == "between 100 and 200 over 300 s"


def test_few_samples_hold_current() -> None:
    stage = Percentile(Seconds(300.0))
    assert play(stage, [(0, 5, 1), (1, 6, None)]) == [1, 6]
    assert stage.explain() == "2 samples are too few over 300 s"
    assert play(stage, [(2, 7, None)]) == [7]


def test_percentile_window_is_by_time() -> None:
    stage = Percentile(Seconds(10.0))
    play(stage, seconds([9.0] * 10, None))
    assert play(stage, [(20, 1, None), (21, 1, None), (22, 1, None)]) == [1, 1, 1]


def test_percentile_memory_is_bounded() -> None:
    stage = Percentile(Seconds(10.0))
    play(stage, [(index / 1000, 1.0, None) for index in range(12_000)])
    assert len(stage._ascending) <= MAX_SAMPLES + 1


@pytest.mark.parametrize("hours", [1, 4])
def test_long_percentile_window_is_unbiased(hours: int) -> None:
    """Of several samples in a row only the largest once counted, so the median of four hours was their 95th."""
    random, stage = Random(1), Percentile(Seconds(hours * 3600.0), target=0.5, low=0.5, high=0.5)
    values = [random.random() for _ in range(hours * 3600)]
    assert play(stage, seconds(values, 9.0))[-1] == pytest.approx(sorted(values)[len(values) // 2], abs=0.02)


@pytest.mark.parametrize("window", [4096.0, 4097.0, 8191.0, 8193.0])
def test_percentile_window_reaches_largest_minimum(window: float) -> None:
    """Every second sample counts of a window with one more than fit."""
    stage = Percentile(Seconds(window), enough=MAX_ENOUGH)
    assert play(stage, seconds([5.0] * (int(window) + 2), 9.0))[-1] == 5.0


MODEL = CurveModel(0.1, 0.01)


@pytest.mark.parametrize(
    ("stage", "raw", "current", "expected"),
    [
        (Hysteresis.by_inputs(MODEL.at, 20), 4, 0.34, 0.34),
        (Hysteresis.by_inputs(MODEL.at, 20), 3, 0.34, 0.13),
        (Hysteresis.by_outputs(0.1, 0), 10, 0.3, 0.3),
        (Hysteresis.by_outputs(0.1, 0), 10, 0.301, 0.2),
        (Hysteresis.by_outputs(0, 0.5), 190, 4, 2),
        (Hysteresis.by_outputs(0, 0.3), 28.5, 0.55, 0.385),
        (Hysteresis.by_outputs(0, 0.3), 28.6, 0.55, 0.55),
    ],
)
def test_hysteresis_thresholds_ignore_noise(stage: Stage, raw: float, current: float, expected: float) -> None:
    """0.1 + 0.01 * 24 is less than 0.34, and 2 / (1 - 0.5) is not below 4."""
    new = stage.step(Instant(0.0), MODEL.at(raw), Sample(raw, current))
    assert new == pytest.approx(expected)


@given(st.lists(st.floats(0.02, 1e6), min_size=1, max_size=40), st.floats(0.01, 1))
def test_percentile_error_is_one_bucket(values: list[float], fraction: float) -> None:
    histogram = DecayingHistogram(Seconds(1e9), 0.01)
    for value in values:
        histogram.add(value, 1.0)
    true = sorted(values)[max(0, -int(-fraction * len(values) // 1) - 1)]
    assert true * (1 - 1e-9) <= histogram.percentile(fraction) <= true * GROWTH * (1 + 1e-9)


def test_weights_halve_forever() -> None:
    histogram = DecayingHistogram(Seconds(10.0), 0.01)
    histogram.add(1.0, 8.0)
    histogram.age(20.0)
    histogram.add(5.0, 1.0)
    assert histogram.percentile(0.66) == pytest.approx(1.0, rel=0.06), "two of three seconds are left of it"
    assert histogram.percentile(0.67) == pytest.approx(5.0, rel=0.06)
    for half_lives in (400, 10**9):
        histogram.age(10.0 * half_lives)
        histogram.add(0.001, 1.0)
        assert histogram.percentile(0.999) == 0.01, "everything else is forgotten"


def test_histogram_floor_and_target_modes() -> None:
    floor = HistogramStage(Seconds(3600.0), 0.5, 1.0, 0.01, "floor")
    target = HistogramStage(Seconds(3600.0), 0.5, 1.0, 0.01, "target")
    steps = [(0.0, 2.0, None), (10.0, 0.5, None), (11.0, 8.0, None)]
    lifted, replaced = play(floor, list(steps)), play(target, list(steps))
    assert lifted == [2.0, pytest.approx(2.0, rel=0.05), 8.0]
    assert replaced == [2.0, pytest.approx(2.0, rel=0.05), pytest.approx(2.0, rel=0.05)]
    assert floor.explain().startswith("P50 of the recent past times 1 is 2.0")


def test_long_silence_ends_a_value() -> None:
    stage = HistogramStage(Seconds(1e9), 0.5, 1.0, 0.01, "target")
    play(stage, [(0, 8, None), (86_400, 1, None), (86_470, 1, None)])
    assert play(stage, [(86_540, 1, None)])[0] == pytest.approx(1.0, rel=0.05)


def test_sustain_counts_duration() -> None:
    stage = Sustain(Seconds(3.0))
    assert play(stage, [(0, 1, None), (3, 4, None), (6, 4, None)]) == pytest.approx(
        [1, 4 - 3 * exp(-1), 4 - 3 * exp(-2)]
    )
    assert stage.explain() == "weighted by duration, over 3 s"


def test_surge_adds_headroom_for_a_while() -> None:
    stage = Surge(1.5, Seconds(20.0))
    assert play(stage, [(0, 1, 2), (5, 4, 2), (10, 4, 6)]) == [1, 6, 6]
    assert stage.explain() == "1.5 times a need that was not covered, for 20 s"
    assert play(stage, [(31, 4, 6), (32, 4, None)]) == [4, 4]
    assert stage.explain() == "covered"


def test_surge_ignores_float_noise_of_mean() -> None:
    """A load of five and then three vCPUs: the mean stays above three by one float, forever."""
    sustain, surge = Sustain(Seconds(2.25)), Surge(1.2, Seconds(5.0))
    means = play(sustain, [(0, 5, None), *((float(at), 3, None) for at in range(1, 300))])
    assert means[-1] > 3.0
    assert play(surge, [(300, means[-1], 3.0)]) == [means[-1]]


STAGES: list[Callable[[], Stage]] = [
    lambda: Hold(Seconds(30.0), pause=Seconds(15.0), keep=0.8, extra=0.1),
    lambda: Percentile(Seconds(30.0)),
    lambda: HistogramStage(Seconds(60.0), 0.9, 1.15, 0.01, "floor"),
    lambda: Sustain(Seconds(3.0)),
    lambda: Surge(1.5, Seconds(10.0)),
    lambda: Hysteresis.by_outputs(0.5, 0.2, patience=Seconds(40.0)),
]
samples = st.lists(
    st.tuples(st.integers(1, 20), st.integers(0, 8), st.one_of(st.none(), st.integers(1, 8))), max_size=30
)
