"""Durations of growths of all VMs of a process, those that are gone too, counted as a histogram."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from agent.core.growth import Wait, WaitStage

BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds. 5 is the objective."""


class GrowthTimes:
    """Counts of ended waits, by what they ended with."""

    def __init__(self) -> None:
        # One bucket more than bounds: +Inf.
        self._counts = {stage: [0] * (len(BOUNDS) + 1) for stage in WaitStage}
        self._sums = dict.fromkeys(WaitStage, 0.0)

    def add(self, waits: Iterable[Wait]) -> None:
        """Counts waits that have ended."""
        for wait in waits:
            # A bucket includes its bound (``le``): with ``bisect_left``, a wait of exactly 5 s counts as 5 s.
            self._counts[wait.stage][bisect_left(BOUNDS, wait.took)] += 1
            self._sums[wait.stage] += wait.took

    def histograms(self) -> Iterator[tuple[str, list[tuple[str, float]], float]]:
        """Each stage with its cumulative buckets, as Prometheus counts them, and the sum of its seconds."""
        names = [*map(str, BOUNDS), "+Inf"]
        for stage in WaitStage:
            yield stage.value, list(zip(names, accumulate(self._counts[stage]), strict=True)), self._sums[stage]
