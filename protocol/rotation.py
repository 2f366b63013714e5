"""The life of authorities and certificates: when each is made, signs, is renewed and is dropped. Pure.

The next authority is made when the first third of the newest one is over. So there are two or three at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# In the first third of its life an authority is only in the bundles, for programs that read theirs once at start; in
# the second it signs; in the last it stays trusted until the certificates that it signed have ended.
ANNOUNCED: Final = 1 / 3
# The last third of a certificate's life is left for renewals that fail.
RENEWED: Final = 2 / 3
SKEW: Final = 3600.0
"""A certificate is valid from this many seconds before it was made, for clients whose clocks are behind."""


@dataclass(frozen=True, slots=True)
class Life:
    """From when a certificate was ``made`` to its ``end``, in seconds since 1970."""

    made: float
    end: float

    def over(self, now: float) -> float:
        """The share of its life that is over; negative for one made by a clock ahead of ours."""
        return (now - self.made) / max(self.end - self.made, 1.0)

    def is_ahead(self, now: float) -> bool:
        """Return True if it is not valid yet, because it was made by a clock ahead of ours."""
        return now < self.made - SKEW

    def is_valid(self, now: float) -> bool:
        """Return True if it has not ended."""
        return now < self.end


def needs_authority(known: Sequence[Life], now: float) -> bool:
    """Return True if another authority is to be made.

    >>> needs_authority([], 0.0), needs_authority([Life(0.0, 90.0)], 29.0), needs_authority([Life(0.0, 90.0)], 30.0)
    (True, False, True)
    """
    # One made by a clock ahead of ours is not valid yet, so another is made beside it.
    valid = [life for life in known if life.is_valid(now) and not life.is_ahead(now)]
    return not valid or max(valid, key=lambda life: life.made).over(now) >= ANNOUNCED


def signer(known: Sequence[Life], now: float) -> int:
    """The authority that signs: the newest that was announced long enough, else the oldest. One must be valid.

    >>> signer([Life(60.0, 150.0), Life(30.0, 120.0), Life(0.0, 90.0)], 65.0)
    1
    """
    valid = [(life.made, at) for at, life in enumerate(known) if life.is_valid(now)]
    announced = [(made, at) for made, at in valid if known[at].over(now) >= ANNOUNCED]
    # None has been announced long enough at the very start, or after years without this program.
    return max(announced)[1] if announced else min(valid)[1]


def is_due(certificate: Life, now: float) -> bool:
    """Return True if a certificate is to be renewed.

    >>> is_due(Life(0.0, 90.0), 59.0), is_due(Life(0.0, 90.0), 60.0)
    (False, True)
    """
    # Everybody would refuse one made by a clock that was ahead.
    return certificate.over(now) >= RENEWED or certificate.is_ahead(now)


def longest_pause(life: float) -> float:
    """Longest pause, in seconds, between looks at certificates of this lifetime: from 1 to 10, as a new namespace waits
    this long for its authorities.

    >>> longest_pause(6.0), longest_pause(120.0), longest_pause(86_400.0)
    (1.0, 5.0, 10.0)
    """
    return min(10.0, max(1.0, life / 24))
