"""Limits and progress of a live migration, as the hypervisor counts them (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from protocol.units import Bytes, Seconds

_DOUBLED_EVERY: Final = 5.0  # seconds
# QEMU takes no infinite downtime limit; this is longer than any final pass lasts.
_AS_LONG_AS_IT_TAKES: Final = Seconds(1000.0)


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """Limits of a live migration (S4.12).

    ``downtime`` is the standstill that the hypervisor aims at, and ``downtime_most`` its limit for a guest that changes
    its memory too fast for that; with ``auto_converge`` such a guest is slowed down. ``bandwidth`` is in bytes per
    second. After ``timeout`` the move is given up. In ``one_pass`` all memory is sent once while the guest runs, and
    what has changed meanwhile is sent while it stands still, however long that takes.
    """

    downtime: Seconds
    bandwidth: Bytes
    timeout: Seconds
    auto_converge: bool = True
    # 300 ms is what QEMU allows by default.
    downtime_most: Seconds = Seconds(0.3)
    one_pass: bool = False

    def in_one_pass(self) -> TransferLimits:
        """The same for an emulated guest."""
        # An emulated CPU marks a page dirty, and writes to it an instant later. If QEMU collects the dirty log in
        # between and sends the page, the write is lost, and the guest breaks at its new place.
        return replace(self, one_pass=True)

    def downtime_after(self, span: Seconds, is_sent_once: bool = False) -> Seconds:
        """The downtime allowed once the move has lasted for ``span``: twice as long every 5 s."""
        if self.one_pass:
            # QEMU collects the dirty log as soon as an end within the allowed downtime is in sight, so no downtime is
            # allowed before all memory was sent once.
            return _AS_LONG_AS_IT_TAKES if is_sent_once else Seconds(0.0)
        # The cap only keeps the power of two finite; `downtime_most` is reached long before.
        doublings = min(span // _DOUBLED_EVERY, 32.0)
        return Seconds(max(self.downtime, min(self.downtime * 2.0**doublings, self.downtime_most)))


class TransferStatus(StrEnum):
    """Status of a move, in the hypervisor's words."""

    SETUP = "setup"
    ACTIVE = "active"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class TransferRam:
    """Memory copied in a move: ``total`` is the guest's, ``transferred`` went over the wire. ``duplicate`` (all the
    same byte) and ``normal`` count pages of ``page_size``; ``dirty_rate`` is how many pages the guest changed per
    second in the last round; ``rounds`` is how often its memory was gone through.
    """

    total: Bytes
    transferred: Bytes
    remaining: Bytes
    duplicate: int
    normal: int
    dirty_rate: int
    rounds: int
    page_size: Bytes


@dataclass(frozen=True, slots=True)
class TransferInfo:
    """Progress of a move. ``downtime`` is expected until the move is completed, and then measured."""

    status: TransferStatus
    total: Seconds
    setup: Seconds
    downtime: Seconds
    ram: TransferRam
