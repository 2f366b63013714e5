"""The life of authorities and certificates: when each is made, signs, is renewed and goes. Pure.

The next authority is made when the first third of the newest one is over. So there are two or three at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# In the first third of its life an authority is only in the bundles, for those who read theirs once at start; in the
# second it signs; in the third it is trusted until what it signed has ended.
ANNOUNCED: Final = 1 / 3
# A third of its life is left for a renewal that fails.
RENEWED: Final = 2 / 3
SKEW: Final = 3600.0
"""This many seconds before it was made a certificate is valid already (``issuing.SKEW``)."""


@dataclass(frozen=True, slots=True)
class Life:
    """From when a certificate was ``made`` to its ``end``, in seconds since 1970."""

    made: float
    end: float

    def over(self, now: float) -> float:
        """The share of it that is over; negative for one made by a clock ahead of ours."""
        return (now - self.made) / max(self.end - self.made, 1.0)

    def is_ahead(self, now: float) -> bool:
        """Return True if it is not valid yet, because a clock that was ahead has made it."""
        return now < self.made - SKEW

    def is_valid(self, now: float) -> bool:
        """Return True if it has not ended."""
        return now < self.end


def needs_authority(known: Sequence[Life], now: float) -> bool:
    """Return True if another authority is to be made."""
    # One that a clock ahead of ours has made is valid for nobody yet: another is made beside it.
    valid = [life for life in known if life.is_valid(now) and not life.is_ahead(now)]
    return not valid or max(valid, key=lambda life: life.made).over(now) >= ANNOUNCED


def signer(known: Sequence[Life], now: float) -> int:
    """The authority that signs: the newest that was announced long enough, else the oldest. One must be valid."""
    valid = [(life.made, at) for at, life in enumerate(known) if life.is_valid(now)]
    announced = [(made, at) for made, at in valid if known[at].over(now) >= ANNOUNCED]
    # None has been announced long enough only at the very start, or after years of absence.
    return max(announced)[1] if announced else min(valid)[1]


def is_due(certificate: Life, now: float) -> bool:
    """Return True if a certificate is to be renewed."""
    # One made by a clock that was ahead would be refused by everybody.
    return certificate.over(now) >= RENEWED or certificate.is_ahead(now)


def longest_pause(life: float) -> float:
    """Longest pause, in seconds, between looks at certificates that live so long; at least 1 and at most 10: a new
    namespace waits so long for its authorities.
    """
    return min(10.0, max(1.0, life / 24))
