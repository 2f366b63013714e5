"""What a policy would have cost: each VM's recorded need, played as ``autoscale replay`` plays recordings.

Rules that hold here:

- Only time in which the need was known counts. What lies between is played through, so that the policy has a past
  there, and left out of the sums.
- Policies are played on CPU; memory stays what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler_plugin.history.core.samples import HOUR, MINUTE, PLACE, Millis, Size
from scheduler_plugin.history.core.spans import Span
from scheduler_plugin.history.costs.bills import NOTHING
from scripts.autoscale.replay.peers import Player
from scripts.autoscale.replay.recording import Floats, Recording, timeline

_LEAST_MOMENTS: Final = 2
STEP: Final[Millis] = MINUTE
"""How fine the recorded need is asked for."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """vCPU-hours of one VM or of all: as recorded, under the policy, needed, and needed but missed by the policy."""

    recorded: Fraction = NOTHING
    played: Fraction = NOTHING
    missed: Fraction = NOTHING
    needed: Fraction = NOTHING

    def __add__(self, other: Replayed) -> Replayed:
        return Replayed(
            self.recorded + other.recorded,
            self.played + other.played,
            self.missed + other.missed,
            self.needed + other.needed,
        )

    @property
    def missed_percent(self) -> float:
        """How much of the need exceeded what the policy gave."""
        return float(100 * self.missed / self.needed) if self.needed else 0.0


def replayed(name: str, spans: Sequence[Span], player: Player, most: Size | None) -> Replayed | None:
    """One VM's need through a policy, within its maximum; None where too little of it is known."""
    known = [span for span in spans if span.known[_NEED] and span.known[_SIZE]]
    if len(known) < _LEAST_MOMENTS or not any(span.sums[_NEED] for span in known):
        return None
    begin = known[0].since
    starts = np.array([(span.since - begin) / 1000 for span in known])
    ends = np.array([(span.until - begin) / 1000 for span in known])
    needs = np.array([(span.mean("need_cpu") or 0.0) / 1000 for span in known])
    line = timeline(Recording(name, np.append(starts, ends[-1]), np.append(needs, needs[-1])))
    given = player(line)
    if most is not None:
        given = np.minimum(given, most.cpu / 1000)
    instants = np.arange(len(line.demand)) * line.step
    counts = instants < ends[np.searchsorted(starts, instants + 1e-9, side="right") - 1] - 1e-9
    missed = np.maximum(0.0, line.demand - given)
    sums = (_hours(each, counts, line.step) for each in (given, missed, line.demand))
    return Replayed(_recorded(known), *sums)


_NEED: Final = PLACE["need_cpu"]
_SIZE: Final = PLACE["size_cpu"]


def _recorded(spans: Sequence[Span]) -> Fraction:
    return Fraction(sum(span.sums[_SIZE] for span in spans), 1000 * HOUR)


def _hours(amounts: Floats, counts: NDArray[np.bool_], step: float) -> Fraction:
    return Fraction(round(float(amounts[counts].sum()) * step * 1000), 1000 * 3600)
