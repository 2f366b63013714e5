"""Well-known policies by their published rules, and players of our own policies.

Load-based policies see the demand, like a run queue; usage-based ones see at most the allocation.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from math import ceil, exp
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np

from protocol.smoothing.default import DEFAULT_CPU
from protocol.smoothing.histogram import DecayingHistogram, confidence_factor
from protocol.smoothing.policy import SmoothingPolicy, parse_policy
from protocol.smoothing.stage import Sample
from protocol.smoothing.window import WindowMax
from protocol.units import Bytes, Instant, MilliCpu, Resources, Seconds
from protocol.virtual_machine import Bounds
from scheduler_plugin.groups.core.tortoise.floor import Peaks, desired_floor
from scheduler_plugin.groups.core.tortoise.slots import SlotLayout
from scheduler_plugin.groups.core.tortoise.tortoise_memory import TortoiseMode
from scripts.autoscale.replay.recording import UNIT, Floats, Timeline, round_up, round_up_all

BEGIN: Final = datetime(2026, 5, 4, tzinfo=UTC)
DECISION_INTERVAL: Final = 60.0
"""Seconds between observations of the VM."""

_LAYOUT: Final = SlotLayout(1, "daily", ZoneInfo("UTC"))
_NO_MEMORY: Final = Bytes(0)


class SlotFloor:
    """The floor of a VM of at most ``cap`` vCPUs, learned from its allocations in the same hour of previous days."""

    def __init__(self, cap: float) -> None:
        self._bounds = Bounds(Resources(MilliCpu(0), _NO_MEMORY), Resources(MilliCpu.cores(cap), _NO_MEMORY))
        self._peaks, self._observed_at, self._floor = Peaks.empty(_LAYOUT), -DECISION_INTERVAL, 0.0

    def at(self, seconds: float, allocated: float) -> float:
        """The floor in vCPUs at a time; the VM has ``allocated`` vCPUs."""
        # Peaks are learned once a minute; a recording may have a step of a second.
        if seconds - self._observed_at >= DECISION_INTERVAL:
            self._observed_at, now = seconds, BEGIN + timedelta(seconds=seconds)
            self._peaks = self._peaks.learned(Resources(MilliCpu.cores(allocated), _NO_MEMORY), _LAYOUT, now)
            floor = desired_floor(self._peaks, TortoiseMode.AUTO, self._bounds, now)
            self._floor = 0.0 if floor is None else floor.cpu.as_cores
        return self._floor


Player = Callable[[Timeline], Floats]
"""Replays a timeline; returns the allocation in vCPUs at each step."""

AGENT_TICK: Final = 5.0
AGENT_TARGET: Final = 0.9
HPA_SYNC: Final = 15.0
HPA_STABILISATION: Final = Seconds(300.0)
HPA_TARGET: Final = 0.8
HPA_TOLERANCE: Final = 0.1
VPA_SAMPLING: Final = 60.0
DAY: Final = 86_400.0

_PART: Final = 65_536


def _demands(timeline: Timeline) -> Iterator[float]:
    """The demand at each step."""
    # In parts, because millions of Python floats at once take hundreds of megabytes.
    for start in range(0, len(timeline.demand), _PART):
        yield from timeline.demand[start : start + _PART].tolist()


def play_policy(policy: SmoothingPolicy, *, with_floor: bool = False) -> Player:
    """A player of one of our policies, which sees the demand; ``with_floor`` keeps the VM above its floor."""

    def player(timeline: Timeline) -> Floats:
        target, step, cap = policy.start().target, timeline.step, timeline.cap
        floor = SlotFloor(cap) if with_floor else None
        current, allocation = min(cap, round_up(float(timeline.demand[0]))), array("d")
        for index, demand in enumerate(_demands(timeline)):
            # The decision takes effect in the next step.
            allocation.append(current)
            decided = target(Instant(index * step), Sample(demand, current))
            decided = decided if floor is None else max(decided, floor.at(index * step, current))
            current = min(cap, max(1, ceil(decided / UNIT - 1e-9)) * UNIT)
        return np.array(allocation)

    return player


def fixed_at_peak(timeline: Timeline) -> Floats:
    """A fixed size: the peak of the whole recording."""
    return np.full(len(timeline.demand), round_up(float(timeline.demand.max())))


def fixed_high_percentile(timeline: Timeline) -> Floats:
    """A fixed size: the 99.5th percentile of the whole recording plus 20 %."""
    return np.full(len(timeline.demand), round_up(1.2 * float(np.percentile(timeline.demand, 99.5))))


def _next_step(needed: Floats, timeline: Timeline) -> Floats:
    """Allocates what is needed every 5 s, rounded up to units, one step later."""
    every = max(1, round(AGENT_TICK / timeline.step))
    ticks = (np.arange(len(needed)) // every) * every
    sizes = np.minimum(timeline.cap, round_up_all(needed[ticks]))
    return np.concatenate([sizes[:1], sizes[:-1]])


def agent_last_sample(timeline: Timeline) -> Floats:
    """The original agent: load / 0.9 every 5 s, with the instantaneous load."""
    return _next_step(timeline.demand / AGENT_TARGET, timeline)


def agent_one_minute(timeline: Timeline) -> Floats:
    """The original agent: load / 0.9 every 5 s, with the kernel's one-minute load average."""
    # The load average decays exponentially with a time constant of one minute.
    keep, level, levels = exp(-timeline.step / 60), float(timeline.demand[0]), array("d")
    for demand in _demands(timeline):
        level = demand + (level - demand) * keep
        levels.append(level)
    return _next_step(np.array(levels) / AGENT_TARGET, timeline)


def hpa_load(timeline: Timeline) -> Floats:
    """load / 0.9 every 5 s, reduced only to the greatest recommendation of the last 300 s, like the HPA."""
    window, every, maxima = WindowMax(HPA_STABILISATION), max(1, round(AGENT_TICK / timeline.step)), array("d")
    for index, demand in enumerate(_demands(timeline)):
        if index % every == 0:
            window.add(demand / AGENT_TARGET, Instant(index * timeline.step))
        maxima.append(window.max() or 0.0)
    return _next_step(np.array(maxima), timeline)


def hpa_utilisation(timeline: Timeline) -> Floats:
    """The HPA's rule for utilization: target 80 %, tolerance 10 %, every 15 s, at most doubled, 300 s stabilization."""
    step, every = timeline.step, max(1, round(HPA_SYNC / timeline.step))
    window, allocation = WindowMax(HPA_STABILISATION), array("d")
    current = min(timeline.cap, round_up(float(timeline.demand[0]) / HPA_TARGET))
    for index, demand in enumerate(_demands(timeline)):
        allocation.append(current)
        if index % every:
            continue
        # Usage cannot exceed the allocation.
        ratio = min(demand, current) / (HPA_TARGET * current)
        desired = current if abs(ratio - 1) <= HPA_TOLERANCE else round_up(ratio * current)
        # The HPA at most doubles, or adds four, whichever is more.
        desired = min(desired, max(2 * current, current + 4 * UNIT))
        window.add(desired, Instant(index * step))
        # Down only to the greatest recommendation of the last 300 s.
        current = min(timeline.cap, window.max() or desired)
    return np.array(allocation)


def vpa(timeline: Timeline) -> Floats:
    """The VPA: P90 plus 15 % of a histogram of usage with a half-life of 24 h, once the size leaves its bounds.

    The bounds are P50 and P95 with the same margin, widened for a short history: by (1 + 0.001/days)^-2 and
    (1 + 1/days).
    """
    histogram, every = DecayingHistogram(Seconds(DAY), 0.01), max(1, round(VPA_SAMPLING / timeline.step))
    allocation, current = array("d"), min(timeline.cap, round_up(float(timeline.demand[0])))
    for index, demand in enumerate(_demands(timeline)):
        allocation.append(current)
        if index % every:
            continue
        histogram.age(VPA_SAMPLING)
        # As in the VPA's recommender, samples are weighted by the request.
        histogram.add(min(demand, current), max(0.1, current))
        days = index * timeline.step / DAY
        low = histogram.percentile(0.5) * 1.15 * confidence_factor(days, 0.001, -2)
        high = histogram.percentile(0.95) * 1.15 * confidence_factor(days, 1, 1)
        # Like the VPA's updater: a size within the bounds is not worth a restart.
        if not low <= current <= high:
            current = min(timeline.cap, round_up(histogram.percentile(0.9) * 1.15))
    return np.array(allocation)


SEED_PERCENTILE: Final = parse_policy([{"percentile": {}}])
"""The percentile model with its default thresholds."""

PLAYERS: Final[Mapping[str, Player]] = {
    "default": play_policy(DEFAULT_CPU),
    "default-floor": play_policy(DEFAULT_CPU, with_floor=True),
    "hpa-load": hpa_load,
    "hpa": hpa_utilisation,
    "vpa": vpa,
    "percentile": play_policy(SEED_PERCENTILE),
    "agent-last": agent_last_sample,
    "agent-1m": agent_one_minute,
    "fixed-p99.5": fixed_high_percentile,
    "fixed-peak": fixed_at_peak,
}
"""All policies by name; ours first."""
