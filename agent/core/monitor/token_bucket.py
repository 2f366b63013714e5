"""A rate limit for an untrusted peer."""

from __future__ import annotations

from protocol.units import Instant


class TokenBucket:
    """A bucket of ``most`` tokens, full at ``now``, that gains ``per_second`` tokens.

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
        """Take ``tokens`` and return True if they were available. The bucket may go into debt.

        >>> TokenBucket(2.0, 1.0, Instant(0.0)).take(3.0, Instant(1.0))
        False
        """
        grown = self._held + self._per_second * (now - self._at)
        # Refused messages count too, so that a peer that keeps sending stays refused.
        self._held, self._at = min(self._most, grown) - tokens, now
        return self._held >= 0.0
