"""What the decaying histogram answers at its ends."""

from __future__ import annotations

from protocol.smoothing.confidence import confidence_factor
from protocol.smoothing.histogram import GROWTH, DecayingHistogram
from protocol.units import Seconds


def test_a_part_of_nothing_is_the_first_bucket_that_holds_anything() -> None:
    histogram = DecayingHistogram(Seconds(60.0), 1.0)
    histogram.add(2.0, 10.0)
    histogram.add(8.0, 10.0)
    assert 2.0 <= histogram.percentile(0.0) < 2.0 * GROWTH


def test_the_first_sample_counts_as_a_minute_of_history() -> None:
    assert confidence_factor(0, 1, 1) == confidence_factor(60 / 86_400, 1, 1) == 1441
