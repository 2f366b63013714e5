"""How large each container should be, from what its replicas used: VPA's recommendation without a VPA.

- ``target`` is the 90th percentile, ``lower`` the 50th and ``upper`` the 95th, each with a margin of 15 %. The bounds
  are wider while the history is short.
- Each bucket of a histogram is 5 % wider than the one before it. A percentile is the upper end of its bucket, so never
  too little.
- A checkpoint is small: about 5 kB for each container, however long its history is. What cannot be decoded reads as
  never observed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import ceil, exp2, inf, isfinite
from typing import Final

from protocol.kubernetes.objects import Json, JsonObject, child, items, text
from protocol.kubernetes.timestamps import micro_timestamp, parse_timestamp
from protocol.smoothing.histogram import confidence_factor
from protocol.units import Bytes, MilliCpu, Seconds
from scheduler_plugin.groups.core.workload import (
    RESOURCES,
    ContainerRecommendation,
    Resource,
    ResourceList,
    VerticalRecommendation,
    after_kill,
)

GROWTH: Final = 1.05
"""The ratio of the width of one bucket to that of the one before it."""

BUCKETS: Final = 176
"""The number of buckets: the last one begins at about 100,000 times the end of the first."""

CHECKPOINT_WEIGHT: Final = 10_000
"""The weight of the heaviest bucket in a checkpoint; a bucket that rounds to 0 beside it is forgotten."""

_LARGEST_EXPONENT: Final = 100.0
_FORGOTTEN: Final = 1000.0
_STARTS: Final = tuple(accumulate((GROWTH**number for number in range(BUCKETS)), initial=0.0))
_EMPTY: Final = (0.0,) * BUCKETS


@dataclass(frozen=True, slots=True)
class UsageHistogram:
    """Weights of buckets of which the first is ``first`` wide (> 0). ``since`` is when a weight of 1 counts as 1.

    Times are seconds since 1970.
    """

    first: float
    half_life: Seconds
    since: float = 0.0
    weights: tuple[float, ...] = _EMPTY

    def add(self, value: float, weight: float, at: float) -> UsageHistogram:
        """With one sample (>= 0) of that weight at that time; a negative weight takes a sample back."""
        current = self._brought_to(at)
        # `bisect_right` finds the first bucket that starts above the value, so the value is in the one before.
        bucket = min(BUCKETS - 1, max(0, bisect_right(_STARTS, value / self.first) - 1))
        # New weights grow instead of old ones shrinking, so adding touches one bucket only.
        changed = max(0.0, current.weights[bucket] + weight * exp2((at - current.since) / self.half_life))
        return replace(current, weights=(*current.weights[:bucket], changed, *current.weights[bucket + 1 :]))

    def percentile(self, fraction: float) -> float | None:
        """The upper end of the bucket in which this share (0 to 1) of the weight is reached; None if empty."""
        reached = tuple(accumulate(self.weights))
        if reached[-1] <= 0:
            return None
        wanted = fraction * reached[-1]
        bucket = next(bucket for bucket, weight in enumerate(self.weights) if weight and reached[bucket] >= wanted)
        return self.first * _STARTS[bucket + 1]

    def checkpoint(self) -> dict[str, int]:
        """The weights as whole numbers by bucket, relative to the heaviest."""
        heaviest = max(self.weights)
        if heaviest <= 0:
            return {}
        parts = ((number, round(weight / heaviest * CHECKPOINT_WEIGHT)) for number, weight in enumerate(self.weights))
        return {str(number): part for number, part in parts if part}

    def restored(self, weights: dict[str, int], total: float, at: float) -> UsageHistogram:
        """With the weights of a checkpoint, which had ``total`` weight at that time. Unknown buckets are left out."""
        # A checkpoint has weights relative to the heaviest bucket; the total restores their scale.
        whole = sum(weights.values())
        parts = [max(0, weights.get(str(number), 0)) for number in range(BUCKETS)]
        scale = total / whole if whole > 0 else 0.0
        return replace(self, since=at, weights=tuple(part * scale for part in parts))

    def total(self, at: float) -> float:
        """The weight of everything, as it counts at that time."""
        return sum(self.weights) * exp2(max(-_FORGOTTEN, min(_FORGOTTEN, (self.since - at) / self.half_life)))

    def _brought_to(self, at: float) -> UsageHistogram:
        """The same, with ``at`` as its time if it is empty or new weights would become too large."""
        if not any(self.weights):
            return replace(self, since=at)
        exponent = (at - self.since) / self.half_life
        if exponent <= _LARGEST_EXPONENT:
            return self
        # Scale all weights down before new ones become too large for a float.
        factor = exp2(-min(exponent, _FORGOTTEN))
        return replace(self, since=at, weights=tuple(weight * factor for weight in self.weights))


DAY: Final = Seconds(86_400.0)
SAMPLES_PER_DAY: Final = 1440
"""One a minute: a day with fewer counts as less than a day of history."""

_FIRST_BUCKET: Final[dict[Resource, float]] = {"cpu": 10.0, "memory": 10e6}


@dataclass(frozen=True, slots=True)
class VerticalRules:
    """VPA's defaults. Percentiles are fractions, the margin is added to each; ``least`` is never undercut."""

    target: float = 0.9
    lower: float = 0.5
    upper: float = 0.95
    margin: float = 0.15
    half_life: Seconds = DAY
    least: ResourceList = field(default=ResourceList(MilliCpu(25), Bytes(250_000_000)))


@dataclass(frozen=True, slots=True)
class ContainerHistory:
    """Usage history of one container. ``peak`` is the largest memory since the day that ends at ``peak_until`` began.

    Times are seconds since 1970; ``samples`` counts those of CPU.
    """

    cpu: UsageHistogram
    memory: UsageHistogram
    since: float
    until: float
    samples: int = 0
    peak: float = 0.0
    peak_until: float = 0.0


History = Mapping[str, ContainerHistory]
"""What is remembered of each container, by name."""


def no_history(at: float, rules: VerticalRules) -> ContainerHistory:
    """The history of a container that is seen for the first time at that time."""
    # The first buckets are 10 mCPU and 10 MB wide, like VPA's.
    cpu, memory = (UsageHistogram(_FIRST_BUCKET[resource], rules.half_life) for resource in RESOURCES)
    return ContainerHistory(cpu, memory, at, at)


def observed(
    history: History, container: str, replicas: Sequence[ResourceList], at: float, rules: VerticalRules | None = None
) -> History:
    """With what each replica used of one container at that time; earlier times than the last are left out."""
    old = history.get(container) or no_history(at, rules or VerticalRules())
    # An earlier time comes from a clock that was set back.
    if at < old.until:
        return history
    new = replace(old, until=at)
    cpu = [used.cpu.value for used in replicas if used.cpu is not None]
    if cpu:
        # The sum over all replicas, extrapolated to those without a measurement: a recommendation follows at once when
        # their number changes.
        new = replace(new, cpu=new.cpu.add(sum(cpu) * len(replicas) / len(cpu), 1.0, at), samples=new.samples + 1)
    memory = [used.memory.value for used in replicas if used.memory is not None]
    if memory:
        # The largest replica's, because all of them get the same size.
        new = _with_peak(new, max(memory), at)
    return {**history, container: new}


def ran_out_of_memory(history: History, container: str, used: Bytes, at: float) -> History:
    """With a container killed for lack of memory at that use, so it needed more (``after_kill``)."""
    # A container that was never observed has no histogram to add to.
    old = history.get(container)
    if old is None:
        return history
    return {**history, container: _with_peak(old, float(after_kill(used).value), max(at, old.until))}


def _with_peak(old: ContainerHistory, value: float, at: float) -> ContainerHistory:
    # Each day adds one sample, its peak: memory that is needed once a day must always be there.
    if at >= old.peak_until:
        until = at + DAY
        return replace(old, memory=old.memory.add(value, 1.0, until), peak=value, peak_until=until)
    if value <= old.peak:
        return old
    # The day's sample is replaced, so the lower one is taken back first.
    without = old.memory.add(old.peak, -1.0, old.peak_until)
    return replace(old, memory=without.add(value, 1.0, old.peak_until), peak=value)


def recommended(history: History, replicas: int, rules: VerticalRules | None = None) -> VerticalRecommendation | None:
    """Recommended size of each container for that many replicas; None if nothing was ever observed."""
    rules = rules or VerticalRules()
    if replicas <= 0:
        return None
    containers = tuple(_of(name, history[name], replicas, rules) for name in sorted(history))
    sized = tuple(container for container in containers if container.target)
    return VerticalRecommendation(sized, replicas) if sized else None


def _of(name: str, history: ContainerHistory, replicas: int, rules: VerticalRules) -> ContainerRecommendation:
    days = min((history.until - history.since) / DAY, history.samples / SAMPLES_PER_DAY)
    target = _sized(history, replicas, rules, rules.target, 1.0)
    lower = _sized(history, replicas, rules, rules.lower, confidence_factor(days, 0.001, -2))
    upper = _sized(history, replicas, rules, rules.upper, confidence_factor(days, 1, 1))
    return ContainerRecommendation(name, target, lower, upper, uncapped=target)


def _sized(
    history: ContainerHistory, replicas: int, rules: VerticalRules, fraction: float, factor: float
) -> ResourceList:
    def size(resource: Resource) -> int | None:
        # CPU is the sum of all replicas, memory that of one.
        histogram, share = (history.cpu, replicas) if resource == "cpu" else (history.memory, 1)
        used, least = histogram.percentile(fraction), rules.least[resource]
        if used is None:
            return None
        return max(ceil(used / share * (1 + rules.margin) * factor), 0 if least is None else least.value)

    return ResourceList.of(size)


MOST_CONTAINERS: Final = 16
"""This many containers are remembered, by name."""

_MOST: Final = 1e18  # more than any amount of memory, and than any weight


def encode_history(history: History) -> list[Json]:
    """The histograms of each container, by name."""
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
    # Nine digits are enough for a weight, and the text stays short.
    return {"totalWeight": float(f"{histogram.total(at):.9g}"), "bucketWeights": histogram.checkpoint()}


def decode_history(found: JsonObject, field: str, now: float = inf) -> dict[str, ContainerHistory]:
    """Decode the output of ``encode_history`` in ``field`` of ``found``.

    Times in the future, from a clock that was ahead, count as ``now``; otherwise nothing would be learned until then.
    """
    decoded = {text(entry, "containerName"): _decoded(entry, now) for entry in items(found, field)}
    return {name: history for name, history in decoded.items() if name and history is not None}


def _decoded(found: JsonObject, now: float) -> ContainerHistory | None:
    since, until = (parse_timestamp(found.get(name)) for name in ("firstSampleTime", "lastSampleTime"))
    if since is None or until is None or until < since:
        return None
    # The writer's clock may have been ahead: later samples would be left out until then.
    since, until = min(since, now), min(until, now)
    peak_until = parse_timestamp(child(found, "memoryPeak").get("until")) or 0.0
    empty = no_history(until, VerticalRules())
    return ContainerHistory(
        _restored(empty.cpu, child(found, "cpu"), until),
        _restored(empty.memory, child(found, "memory"), until),
        since,
        until,
        int(_number(found.get("samples"))),
        _number(child(found, "memoryPeak").get("bytes")),
        min(peak_until, until + DAY),
    )


def _restored(empty: UsageHistogram, found: JsonObject, at: float) -> UsageHistogram:
    weights = {name: int(_number(weight)) for name, weight in child(found, "bucketWeights").items()}
    return empty.restored(weights, _number(found.get("totalWeight")), at)


def _number(found: object) -> float:
    """A finite number that is not negative; 0 for anything else."""
    # `bool` is an `int` in Python.
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return 0.0
    # The JSON may hold NaN or a number that overflows later.
    return float(found) if 0 <= found <= _MOST and isfinite(found) else 0.0
