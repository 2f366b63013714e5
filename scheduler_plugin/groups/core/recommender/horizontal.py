"""Replica count by HPA's algorithm, without an HPA controller.

``desired = ceil(use / target x replicas)``, the maximum of all metrics, and no change while the ratio is within 10 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from protocol.units import Seconds
from scheduler_plugin.groups.core.workload import HorizontalRecommendation, ReplicaBounds

TOLERANCE: Final = 0.1
DOWN_WINDOW: Final = Seconds(300.0)


@dataclass(frozen=True, slots=True)
class ReplicaUse:
    """Use of one replica (None: not measured) and its request, in the same unit."""

    used: int | None
    request: int = 0
    ready: bool = True


@dataclass(frozen=True, slots=True)
class MetricTarget:
    """Target use per replica: a percentage of its request, or an average value."""

    utilization: int | None = None
    average_value: int | None = None


@dataclass(frozen=True, slots=True)
class HorizontalRules:
    """Metrics of an HPA, and bounds of the replica count."""

    replicas: ReplicaBounds
    metrics: tuple[MetricTarget, ...] = ()


@dataclass(frozen=True, slots=True)
class DesiredCounts:
    """Recent desired counts with Unix times, decreasing, one entry per count."""

    entries: tuple[tuple[float, int], ...] = field(default=())

    def stabilized(self, desired: int, current: int, now: float) -> tuple[int, DesiredCounts]:
        """Return the maximum of the last ``DOWN_WINDOW``, with past counts capped at ``current``, and the memory."""
        # Drop older counts that are not larger: they cannot be the maximum any more.
        remaining = tuple(entry for entry in self.entries if now - DOWN_WINDOW < entry[0] <= now and entry[1] > desired)
        past = max((count for _, count in remaining), default=desired)
        # Past counts keep replicas, but add none.
        return max(desired, min(past, current)), DesiredCounts((*remaining, (now, desired)))


def is_tolerated(ratio: float, tolerance: float = TOLERANCE) -> bool:
    """Return True if the ratio is within the tolerance, inclusive.

    >>> is_tolerated(77 / 70), is_tolerated(78 / 70)
    (True, False)
    """
    return 1.0 - tolerance <= ratio <= 1.0 + tolerance


def utilization_replicas(
    current: int, replicas: Sequence[ReplicaUse], target: int, tolerance: float = TOLERANCE
) -> tuple[int, int] | None:
    """Desired replicas and utilization in percent, for a target in percent of requests (> 0).

    None if no ready replica with a request was measured.
    """

    def utilization(counted: Sequence[tuple[int, int]]) -> int | None:
        requested = sum(request for _, request in counted)
        # Whole percent, as in HPA.
        return sum(used for used, _ in counted) * 100 // requested if requested else None

    measured = utilization(_measured(replicas))
    if measured is None:
        return None

    def ratio(counted: Sequence[tuple[int, int]]) -> float:
        return (utilization(counted) or 0) / target

    def filled(replica: ReplicaUse) -> int:
        # When shrinking, an unmeasured replica counts at its request, or at the target if higher.
        return replica.request * max(100, target) // 100

    return _desired(current, replicas, ratio, filled, tolerance), measured


def average_value_replicas(current: int, replicas: Sequence[ReplicaUse], target: int) -> int | None:
    """Desired replicas for a mean use of ``target`` (> 0); None if no ready replica was measured."""
    if not _measured(replicas):
        return None

    def ratio(counted: Sequence[tuple[int, int]]) -> float:
        # A whole mean, as in HPA: otherwise 1040 / 3 / 80 x 3 is slightly more than 13.
        return sum(used for used, _ in counted) // len(counted) / target

    return _desired(current, replicas, ratio, lambda _: target, TOLERANCE)


def _measured(replicas: Sequence[ReplicaUse]) -> list[tuple[int, int]]:
    """Use and request of each ready and measured replica."""
    return [(replica.used, replica.request) for replica in replicas if replica.ready and replica.used is not None]


def _desired(
    current: int,
    replicas: Sequence[ReplicaUse],
    ratio: Callable[[Sequence[tuple[int, int]]], float],
    filled: Callable[[ReplicaUse], int],
    tolerance: float,
) -> int:
    counted = _measured(replicas)
    # As in HPA's replica calculator, missing values count against the direction of the change.
    missing = [replica for replica in replicas if replica.used is None]
    unready = [replica for replica in replicas if replica.used is not None and not replica.ready]
    measured_ratio = ratio(counted)
    # Nothing is missing.
    if not missing and not (unready and measured_ratio > 1.0):
        return current if is_tolerated(measured_ratio, tolerance) else ceil(measured_ratio * len(counted))
    if measured_ratio < 1.0:
        counted += [(filled(replica), replica.request) for replica in missing]
    # When growing, unmeasured and unready replicas count as idle.
    elif measured_ratio > 1.0:
        counted += [(0, replica.request) for replica in (*missing, *unready)]
    return _cautious(current, measured_ratio, ratio(counted), len(counted), tolerance)


def _cautious(current: int, first: float, second: float, counted: int, tolerance: float) -> int:
    """The count by the filled ratio, unless that contradicts the measured one."""
    # Do not scale if both ratios disagree on the direction.
    if is_tolerated(second, tolerance) or (first < 1.0) != (second < 1.0) or (first > 1.0) != (second > 1.0):
        return current
    desired = ceil(second * counted)
    # `counted` may differ from `current`, which can reverse the direction.
    contradicts = desired > current if second < 1.0 else desired < current
    return current if contradicts else desired


def recommended(
    rules: HorizontalRules, current: int, replicas: Sequence[ReplicaUse], memory: DesiredCounts, now: float
) -> tuple[HorizontalRecommendation | None, DesiredCounts]:
    """Desired replicas within the bounds, and the memory; None if no metric was measured.

    While a metric is missing, others may add replicas but remove none.
    """
    counts = [_of_metric(current, replicas, metric) for metric in rules.metrics]
    measured = [count for count in counts if count is not None]
    if not measured:
        return None, memory
    highest = max(measured)
    # A missing metric may need all present replicas.
    highest = highest if len(measured) == len(counts) else max(current, highest)
    desired, remembered = memory.stabilized(rules.replicas.clamp(highest), current, now)
    bounds = rules.replicas
    return HorizontalRecommendation(bounds.clamp(desired), bounds.min, bounds.max, highest > bounds.max), remembered


def _of_metric(current: int, replicas: Sequence[ReplicaUse], metric: MetricTarget) -> int | None:
    if metric.average_value:
        return average_value_replicas(current, replicas, metric.average_value)
    if not metric.utilization:
        return None
    result = utilization_replicas(current, replicas, metric.utilization)
    return None if result is None else result[0]
