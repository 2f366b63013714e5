"""Limits of the decaying histogram."""

from __future__ import annotations

from protocol.smoothing.histogram import GROWTH, DecayingHistogram, confidence_factor
from protocol.units import Seconds


def test_zero_percentile_is_first_filled_bucket() -> None:
    histogram = DecayingHistogram(Seconds(60.0), 1.0)
    histogram.add(2.0, 10.0)
    histogram.add(8.0, 10.0)
    assert 2.0 <= histogram.percentile(0.0) < 2.0 * GROWTH


def test_first_sample_counts_one_minute() -> None:
    assert confidence_factor(0, 1, 1) == confidence_factor(60 / 86_400, 1, 1) == 1441
