"""A rate limit for an untrusted peer."""

from __future__ import annotations

from protocol.units import Instant


class TokenBucket:
    """A bucket of ``capacity`` tokens, full at ``now``, refilled with ``per_second`` tokens.

    >>> bucket = TokenBucket(2.0, 1.0, Instant(0.0))
    >>> [bucket.take(1.0, Instant(at)) for at in (0.0, 0.0, 0.0, 2.0)]
    [True, True, False, True]
    """

    def __init__(self, capacity: float, per_second: float, now: Instant) -> None:
        self._capacity = capacity
        self._per_second = per_second
        self._tokens = capacity
        self._at = now

    def take(self, tokens: float, now: Instant) -> bool:
        """Take ``tokens`` and return True if they were available. The bucket may go into debt.

        >>> TokenBucket(2.0, 1.0, Instant(0.0)).take(3.0, Instant(1.0))
        False
        """
        filled = self._tokens + self._per_second * (now - self._at)
        # Rejected messages also count, so that a peer that keeps sending stays rejected.
        self._tokens, self._at = min(self._capacity, filled) - tokens, now
        return self._tokens >= 0.0
