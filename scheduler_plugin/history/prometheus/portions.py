"""The size of queries to Prometheus, so that a question about many VMs over a long time stays within its limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from math import ceil, gcd
from typing import Final

from protocol.messages import ObjectName
from scheduler_plugin.history.core.samples import Millis
from scheduler_plugin.history.ports import Period

MOST_POINTS: Final = 40_000_000
"""VMs times moments that are read for one column: a thousand VMs for a week, scraped every 15 s."""

AT_ONCE: Final = 3_000_000
"""The same for one query, which loads some six samples for each; Prometheus allows 50 million (query.max-samples)."""

MOST_NAMES: Final = 500
"""VMs that one query names."""

_CLOCK: Final = 2 * 3 * 5
"""The factors of minutes, hours and days."""


def step_of(period: Period, scrapes: Millis, crowd: float) -> Millis:
    """The step at which amounts of at most ``crowd`` VMs at a time are read.

    >>> week = Period(0, 7 * 24 * 3_600_000)
    >>> step_of(week, 15_000, 900), step_of(week, 15_000, 2000), step_of(week, 15_000, 10_000)
    (15000, 105000, 165000)
    """
    least = crowd * (period.until - period.since) / scrapes / MOST_POINTS
    # No factor in common with minutes and hours, so that a load with the period of a clock is sampled at all its
    # phases.
    return scrapes * next(stride for stride in count(max(1, ceil(least))) if gcd(stride, _CLOCK) == 1)


def stretches(period: Period, step: Millis, crowd: float) -> Iterator[Period]:
    """The period in parts for one query each; every multiple of ``step`` in it is in one of them.

    >>> [each.until - each.since for each in stretches(Period(5, 25), 10, 1)]
    [20]
    >>> list(stretches(Period(5, 25), 10, AT_ONCE))
    [Period(since=5, until=10), Period(since=10, until=20), Period(since=20, until=25)]
    """
    length = max(1, int(AT_ONCE // max(1.0, crowd))) * step
    begin = period.since
    while begin < period.until:
        # Cut at multiples of the step, or a subquery would evaluate the same moment in two parts.
        end = min(period.until, (begin // step) * step + length)
        yield Period(begin, end)
        begin = end


def batches(points: Mapping[ObjectName, float]) -> Iterator[tuple[ObjectName, ...]]:
    """VMs for one query each, by how many moments of each are read.

    >>> a, b, c = (ObjectName("d", each) for each in "abc")
    >>> [len(each) for each in batches({a: 1, b: AT_ONCE, c: 2})]
    [1, 1, 1]
    >>> [len(each) for each in batches({a: 1, b: 2})]
    [2]
    """
    batch: list[ObjectName] = []
    weight = 0.0
    # Sorted, so that the same question makes the same queries.
    for vm in sorted(points):
        # A VM that is too large on its own still makes a batch: it cannot be split.
        if batch and (weight + points[vm] > AT_ONCE or len(batch) == MOST_NAMES):
            yield tuple(batch)
            batch, weight = [], 0.0
        batch.append(vm)
        weight += points[vm]
    if batch:
        yield tuple(batch)
