"""Samples become spans whose integrals are those of the samples, however they are cut and joined."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugin.history.core.accumulation import Accumulation, SpanPace
from scheduler_plugin.history.core.samples import COLUMN_INDEX, NODE_COLUMNS, Row, Size
from scheduler_plugin.history.core.spans import Span, clipped, joined, sample_span, stepped

FINE = SpanPace(fine=0, heartbeat=60, gap=40)
COARSE = SpanPace(fine=30, heartbeat=60, gap=40)
KEY = "default/db"

amounts = st.tuples(st.none() | st.integers(0, 5000), st.integers(0, 1 << 30))
samples = st.lists(st.tuples(st.integers(1, 60), st.sampled_from("ab"), amounts), min_size=1, max_size=30)
paces = st.builds(SpanPace, st.integers(0, 50), st.integers(20, 100), st.integers(10, 50))


def played(seen: Sequence[tuple[int, str, Row]], pace: SpanPace) -> list[tuple[str, Span]]:
    """All spans of one object that was seen at those times."""
    open_spans: Accumulation[str] = Accumulation()
    closed = [open_spans.take(KEY, at, facts, row, pace) for at, facts, row in seen]
    return [each for each in closed if each is not None] + list(open_spans.end())


def at_times(seen: Sequence[tuple[int, str, Row]]) -> list[tuple[int, str, Row]]:
    """Steps of time as moments."""
    now, found = 0, []
    for step, facts, row in seen:
        now += step
        found.append((now, facts, row))
    return found


def test_small_fleet_has_span_per_change() -> None:
    seen: list[tuple[int, str, Row]] = [(0, "n1", (1, 8)), (10, "n1", (1, 8)), (20, "n1", (2, 8)), (30, "n1", (2, 8))]
    assert played(seen, FINE) == [("n1", sample_span(0, 20, (1, 8))), ("n1", sample_span(20, 30, (2, 8)))]


def test_coarse_span_sums_and_keeps_peak() -> None:
    seen: list[tuple[int, str, Row]] = [(0, "n1", (1, 8)), (10, "n1", (5, 8)), (20, "n1", (2, 8)), (30, "n1", (3, 8))]
    assert played(seen, COARSE) == [("n1", Span(0, 30, 30, (30, 30), (10 + 50 + 20, 240), (5, 8)))]


def test_move_starts_span_on_target() -> None:
    assert played([(0, "n1", (1, 8)), (10, "n2", (1, 8)), (20, "n2", (1, 8))], COARSE) == [
        ("n1", sample_span(0, 10, (1, 8))),
        ("n2", sample_span(10, 20, (1, 8))),
    ]


def test_quiet_vm_is_recorded_per_heartbeat() -> None:
    seen: list[tuple[int, str, Row]] = [(at, "n1", (1, 8)) for at in range(0, 100, 10)]
    assert [(span.since, span.until) for _, span in played(seen, FINE)] == [(0, 60), (60, 90)]


def test_missing_samples_are_gap() -> None:
    found = played([(0, "n1", (1, 8)), (10, "n1", (1, 8)), (51, "n1", (1, 8)), (61, "n1", (1, 8))], FINE)
    assert found == [("n1", sample_span(0, 10, (1, 8))), ("n1", sample_span(51, 61, (1, 8)))]
    whole = joined([span for _, span in found])
    assert (whole.until - whole.since, whole.observed) == (61, 20)


def test_non_increasing_sample_is_dropped() -> None:
    assert played([(0, "n1", (1, 8)), (10, "n1", (2, 8)), (10, "n1", (9, 8)), (5, "n1", (9, 8))], FINE) == [
        ("n1", sample_span(0, 10, (1, 8)))
    ]


def test_clock_set_back_restarts_history() -> None:
    open_spans: Accumulation[str] = Accumulation()
    open_spans.take(KEY, 1000, "n1", (1, 8), FINE)
    open_spans.rewind()
    assert len(open_spans) == 0
    assert open_spans.take(KEY, 10, "n1", (1, 8), FINE) is None
    assert open_spans.take(KEY, 20, "n1", (2, 8), FINE) == ("n1", sample_span(10, 20, (1, 8)))


def test_gone_object_ends_at_last_sample() -> None:
    open_spans: Accumulation[str] = Accumulation()
    open_spans.take(KEY, 0, "n1", (1, 8), FINE)
    open_spans.take(KEY, 10, "n1", (1, 8), FINE)
    assert list(open_spans.expired(50, FINE)) == []
    assert list(open_spans.expired(51, FINE)) == [("n1", sample_span(0, 10, (1, 8)))]
    open_spans.take(KEY, 60, "n1", (1, 8), FINE)
    assert list(open_spans.end()) == []


@given(samples, paces)
def test_spans_have_the_integrals_of_the_samples(steps: list[tuple[int, str, Row]], pace: SpanPace) -> None:
    seen = at_times(steps)
    expected = {"a": [0, 0, 0], "b": [0, 0, 0]}
    for (at, facts, row), (after, _, _) in pairwise(seen):
        if after - at <= pace.gap:
            expected[facts][0] += after - at
            for place, amount in enumerate(row, start=1):
                expected[facts][place] += (amount or 0) * (after - at)
    found = {"a": [0, 0, 0], "b": [0, 0, 0]}
    for facts, span in played(seen, pace):
        found[facts][0] += span.observed
        found[facts][1] += span.sums[0]
        found[facts][2] += span.sums[1]
        assert span.observed <= span.until - span.since
    assert found == expected


@given(samples, paces, st.integers(1, 200), st.integers(0, 900))
def test_stepping_and_cutting_lose_nothing(
    steps: list[tuple[int, str, Row]], pace: SpanPace, step: int, cut: int
) -> None:
    spans = [span for _, span in played(at_times(steps), pace)]
    if not spans:
        return
    whole = joined(spans)
    parts = [part for span in spans for part in (clipped(span, 0, cut), clipped(span, cut, 10**9)) if part is not None]
    for regrouped in (joined(stepped(spans, 0, step)), joined(parts)):
        assert (regrouped.observed, regrouped.known_times, regrouped.sums) == (
            whole.observed,
            whole.known_times,
            whole.sums,
        )
    assert all(part.until <= cut or part.since >= cut for part in parts)


def test_means_and_peaks_use_known_time() -> None:
    span = joined([sample_span(0, 10, (None, 7, 1, 1, 1, 1, 1, 1)), sample_span(10, 20, (4, 9, 1, 1, 1, 1, 1, 1))])
    assert (span.mean("size_cpu"), span.peaks[COLUMN_INDEX["size_cpu"]], span.mean("size_mem")) == (4.0, 4, 8.0)
    assert (span.sums[0] / span.known_times[0], NODE_COLUMNS[0]) == (4.0, "total_cpu")
    assert sample_span(0, 10, (None,)).mean("size_cpu") is None
    assert Size(1500, 1024).resources == Size.of(Size(1500, 1024).resources).resources
