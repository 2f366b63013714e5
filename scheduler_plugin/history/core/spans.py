"""A stretch of time in a history: how long each amount was known, its integral and its greatest value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from scheduler_plugin.history.core.samples import PLACE, Amount, Millis, Row

_NONE: Final = 0
MOST: Final[Amount] = 2**40
"""A PiB in KiB; in milli-vCPUs a billion vCPUs."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """From ``since`` until ``until``; the rest has one entry for each column.

    ``known``: for how long (ms) the amount was known; ``sums``: amount times milliseconds; ``peaks``: the greatest,
    0 if nothing was known. ``seen`` is for how long (ms) the object was seen at all.
    """

    since: Millis
    until: Millis
    seen: Millis
    known: tuple[Millis, ...]
    sums: tuple[int, ...]
    peaks: tuple[Amount, ...]

    def mean(self, column: str) -> float | None:
        """The time-weighted mean of a column of ``VM_COLUMNS``; None if it was not known.

        >>> held(0, 10, (4, None)).mean("size_cpu"), held(0, 10, (4, None)).mean("size_mem")
        (4.0, None)
        """
        place = PLACE[column]
        return self.sums[place] / self.known[place] if self.known[place] else None

    def peak(self, column: str) -> Amount | None:
        """The greatest amount of a column of ``VM_COLUMNS``; None if it was not known.

        >>> held(0, 10, (4, None)).peak("size_cpu"), held(0, 10, (4, None)).peak("size_mem")
        (4, None)
        """
        place = PLACE[column]
        return self.peaks[place] if self.known[place] else None


def held(since: Millis, until: Millis, amounts: Row) -> Span:
    """One sample that holds from ``since`` until ``until`` (>= ``since``).

    >>> held(0, 10, (4, None))
    Span(since=0, until=10, seen=10, known=(10, 0), sums=(40, 0), peaks=(4, 0))
    """
    lasted = until - since
    # Whatever amount an object claims, an hour of MOST fits into an integer of SQLite.
    bounded = [None if amount is None else min(MOST, amount) for amount in amounts]
    return Span(
        since,
        until,
        lasted,
        # Lists are faster than generators here, and this runs for every sample.
        tuple([_NONE if amount is None else lasted for amount in bounded]),
        tuple([_NONE if amount is None else amount * lasted for amount in bounded]),
        tuple([_NONE if amount is None else amount for amount in bounded]),
    )


def sum_while(span: Span, place: int, other: int) -> int:
    """The integral of a column over the time in which another one was known too; both are taken as constant.

    >>> sum_while(joined([held(0, 10, (4, 1)), held(10, 40, (4, None))]), 0, 1)
    40
    """
    known_time = span.known[place]
    # A span does not say how its two known times overlap; the shorter one is the best estimate.
    return span.sums[place] * min(known_time, span.known[other]) // known_time if known_time else 0


def joined(spans: Sequence[Span]) -> Span:
    """One span for all of ``spans`` (one or more, in any order); gaps between them stay unknown time.

    >>> joined([held(0, 10, (4,)), held(20, 30, (8,))])
    Span(since=0, until=30, seen=20, known=(20,), sums=(120,), peaks=(8,))
    """
    if len(spans) == 1:
        return spans[0]
    return Span(
        min(span.since for span in spans),
        max(span.until for span in spans),
        sum(span.seen for span in spans),
        # Only sums and maxima: joining in any order gives the same span.
        tuple(map(sum, zip(*(span.known for span in spans), strict=True))),
        tuple(map(sum, zip(*(span.sums for span in spans), strict=True))),
        tuple(map(max, zip(*(span.peaks for span in spans), strict=True))),
    )


def clipped(span: Span, since: Millis, until: Millis) -> Span | None:
    """The part of ``span`` from ``since`` until ``until``; None if there is none.

    Amounts are taken as constant within a span. The parts of a span add up to it exactly.

    >>> clipped(held(0, 10, (4,)), 5, 20)
    Span(since=5, until=10, seen=5, known=(5,), sums=(20,), peaks=(4,))
    """
    if since <= span.since and span.until <= until:
        return span
    begin, end, length = max(since, span.since), min(until, span.until), span.until - span.since
    if begin >= end:
        return None
    before, upto = begin - span.since, end - span.since

    def part(whole: int) -> int:
        # A difference of two rounded cumulative sums: rounding each part by itself would lose some of the span.
        return whole * upto // length - whole * before // length

    # The time of the peak is not known, so every part has it.
    return Span(begin, end, part(span.seen), tuple(map(part, span.known)), tuple(map(part, span.sums)), span.peaks)


def stepped(spans: Iterable[Span], since: Millis, step: Millis) -> list[Span]:
    """The spans joined into steps of ``step`` (> 0) that are counted from ``since``; each goes uncut into the step in
    which it begins.

    >>> [(each.since, each.until) for each in stepped([held(at, at + 5, (1,)) for at in (0, 5, 10)], 0, 10)]
    [(0, 10), (10, 15)]
    """
    steps: dict[int, list[Span]] = {}
    for span in spans:
        steps.setdefault((span.since - since) // step, []).append(span)
    return [joined(steps[number]) for number in sorted(steps)]


def weighted_share(levels: Iterable[tuple[Amount, Millis]], share: float) -> Amount:
    """The least of the amounts that covers ``share`` (0..1) of the time; ``levels`` are amounts with how long each
    held. 0 if there is no time.

    >>> weighted_share([(1, 90), (8, 10)], 0.9), weighted_share([(1, 90), (8, 10)], 0.95)
    (1, 8)
    >>> weighted_share([], 0.9)
    0
    """
    ranked = sorted(levels)
    # Above 1 the loop would run past the greatest amount.
    remaining = min(1.0, share) * sum(lasted for _, lasted in ranked)
    for amount, lasted in ranked:
        remaining -= lasted
        if remaining <= 0:
            return amount
    return 0
