"""Lifetimes of CAs and certificates: when each is created, signs, is renewed and is dropped. Pure.

The next CA is created once a third of the newest one's lifetime has passed, so there are two or three at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# In the first third of its lifetime a CA is only in the bundles, for programs that read theirs once at startup; in the
# second it signs; in the last it stays trusted until the certificates that it signed have expired.
ANNOUNCED: Final = 1 / 3
# The last third of a certificate's lifetime is left for retries of failed renewals.
RENEWED: Final = 2 / 3
SKEW: Final = 3600.0
"""A certificate is valid from this many seconds before its creation, for clients whose clocks are behind."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The lifetime of a certificate, from its creation (``made``) to its ``end``, in seconds since 1970."""

    made: float
    end: float

    def elapsed(self, now: float) -> float:
        """The share of it that has passed; negative if created by a clock ahead of ours."""
        return (now - self.made) / max(self.end - self.made, 1.0)

    def is_ahead(self, now: float) -> bool:
        """Return True if it is not valid yet, because the clock that created it was ahead of ours."""
        return now < self.made - SKEW

    def is_valid(self, now: float) -> bool:
        """Return True if it has not expired."""
        return now < self.end


def needs_authority(authorities: Sequence[Lifetime], now: float) -> bool:
    """Return True if another CA must be created.

    >>> needs_authority([], 0.0), [needs_authority([Lifetime(0.0, 90.0)], now) for now in (29.0, 30.0)]
    (True, [False, True])
    """
    # A CA from a clock ahead of ours is not valid yet, so another is needed.
    valid = [authority for authority in authorities if authority.is_valid(now) and not authority.is_ahead(now)]
    return not valid or max(valid, key=lambda authority: authority.made).elapsed(now) >= ANNOUNCED


def signer(authorities: Sequence[Lifetime], now: float) -> int:
    """The index of the CA that signs: the newest that was announced for long enough, else the oldest. At least one must
    be valid.

    >>> signer([Lifetime(60.0, 150.0), Lifetime(30.0, 120.0), Lifetime(0.0, 90.0)], 65.0)
    1
    """
    valid = [(authority.made, at) for at, authority in enumerate(authorities) if authority.is_valid(now)]
    announced = [(made, at) for made, at in valid if authorities[at].elapsed(now) >= ANNOUNCED]
    # At the first start, or after years without this program, none has been announced for long enough.
    return max(announced)[1] if announced else min(valid)[1]


def is_due(certificate: Lifetime, now: float) -> bool:
    """Return True if a certificate must be renewed.

    >>> is_due(Lifetime(0.0, 90.0), 59.0), is_due(Lifetime(0.0, 90.0), 60.0)
    (False, True)
    """
    # Every client would reject a certificate from a clock that was ahead.
    return certificate.elapsed(now) >= RENEWED or certificate.is_ahead(now)


def check_interval(lifetime: float) -> float:
    """Maximum interval in seconds between checks of certificates with this lifetime: 1 to 10, because a new namespace
    waits this long for its CAs.

    >>> check_interval(6.0), check_interval(120.0), check_interval(86_400.0)
    (1.0, 5.0, 10.0)
    """
    return min(10.0, max(1.0, lifetime / 24))
