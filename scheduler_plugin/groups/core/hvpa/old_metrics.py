"""Metrics that describe an earlier number of ready pods than the present one (S1.12).

The age of an HPA's metrics is unknown: 15 s with a metrics-server, minutes with other adapters. When pods that share a
load become more or fewer, the use of each changes by the inverse ratio. Until it has, metrics may describe the earlier
number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from math import ceil
from typing import Final

from scheduler_plugin.groups.core.hvpa.spec import MeasuredCount, PastPods, PodsMemory
from scheduler_plugin.groups.core.workload import RESOURCES, HorizontalRecommendation, Resource

OLDEST_METRICS: Final = timedelta(minutes=11)
"""Metrics are at most ten minutes old; the rest is for the intervals of HPA and group."""

SHORTEST: Final = timedelta(seconds=90)
LAGS: Final = 3
"""Metrics are at most this many times as old as when they last followed a change of the number, or ``SHORTEST``. While
the load grows, each pod's use may not fall although there are more pods, and the group would stay too small.
"""

MAX_COUNTS: Final = 16


def with_measured(
    memory: PodsMemory, before: PodsMemory, horizontal: HorizontalRecommendation | None, now: datetime
) -> PodsMemory:
    """The ``memory`` with the numbers of ready pods that the metrics may describe, the present one last.

    ``before`` is the memory before the present pods were added.
    """
    present = memory.past[-1]
    last = before.past[-1].ready if before.past else present.ready
    uses = {past.resource: past.use for past in before.counts}
    uses |= {resource: use for resource in RESOURCES if (use := _use_each(horizontal, present, resource))}
    ended = [replace(past, until=now) if past.ready == last else past for past in before.counts]
    others = [past for past in ended if past.ready != present.ready and timedelta(0) <= now - past.until]
    followed = [now - past.until for past in others if not _may_be_measured(past, uses, present.ready)]
    lag = before.lag
    if followed:
        # By chance the load may have fallen, too, so the lag is at least half of what it seemed before.
        lag = max(1, round(max(followed).total_seconds()), (lag or 0) // 2)
    oldest = OLDEST_METRICS if lag is None else min(OLDEST_METRICS, max(SHORTEST, LAGS * timedelta(seconds=lag)))
    earlier = [past for past in others if now - past.until < oldest and _may_be_measured(past, uses, present.ready)]
    # Times of present counts do not change, so that the status does not. Without metrics the last use remains.
    since = {past.resource: past.until for past in before.counts if past.ready == present.ready}
    current = [
        MeasuredCount(since.get(resource, now), present.ready, resource, use)
        for resource, use in uses.items()
        if present.ready
    ]
    return replace(memory, counts=(*earlier, *current)[-MAX_COUNTS:], lag=lag)


def _may_be_measured(past: MeasuredCount, uses: Mapping[Resource, int], ready: int) -> bool:
    """Return True unless the use per pod has changed more than half as much as the number of pods, as a ratio."""
    # Half of a ratio is its square root.
    changed, expected = uses[past.resource] ** 2 * ready, past.use**2 * past.ready
    return changed >= expected if past.ready < ready else changed <= expected


def _use_each(horizontal: HorizontalRecommendation | None, pods: PastPods, resource: Resource) -> int:
    """Measured use per pod over its target; 0 if there is none."""
    if horizontal is None:
        return 0
    uses = [use.need for use in horizontal.uses if use.resource == resource]
    ratio = dict(horizontal.ratios).get(resource, 0.0)
    return ceil(max(uses)) if uses else ceil(ratio * _size(pods, resource))


def _size(pods: PastPods, resource: Resource) -> int:
    amounts = (container.sizes[resource] for container in pods.sizes)
    return sum(amount.value for amount in amounts if amount is not None)
