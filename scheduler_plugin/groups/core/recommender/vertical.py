"""How large each container should be, from what its replicas used: VPA's recommendation without a VPA.

Rules that hold here:

- ``target`` is the 90th percentile, ``lower`` the 50th and ``upper`` the 95th, each with a margin of 15 %. The bounds
  are wider while the history is short.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

from protocol.smoothing.histogram import confidence_factor
from protocol.units import Bytes, MilliCpu, Seconds
from scheduler_plugin.groups.core.out_of_memory import after_kill
from scheduler_plugin.groups.core.recommender.usage_histogram import UsageHistogram
from scheduler_plugin.groups.core.workload import (
    NOTHING,
    RESOURCES,
    ContainerRecommendation,
    Resource,
    ResourceList,
    VerticalRecommendation,
)

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
    sizes = NOTHING
    for resource in RESOURCES:
        # CPU is the sum of all replicas, memory that of one.
        histogram, share = (history.cpu, replicas) if resource == "cpu" else (history.memory, 1)
        used = histogram.percentile(fraction)
        if used is not None:
            least = rules.least[resource]
            size = ceil(used / share * (1 + rules.margin) * factor)
            sizes = sizes.with_value(resource, max(size, 0 if least is None else least.value))
    return sizes
