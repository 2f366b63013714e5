"""The sliding maximum against a plain list of everything that was seen."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.smoothing.window import RESOLUTION, WindowMax
from protocol.units import Instant, Seconds


def naive_max(samples: list[tuple[float, float]], now: float, span: float) -> float:
    """The greatest value in force at any instant of the closed window that ends at ``now``."""
    ends = [at for at, _ in samples[1:]] + [inf]
    return max(value for (at, value), end in zip(samples, ends, strict=True) if end >= now - span and at <= now)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), min_size=1, max_size=60))
def test_equals_maximum_in_window(steps: list[tuple[int, int]]) -> None:
    window, now, seen = WindowMax(Seconds(100.0)), 0.0, list[tuple[float, float]]()
    for pause, value in steps:
        now += pause
        seen.append((now, float(value)))
        window.add(float(value), Instant(now))
        assert window.max() == naive_max(seen, now, 100.0)


def test_empty_window_has_no_maximum() -> None:
    window = WindowMax(Seconds(10.0))
    assert (window.max(), window.is_full(Instant(1e9))) == (None, False)


def test_window_is_full_after_its_span() -> None:
    window = WindowMax(Seconds(600.0))
    window.add(1.0, Instant(5.0))
    assert [window.is_full(Instant(at)) for at in (5.0, 605.0, 605.1)] == [False, False, True]


def test_value_counts_until_the_next() -> None:
    window = WindowMax(Seconds(10.0))
    window.add(7.0, Instant(0.0))
    window.add(1.0, Instant(500.0))
    assert window.max() == 7.0
    window.add(1.0, Instant(511.0))
    assert window.max() == 1.0


def test_bounded_memory_keeps_peaks() -> None:
    window, count = WindowMax(Seconds(10.0)), 20 * RESOLUTION
    for step in range(count):
        window.add(float(count - step), Instant(step * 20.0 / count))
        assert len(window._entries) <= 2 * RESOLUTION + 2
    exact = count / 2
    assert exact <= (window.max() or 0.0) <= exact + count / 20 * 10 / RESOLUTION + 2


@pytest.mark.parametrize("span", [0.0, -1.0, inf])
def test_a_window_needs_a_span(span: float) -> None:
    with pytest.raises(ValueError, match="span above zero"):
        WindowMax(Seconds(span))
