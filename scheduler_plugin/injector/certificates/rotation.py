"""When an authority comes, signs and goes, and when a certificate is renewed. Pure.

Rules that hold here:

- An authority's life has three thirds. In the first it is only announced: it is in every bundle, also of those who read
  theirs once at start. In the second it signs. In the third it is only trusted, until what it signed has ended.
- The next authority is made when the first third of the newest one is over. So there are two or three at any time.
- A certificate is renewed when two thirds of its life are over. It lives no longer than a third of an authority.
- What a clock that was ahead has made is valid for nobody yet: another is made beside it, and takes its place.
- Only where no authority has been announced long enough, at the very start or after years of absence, one signs early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ANNOUNCED: Final = 1 / 3
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
        """Whether it is not valid yet, because a clock that was ahead has made it."""
        return now < self.made - SKEW

    def is_valid(self, now: float) -> bool:
        """Return True if it has not ended."""
        return now < self.end


def needs_authority(known: Sequence[Life], now: float) -> bool:
    """Return True if another authority is to be made."""
    valid = [each for each in known if each.is_valid(now) and not each.is_ahead(now)]
    return not valid or max(valid, key=lambda each: each.made).over(now) >= ANNOUNCED


def signer(known: Sequence[Life], now: float) -> int:
    """The authority that signs: the newest that was announced long enough, else the oldest. One must be valid."""
    valid = [(each.made, at) for at, each in enumerate(known) if each.is_valid(now)]
    announced = [(made, at) for made, at in valid if known[at].over(now) >= ANNOUNCED]
    return max(announced)[1] if announced else min(valid)[1]


def is_due(certificate: Life, now: float) -> bool:
    """Return True if a certificate is to be renewed."""
    return certificate.over(now) >= RENEWED or certificate.is_ahead(now)


def longest_pause(life: float) -> float:
    """Longest pause, in seconds, between looks at certificates that live so long; at least 1 and at most 10: a new
    namespace waits so long for its authorities.
    """
    return min(10.0, max(1.0, life / 24))
