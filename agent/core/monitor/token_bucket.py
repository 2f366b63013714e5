"""A limit for a peer that is not trusted: a burst, and a rate per second in the long run."""

from __future__ import annotations

from protocol.units import Instant


class TokenBucket:
    """Holds ``most`` tokens at ``now``, and gains ``per_second`` up to that many.

    >>> bucket = TokenBucket(2.0, 1.0, Instant(0.0))
    >>> [bucket.take(1.0, Instant(at)) for at in (0.0, 0.0, 0.0, 2.0)]
    [True, True, False, True]
    """

    def __init__(self, most: float, per_second: float, now: Instant) -> None:
        self._most = most
        self._per_second = per_second
        self._held = most
        self._at = now

    def take(self, tokens: float, now: Instant) -> bool:
        """Takes this many; returns True if they were available. The bucket may go into debt.

        >>> TokenBucket(2.0, 1.0, Instant(0.0)).take(3.0, Instant(1.0))
        False
        """
        grown = self._held + self._per_second * (now - self._at)
        # May go below zero: a refused message counts too, so whoever keeps sending stays refused.
        self._held, self._at = min(self._most, grown) - tokens, now
        return self._held >= 0.0
