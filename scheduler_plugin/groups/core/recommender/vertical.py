"""Container sizes from the use of replicas: VPA's recommendation without a VPA.

- ``target`` is the 90th percentile, ``lower`` the 50th and ``upper`` the 95th, each plus a margin of 15 %. The bounds
  are wider while the history is short.
- Histogram buckets grow by 5 %. A percentile is the upper end of its bucket, so never too small.
- A checkpoint has about 5 kB per container, however long the history. Undecodable parts are dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil, exp2, inf, isfinite
from typing import Final

from protocol.kubernetes.objects import Json, JsonObject, child, items, text
from protocol.kubernetes.timestamps import micro_timestamp, parse_timestamp
from protocol.smoothing.histogram import confidence_factor
from protocol.units import Bytes, Seconds
from scheduler_plugin.groups.core.workload import (
    RESOURCES,
    ContainerRecommendation,
    Resource,
    ResourceList,
    VerticalRecommendation,
    after_kill,
)

GROWTH: Final = 1.05
"""Ratio of a bucket's width to the previous one's."""

BUCKETS: Final = 176
"""Number of buckets: the last one begins at about 100,000 times the end of the first."""

CHECKPOINT_WEIGHT: Final = 10_000
"""Weight of the heaviest bucket in a checkpoint; buckets that round to 0 are dropped."""

DAY: Final = Seconds(86_400.0)

# VPA's defaults: percentiles of use, a margin on top, and minimum sizes in thousandths of a vCPU and bytes.
HALF_LIFE: Final = DAY
TARGET: Final = 0.9
LOWER: Final = 0.5
UPPER: Final = 0.95
MARGIN: Final = 0.15
LEAST: Final[dict[Resource, int]] = {"cpu": 25, "memory": 250_000_000}

_LARGEST_EXPONENT: Final = 100.0
_FORGOTTEN: Final = 1000.0
_STARTS: Final = tuple(accumulate((GROWTH**number for number in range(BUCKETS)), initial=0.0))
_EMPTY: Final = (0.0,) * BUCKETS


@dataclass(frozen=True, slots=True)
class UsageHistogram:
    """A decaying histogram. ``first`` is the width of the first bucket (> 0); weights are relative to ``since``.

    Times are Unix seconds.
    """

    first: float
    since: float = 0.0
    weights: tuple[float, ...] = _EMPTY

    def add(self, value: float, weight: float, at: float) -> UsageHistogram:
        """Add a sample (>= 0); a negative weight removes one."""
        current = self._rebased(at)
        # `bisect_right` finds the first bucket above the value.
        bucket = min(BUCKETS - 1, max(0, bisect_right(_STARTS, value / self.first) - 1))
        # Increase new weights instead of decreasing old ones, to change one bucket only.
        changed = max(0.0, current.weights[bucket] + weight * exp2((at - current.since) / HALF_LIFE))
        return replace(current, weights=(*current.weights[:bucket], changed, *current.weights[bucket + 1 :]))

    def percentile(self, fraction: float) -> float | None:
        """Upper end of the bucket in which ``fraction`` (0 to 1) of the total weight is reached; None if empty."""
        cumulative = tuple(accumulate(self.weights))
        if cumulative[-1] <= 0:
            return None
        threshold = fraction * cumulative[-1]
        bucket = next(
            bucket for bucket, weight in enumerate(self.weights) if weight and cumulative[bucket] >= threshold
        )
        return self.first * _STARTS[bucket + 1]

    def checkpoint(self) -> dict[str, int]:
        """Integer weights by bucket, relative to the heaviest."""
        heaviest = max(self.weights)
        if heaviest <= 0:
            return {}
        parts = ((number, round(weight / heaviest * CHECKPOINT_WEIGHT)) for number, weight in enumerate(self.weights))
        return {str(number): part for number, part in parts if part}

    def restored(self, weights: dict[str, int], total: float, at: float) -> UsageHistogram:
        """Restore a checkpoint whose total weight was ``total`` at ``at``. Unknown buckets are ignored."""
        # Checkpoint weights are relative; the total restores their scale.
        whole = sum(weights.values())
        parts = [max(0, weights.get(str(number), 0)) for number in range(BUCKETS)]
        scale = total / whole if whole > 0 else 0.0
        return replace(self, since=at, weights=tuple(part * scale for part in parts))

    def total(self, at: float) -> float:
        """Total weight at ``at``."""
        return sum(self.weights) * exp2(max(-_FORGOTTEN, min(_FORGOTTEN, (self.since - at) / HALF_LIFE)))

    def _rebased(self, at: float) -> UsageHistogram:
        """Rebased to ``at`` if it is empty or new weights would become too large."""
        if not any(self.weights):
            return replace(self, since=at)
        exponent = (at - self.since) / HALF_LIFE
        if exponent <= _LARGEST_EXPONENT:
            return self
        # Scale down before new weights overflow.
        factor = exp2(-min(exponent, _FORGOTTEN))
        return replace(self, since=at, weights=tuple(weight * factor for weight in self.weights))


SAMPLES_PER_DAY: Final = 1440
"""One sample per minute; a day with fewer samples counts as less than a day of history."""

_FIRST_BUCKET: Final[dict[Resource, float]] = {"cpu": 10.0, "memory": 10e6}


@dataclass(frozen=True, slots=True)
class ContainerHistory:
    """Usage history of one container. ``peak`` is the maximum memory of the day that ends at ``peak_until``.

    Times are Unix seconds. ``samples`` is the number of CPU samples.
    """

    cpu: UsageHistogram
    memory: UsageHistogram
    since: float
    until: float
    samples: int = 0
    peak: float = 0.0
    peak_until: float = 0.0


History = Mapping[str, ContainerHistory]
"""History by container name."""


def no_history(at: float) -> ContainerHistory:
    """Empty history of a container first seen at ``at``."""
    # First buckets of 10 mCPU and 10 MB, as in VPA.
    cpu, memory = (UsageHistogram(_FIRST_BUCKET[resource]) for resource in RESOURCES)
    return ContainerHistory(cpu, memory, at, at)


def observed(history: History, container: str, replicas: Sequence[ResourceList], at: float) -> History:
    """Add the use of one container by all replicas at ``at``; earlier times than the last are ignored."""
    old = history.get(container) or no_history(at)
    # The clock was set back.
    if at < old.until:
        return history
    new = replace(old, until=at)
    cpu = [used.cpu.value for used in replicas if used.cpu is not None]
    if cpu:
        # Sum over all replicas, extrapolated to unmeasured ones, so that the recommendation follows the replica count
        # immediately.
        new = replace(new, cpu=new.cpu.add(sum(cpu) * len(replicas) / len(cpu), 1.0, at), samples=new.samples + 1)
    memory = [used.memory.value for used in replicas if used.memory is not None]
    if memory:
        # The maximum, because all replicas get the same size.
        new = _with_peak(new, max(memory), at)
    return {**history, container: new}


def ran_out_of_memory(history: History, container: str, used: Bytes, at: float) -> History:
    """Record an OOM kill of a container at the use ``used`` as a higher use (``after_kill``)."""
    # Without observations there is no histogram.
    old = history.get(container)
    if old is None:
        return history
    return {**history, container: _with_peak(old, float(after_kill(used).value), max(at, old.until))}


def _with_peak(old: ContainerHistory, value: float, at: float) -> ContainerHistory:
    # One sample per day, its peak: memory needed once a day must always be available.
    if at >= old.peak_until:
        until = at + DAY
        return replace(old, memory=old.memory.add(value, 1.0, until), peak=value, peak_until=until)
    if value <= old.peak:
        return old
    # Replace the day's sample.
    without = old.memory.add(old.peak, -1.0, old.peak_until)
    return replace(old, memory=without.add(value, 1.0, old.peak_until), peak=value)


def recommended(history: History, replicas: int) -> VerticalRecommendation | None:
    """Recommended container sizes for that many replicas; None without observations."""
    if replicas <= 0:
        return None
    containers = tuple(_of(name, history[name], replicas) for name in sorted(history))
    sized = tuple(container for container in containers if container.target)
    return VerticalRecommendation(sized, replicas) if sized else None


def _of(name: str, history: ContainerHistory, replicas: int) -> ContainerRecommendation:
    days = min((history.until - history.since) / DAY, history.samples / SAMPLES_PER_DAY)
    target = _sized(history, replicas, TARGET, 1.0)
    lower = _sized(history, replicas, LOWER, confidence_factor(days, 0.001, -2))
    upper = _sized(history, replicas, UPPER, confidence_factor(days, 1, 1))
    return ContainerRecommendation(name, target, lower, upper, uncapped=target)


def _sized(history: ContainerHistory, replicas: int, fraction: float, factor: float) -> ResourceList:
    def size(resource: Resource) -> int | None:
        # CPU is the sum of all replicas, memory is per replica.
        histogram, share = (history.cpu, replicas) if resource == "cpu" else (history.memory, 1)
        used = histogram.percentile(fraction)
        if used is None:
            return None
        return max(ceil(used / share * (1 + MARGIN) * factor), LEAST[resource])

    return ResourceList.of(size)


MOST_CONTAINERS: Final = 16
"""Maximum number of containers to remember."""

_MOST: Final = 1e18  # more than any amount of memory, and than any weight


def encode_history(history: History) -> list[Json]:
    """Histograms of each container, by name."""
    return [
        {
            "containerName": name,
            "firstSampleTime": micro_timestamp(entry.since),
            "lastSampleTime": micro_timestamp(entry.until),
            "samples": entry.samples,
            "cpu": _weights(entry.cpu, entry.until),
            "memory": _weights(entry.memory, entry.until),
            "memoryPeak": {"bytes": round(entry.peak), "until": micro_timestamp(entry.peak_until)},
        }
        for name, entry in sorted(history.items())[:MOST_CONTAINERS]
    ]


def _weights(histogram: UsageHistogram, at: float) -> Json:
    # Nine digits suffice and keep the text short.
    return {"totalWeight": float(f"{histogram.total(at):.9g}"), "bucketWeights": histogram.checkpoint()}


def decode_history(obj: JsonObject, field: str, now: float = inf) -> dict[str, ContainerHistory]:
    """Decode ``encode_history``'s result in ``field`` of ``obj``.

    Future times, from a clock that was ahead, count as ``now``; otherwise nothing would be learned until then.
    """
    decoded = {text(entry, "containerName"): _decoded(entry, now) for entry in items(obj, field)}
    return {name: history for name, history in decoded.items() if name and history is not None}


def _decoded(obj: JsonObject, now: float) -> ContainerHistory | None:
    since, until = (parse_timestamp(obj.get(name)) for name in ("firstSampleTime", "lastSampleTime"))
    if since is None or until is None or until < since:
        return None
    since, until = min(since, now), min(until, now)
    peak_until = parse_timestamp(child(obj, "memoryPeak").get("until")) or 0.0
    empty = no_history(until)
    return ContainerHistory(
        _restored(empty.cpu, child(obj, "cpu"), until),
        _restored(empty.memory, child(obj, "memory"), until),
        since,
        until,
        int(_number(obj.get("samples"))),
        _number(child(obj, "memoryPeak").get("bytes")),
        min(peak_until, until + DAY),
    )


def _restored(empty: UsageHistogram, obj: JsonObject, at: float) -> UsageHistogram:
    weights = {name: int(_number(weight)) for name, weight in child(obj, "bucketWeights").items()}
    return empty.restored(weights, _number(obj.get("totalWeight")), at)


def _number(value: object) -> float:
    """A finite number >= 0; 0 for anything else."""
    # A bool is an int.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0.0
    # The JSON may have NaN or huge numbers.
    return float(value) if 0 <= value <= _MOST and isfinite(value) else 0.0
