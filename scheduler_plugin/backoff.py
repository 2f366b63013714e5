"""How long to wait after the n-th failure in a row: doubling, capped, spread by chance so that none storm in step."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.units import Seconds


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits from ``first`` on, doubling up to ``most`` seconds."""

    first: Seconds
    most: Seconds

    def delay(self, failures: int, chance: float) -> Seconds:
        """The wait after ``failures`` (>= 1) in a row: between half and all of the step, by ``chance`` in [0, 1)."""
        step = min(self.most, self.first * 2.0 ** min(failures - 1, 30))
        return Seconds(step * (0.5 + chance / 2))
