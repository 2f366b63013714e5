"""Spans of a history: known time, integral and peak of each amount."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from scheduler_plugin.history.core.samples import COLUMN_INDEX, Amount, Millis, Row

_NONE: Final = 0
MOST: Final[Amount] = 2**40
"""A PiB in KiB; in milli-vCPUs a billion vCPUs."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """Amounts from ``since`` to ``until``, with one entry per column.

    ``known_times`` are for how long (ms) an amount was known, ``sums`` are integrals in amounts times milliseconds,
    ``peaks`` are maxima, 0 if unknown. ``observed`` is for how long (ms) there were samples of the object.
    """

    since: Millis
    until: Millis
    observed: Millis
    known_times: tuple[Millis, ...]
    sums: tuple[int, ...]
    peaks: tuple[Amount, ...]

    def mean(self, column: str) -> float | None:
        """Time-weighted mean of a column of ``VM_COLUMNS``; None if unknown.

        >>> sample_span(0, 10, (4, None)).mean("size_cpu"), sample_span(0, 10, (4, None)).mean("size_mem")
        (4.0, None)
        """
        place = COLUMN_INDEX[column]
        return self.sums[place] / self.known_times[place] if self.known_times[place] else None


def sample_span(since: Millis, until: Millis, amounts: Row) -> Span:
    """The span of one sample that is valid from ``since`` to ``until`` (>= ``since``).

    >>> sample_span(0, 10, (4, None))
    Span(since=0, until=10, observed=10, known_times=(10, 0), sums=(40, 0), peaks=(4, 0))
    """
    lasted = until - since
    # Bounded, so that an hour at MOST fits into SQLite's integers.
    bounded = [None if amount is None else min(MOST, amount) for amount in amounts]
    return Span(
        since,
        until,
        lasted,
        # Lists are faster here, and this runs for every sample.
        tuple([_NONE if amount is None else lasted for amount in bounded]),
        tuple([_NONE if amount is None else amount * lasted for amount in bounded]),
        tuple([_NONE if amount is None else amount for amount in bounded]),
    )


def sum_while(span: Span, place: int, other: int) -> int:
    """Estimate the integral of a column over the time in which another one was known too.

    >>> sum_while(joined([sample_span(0, 10, (4, 1)), sample_span(10, 40, (4, None))]), 0, 1)
    40
    """
    known_time = span.known_times[place]
    # How far their known times overlap is unknown; the shorter one is the best estimate.
    return span.sums[place] * min(known_time, span.known_times[other]) // known_time if known_time else 0


def joined(spans: Sequence[Span]) -> Span:
    """Join one or more ``spans``, in any order, into one; gaps are unknown time.

    >>> joined([sample_span(0, 10, (4,)), sample_span(20, 30, (8,))])
    Span(since=0, until=30, observed=20, known_times=(20,), sums=(120,), peaks=(8,))
    """
    if len(spans) == 1:
        return spans[0]
    return Span(
        min(span.since for span in spans),
        max(span.until for span in spans),
        sum(span.observed for span in spans),
        # Sums and maxima, so the order does not matter.
        tuple(map(sum, zip(*(span.known_times for span in spans), strict=True))),
        tuple(map(sum, zip(*(span.sums for span in spans), strict=True))),
        tuple(map(max, zip(*(span.peaks for span in spans), strict=True))),
    )


def clipped(span: Span, since: Millis, until: Millis) -> Span | None:
    """The part of ``span`` from ``since`` to ``until``; None if it is empty.

    Amounts count as constant within a span. The parts of a span add up to it exactly.

    >>> clipped(sample_span(0, 10, (4,)), 5, 20)
    Span(since=5, until=10, observed=5, known_times=(5,), sums=(20,), peaks=(4,))
    """
    if since <= span.since and span.until <= until:
        return span
    begin, end, length = max(since, span.since), min(until, span.until), span.until - span.since
    if begin >= end:
        return None
    before, upto = begin - span.since, end - span.since

    def part(total: int) -> int:
        # Differences of rounded cumulative sums add up exactly.
        return total * upto // length - total * before // length

    # The time of the peak is unknown, so every part gets it.
    return Span(
        begin, end, part(span.observed), tuple(map(part, span.known_times)), tuple(map(part, span.sums)), span.peaks
    )


def stepped(spans: Iterable[Span], since: Millis, step: Millis) -> list[Span]:
    """Join spans into steps of ``step`` (> 0) from ``since``; a span belongs to the step in which it begins.

    >>> [(each.since, each.until) for each in stepped([sample_span(at, at + 5, (1,)) for at in (0, 5, 10)], 0, 10)]
    [(0, 10), (10, 15)]
    """
    steps: dict[int, list[Span]] = {}
    for span in spans:
        steps.setdefault((span.since - since) // step, []).append(span)
    return [joined(steps[number]) for number in sorted(steps)]


def weighted_share(levels: Iterable[tuple[Amount, Millis]], share: float) -> Amount:
    """The lowest amount that is enough for ``share`` (0..1) of the time; ``levels`` are amounts with their durations.

    The result is 0 if there are no durations.

    >>> weighted_share([(1, 90), (8, 10)], 0.9), weighted_share([(1, 90), (8, 10)], 0.95)
    (1, 8)
    >>> weighted_share([], 0.9)
    0
    """
    ranked = sorted(levels)
    # With a share above 1 the loop would run past the maximum.
    remaining = min(1.0, share) * sum(lasted for _, lasted in ranked)
    for amount, lasted in ranked:
        remaining -= lasted
        if remaining <= 0:
            return amount
    return 0
