"""Exponential backoff with jitter. The only implementation in this project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.units import Seconds

_MAX_DOUBLINGS: Final = 64  # every cap in use is reached earlier, and the power still fits a float


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays of ``first`` seconds, then ``factor`` (>= 1) times the last, up to ``cap``. Jitter adds up to the share
    ``spread`` to each.

    >>> [Backoff(Seconds(1.0), Seconds(5.0)).delay(failures, 0.0) for failures in (1, 2, 3, 4)]
    [1.0, 2.0, 4.0, 5.0]
    """

    first: Seconds
    cap: Seconds
    factor: float = 2.0
    spread: float = 0.25

    def delay(self, failures: int, jitter: float) -> Seconds:
        """The delay in seconds after ``failures`` (>= 1) in a row; ``jitter`` is a random number in 0..1.

        >>> Backoff(Seconds(2.0), Seconds(60.0), spread=0.5).delay(1, 0.5)
        2.5
        """
        # Without the cap on the exponent, a long series of failures would overflow the float.
        grown = self.first * self.factor ** min(failures - 1, _MAX_DOUBLINGS)
        # Add jitter after the cap, so that clients at the cap that failed together do not retry together.
        return Seconds(min(self.cap, grown) * (1.0 + self.spread * jitter))


@dataclass(slots=True)
class Retries:
    """Counts consecutive failures of something that is retried.

    A failure after at least ``healthy`` seconds of running counts as the first.

    >>> retries = Retries(Backoff(Seconds(1.0), Seconds(60.0)), healthy=Seconds(600.0))
    >>> [retries.failed(0.0) for _ in range(3)]
    [1.0, 2.0, 4.0]
    >>> retries.failed(0.0, ran=Seconds(601.0))
    1.0
    """

    backoff: Backoff
    healthy: Seconds = Seconds(float("inf"))
    failures: int = 0

    def failed(self, jitter: float, ran: Seconds = Seconds(0.0)) -> Seconds:
        """Count a failure after ``ran`` seconds of running well; return the delay before the next try in seconds."""
        # After running well for long enough, delays start over.
        self.failures = 1 if ran >= self.healthy else self.failures + 1
        return self.backoff.delay(self.failures, jitter)

    def succeeded(self) -> None:
        """Forget the failures.

        >>> retries = Retries(Backoff(Seconds(1.0), Seconds(60.0)), failures=7)
        >>> retries.succeeded()
        >>> retries.failures
        0
        """
        self.failures = 0
