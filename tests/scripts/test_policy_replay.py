"""One VM's recorded need through a policy: what counts, and within which bounds."""

from __future__ import annotations

from fractions import Fraction

from scheduler_plugin.history.core.samples import HOUR, MINUTE, Size
from scheduler_plugin.history.core.spans import joined, sample_span
from scripts.autoscale.costs.policy_replay import CPU, replayed
from scripts.autoscale.replay.peers import PLAYERS

GIB = 1024**2


def test_a_gap_is_played_through_and_not_counted() -> None:
    row = (1000, GIB, 1000, GIB, *[None] * 6)
    spans = [sample_span(at * MINUTE, (at + 1) * MINUTE, row) for at in (*range(60), *range(600, 660))]
    found = replayed("db", spans, PLAYERS["fixed-peak"], (None, Size(8000, GIB)), CPU)
    assert found is not None
    assert (found.recorded, found.played, found.needed) == (Fraction(2), Fraction(2), Fraction(2))
    assert found.missed_percent == 0.0
    assert replayed("db", spans[:1], PLAYERS["fixed-peak"], (None, None), CPU) is None
    low = replayed("db", spans, PLAYERS["fixed-peak"], (None, Size(500, GIB)), CPU)
    assert low is not None
    assert (low.played, low.missed_percent) == (Fraction(1), 50.0)


def test_gap_within_old_span_is_not_counted() -> None:
    """The recorder ran in the first and last quarter of each hour, which the history has since joined."""
    row = (1000, GIB, 1000, GIB, *[None] * 6)
    quarters = [
        (hour + part, hour + part + HOUR // 4) for hour in range(0, 4 * HOUR, HOUR) for part in (0, HOUR * 3 // 4)
    ]
    parts = [sample_span(since, until, row) for since, until in quarters]
    for spans in (parts, [joined(parts[at : at + 2]) for at in range(0, len(parts), 2)]):
        found = replayed("db", spans, PLAYERS["fixed-peak"], (None, None), CPU)
        assert found is not None
        assert (found.recorded, found.played, found.needed) == (Fraction(2), Fraction(2), Fraction(2))


def test_interrupted_spans_count_in_full() -> None:
    """The VM moved away for ten minutes of each hour: the hour on its usual node spans those of the other node."""
    row = (1000, GIB, 1000, GIB, *[None] * 6)
    spans = []
    for hour in range(0, 4 * HOUR, HOUR):
        away, back = hour + HOUR // 3, hour + HOUR // 2
        spans.append(joined([sample_span(hour, away, row), sample_span(back, hour + HOUR, row)]))
        spans.append(sample_span(away, back, row))
    found = replayed("db", spans, PLAYERS["fixed-peak"], (None, None), CPU)
    assert found is not None
    assert (found.recorded, found.played, found.needed) == (Fraction(4), Fraction(4), Fraction(4))


def test_sleep_is_free_with_any_policy() -> None:
    """The VM slept for half of each hour; its agent's last response from before counted for the first minute."""
    awake, asleep = (1000, GIB, 1000, GIB, *[None] * 6), (0, 0, None, None, *[None] * 6)
    falling = (0, 0, 1000, GIB, *[None] * 6)
    spans = []
    for hour in range(0, 4 * HOUR, HOUR):
        sleep = hour + HOUR // 2
        spans.append(sample_span(hour, sleep, awake))
        spans.append(
            joined([sample_span(sleep, sleep + MINUTE, falling), sample_span(sleep + MINUTE, hour + HOUR, asleep)])
        )
    found = replayed("db", spans, PLAYERS["fixed-peak"], (None, None), CPU)
    assert found is not None
    assert (found.recorded, found.played, found.needed) == (Fraction(2), Fraction(2), Fraction(2))


def test_no_policy_shrinks_below_the_minimum() -> None:
    row = (1000, GIB, 100, GIB, *[None] * 6)
    spans = [sample_span(at * MINUTE, (at + 1) * MINUTE, row) for at in range(60)]
    for bounds, played in (((None, None), Fraction(1, 4)), ((Size(1000, GIB), None), Fraction(1))):
        found = replayed("db", spans, PLAYERS["fixed-peak"], bounds, CPU)
        assert found is not None
        assert (found.recorded, found.played) == (Fraction(1), played)
