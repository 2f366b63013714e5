"""How many replicas there should be: HPA's calculation without an HPA controller.

Rules that hold here:

- ``desired = ceil(use / target x replicas)``, of several metrics the most, and none while the ratio is within 10 %.
- A replica that is not ready counts as using nothing when growing. One without a measurement counts as using nothing
  when growing and as using its target when shrinking, so that neither grows nor shrinks too far on it.
- Fewer replicas are desired only once nothing more was desired in the whole stabilization window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from protocol.units import Seconds
from scheduler_plugin.groups.core.workload import HorizontalRecommendation, ReplicaBounds, Resource

TOLERANCE: Final = 0.1
DOWN_WINDOW: Final = Seconds(300.0)


@dataclass(frozen=True, slots=True)
class ReplicaUse:
    """Usage of one replica (None: not measured) and its request, in the same unit."""

    used: int | None
    request: int = 0
    ready: bool = True


@dataclass(frozen=True, slots=True)
class MetricTarget:
    """Target usage of a resource per replica: a percentage of its request, or an average value."""

    resource: Resource
    utilization: int | None = None
    average_value: int | None = None


@dataclass(frozen=True, slots=True)
class HorizontalRules:
    """The metrics, the bounds, the tolerance as a fraction and the stabilization window for scaling in."""

    replicas: ReplicaBounds
    metrics: tuple[MetricTarget, ...] = ()
    tolerance: float = TOLERANCE
    window: Seconds = DOWN_WINDOW


@dataclass(frozen=True, slots=True)
class Desires:
    """Recent desired counts, with times in seconds since 1970: ever fewer replicas, so one entry for each count."""

    entries: tuple[tuple[float, int], ...] = field(default=())

    def stabilized(self, desired: int, current: int, now: float, window: Seconds) -> tuple[int, Desires]:
        """The most that was desired in the window, but no more than ``current`` for the past's sake; and the memory."""
        kept = tuple(entry for entry in self.entries if now - window < entry[0] <= now and entry[1] > desired)
        past = max((count for _, count in kept), default=desired)
        return max(desired, min(past, current)), Desires((*kept, (now, desired)))


def is_tolerated(ratio: float, tolerance: float = TOLERANCE) -> bool:
    """Return True if use is so near to its target that nothing changes; the ends are included.

    >>> is_tolerated(77 / 70), is_tolerated(78 / 70)
    (True, False)
    """
    return 1.0 - tolerance <= ratio <= 1.0 + tolerance


def utilization_replicas(
    current: int, replicas: Sequence[ReplicaUse], target: int, tolerance: float = TOLERANCE
) -> tuple[int, int] | None:
    """Desired replicas and the utilisation in per cent, for a target in per cent of requests (> 0).

    None if no ready replica with a request was measured. Like HPA's, the utilisation is cut to a whole number.
    """

    def utilization(counted: Sequence[tuple[int, int]]) -> int | None:
        requested = sum(request for _, request in counted)
        return sum(used for used, _ in counted) * 100 // requested if requested else None

    found = utilization([(each.used, each.request) for each in replicas if each.ready and each.used is not None])
    if found is None:
        return None

    def ratio(counted: Sequence[tuple[int, int]]) -> float:
        return (utilization(counted) or 0) / target

    def filled(replica: ReplicaUse) -> int:
        return replica.request * max(100, target) // 100

    return _desired(current, replicas, ratio, filled, tolerance), found


def average_value_replicas(
    current: int, replicas: Sequence[ReplicaUse], target: int, tolerance: float = TOLERANCE
) -> int | None:
    """Desired replicas so that their mean use is ``target`` (> 0); None if no ready replica was measured."""
    if not any(each.ready and each.used is not None for each in replicas):
        return None

    def ratio(counted: Sequence[tuple[int, int]]) -> float:
        return sum(used for used, _ in counted) / len(counted) / target

    return _desired(current, replicas, ratio, lambda _: target, tolerance)


def _desired(
    current: int,
    replicas: Sequence[ReplicaUse],
    ratio: Callable[[Sequence[tuple[int, int]]], float],
    filled: Callable[[ReplicaUse], int],
    tolerance: float,
) -> int:
    counted = [(each.used, each.request) for each in replicas if each.ready and each.used is not None]
    missing = [each for each in replicas if each.used is None]
    unready = [each for each in replicas if each.used is not None and not each.ready]
    first = ratio(counted)
    if not missing and not (unready and first > 1.0):
        return current if is_tolerated(first, tolerance) else ceil(first * len(counted))
    if first < 1.0:
        counted += [(filled(each), each.request) for each in missing]
    elif first > 1.0:
        counted += [(0, each.request) for each in (*missing, *unready)]
    return _cautious(current, first, ratio(counted), len(counted), tolerance)


def _cautious(current: int, first: float, second: float, counted: int, tolerance: float) -> int:
    """The filled ratio, unless it contradicts the measured one."""
    if is_tolerated(second, tolerance) or (first < 1.0) != (second < 1.0) or (first > 1.0) != (second > 1.0):
        return current
    desired = ceil(second * counted)
    contradicts = desired > current if second < 1.0 else desired < current
    return current if contradicts else desired


def recommended(
    rules: HorizontalRules,
    current: int,
    uses: Callable[[Resource], Sequence[ReplicaUse]],
    memory: Desires,
    now: float,
) -> tuple[HorizontalRecommendation | None, Desires]:
    """The desired replicas within the bounds, and the memory; None if no metric could be measured.

    While a metric is missing, the others may add replicas but take none away.
    """
    found = [(metric, _of_metric(current, uses(metric.resource), metric, rules.tolerance)) for metric in rules.metrics]
    known = [(metric, one) for metric, one in found if one is not None]
    if not known:
        return None, memory
    most = max(count for _, (count, _) in known)
    most = most if len(known) == len(found) else max(current, most)
    desired, remembered = memory.stabilized(rules.replicas.clamp(most), current, now, rules.window)
    ratios = tuple((metric.resource, ratio) for metric, (_, ratio) in known if ratio is not None)
    bounds = rules.replicas
    return (
        HorizontalRecommendation(bounds.clamp(desired), bounds.min, bounds.max, most > bounds.max, ratios),
        remembered,
    )


def _of_metric(
    current: int, replicas: Sequence[ReplicaUse], metric: MetricTarget, tolerance: float
) -> tuple[int, float | None] | None:
    """Desired replicas, and for a utilization its ratio to the target."""
    if metric.average_value:
        count = average_value_replicas(current, replicas, metric.average_value, tolerance)
        return None if count is None else (count, None)
    if not metric.utilization:
        return None
    found = utilization_replicas(current, replicas, metric.utilization, tolerance)
    return None if found is None else (found[0], found[1] / metric.utilization)
