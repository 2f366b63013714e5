"""Figures of a measurement, from permits as they were stored and as pages showed them. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from protocol.units import Seconds
from scheduler_plugin.dashboard.core.rows import Pair

Seen = Mapping[str, Sequence[tuple[float, Pair]]]
"""For each VM its permits with the moment (seconds) at which each was seen first, in order."""


@dataclass(frozen=True, slots=True)
class PageLatency:
    """Latency in seconds; ``lost`` is the number that never came."""

    count: int
    median: Seconds
    p95: Seconds
    longest: Seconds
    lost: int = 0

    @classmethod
    def of(cls, spans: Iterable[float], lost: int = 0) -> PageLatency:
        """Latency of all measured spans.

        >>> PageLatency.of([0.3, 0.1, 0.2])
        PageLatency(count=3, median=0.2, p95=0.3, longest=0.3, lost=0)
        >>> PageLatency.of([])
        PageLatency(count=0, median=0.0, p95=0.0, longest=0.0, lost=0)
        """
        ranked = sorted(spans)
        if not ranked:
            return cls(0, Seconds(0.0), Seconds(0.0), Seconds(0.0), lost)
        return cls(len(ranked), _at(ranked, 0.5), _at(ranked, 0.95), _at(ranked, 1.0), lost)


def _at(ranked: Sequence[float], share: float) -> Seconds:
    return Seconds(ranked[max(0, ceil(share * len(ranked)) - 1)])


def followed(stored: Seen, shown: Seen) -> tuple[list[float], int]:
    """Delay from each stored permit until a page showed it, or a later one; and the number it never showed.

    A page may be told a little before we are: that counts as no time at all.

    >>> followed({"db": [(1.0, (1, 1)), (2.0, (2, 2))]}, {"db": [(2.5, (2, 2))]})
    ([1.5, 0.5], 0)
    >>> followed({"db": [(1.0, (1, 1))]}, {})
    ([], 1)
    """
    spans: list[float] = []
    lost = 0
    for vm, permits in stored.items():
        of_page = shown.get(vm, ())
        # What was shown long before cannot be an answer; skipping it keeps this linear.
        begin = bisect_left([at for at, _ in of_page], permits[0][0] - _EARLY) if permits else 0
        for at, permit in permits:
            # A page shows the newest permit only: a later one proves that this one is superseded.
            good = {later for when, later in permits if when >= at} | {permit}
            when = next((when for when, visible in of_page[begin:] if visible in good and when >= at - _EARLY), None)
            if when is None:
                lost += 1
            else:
                spans.append(max(0.0, when - at))
    return spans, lost


# Seconds by which a page may be ahead of our own watch.
_EARLY = 0.5
