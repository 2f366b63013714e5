"""Earlier denials of a VM count for the next one: a need that dips for a second must not restart a wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.units import Instant, Seconds
from scheduler_plugin.ledger.accounts.permit_state import LONG_AGO

HALVED_AFTER: Final = Seconds(60.0)
"""Without a denial, half of the past is forgotten in this time: little is left after five minutes."""


@dataclass(frozen=True, slots=True)
class PastDenials:
    """Denials that counted for ``length`` when the last of them ended, at ``ended``.

    ``moves`` is the number of VMs that had moved off the node when the last of them began.
    """

    length: Seconds = Seconds(0.0)
    ended: Instant = LONG_AGO
    moves: int = 0

    def unpaid(self, moves: int) -> PastDenials:
        """Those that count for a denial that begins after that many moves."""
        # Ski rental begins again with each move.
        return self if moves == self.moves else PastDenials(moves=moves)

    def left(self, now: Instant) -> Seconds:
        """The length that still counts."""
        return Seconds(self.length * 0.5 ** (max(0.0, now - self.ended) / HALVED_AFTER))

    def followed_by(self, since: Instant, now: Instant) -> PastDenials:
        """With a denial from ``since`` to ``now``."""
        return PastDenials(Seconds(self.left(since) + (now - since)), now, self.moves)


NO_PAST_DENIALS: Final = PastDenials()
