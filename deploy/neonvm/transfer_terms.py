"""Limits and progress of a live migration, as the hypervisor counts them (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from protocol.units import Bytes, Seconds

_DOUBLED_EVERY: Final = 5.0  # seconds
# QEMU has no unlimited downtime; this is longer than any final pass.
_NO_LIMIT: Final = Seconds(1000.0)


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """Limits of a live migration (S4.12).

    ``downtime`` is the initial downtime limit, raised up to ``downtime_most`` for a guest that dirties its memory too
    fast; with ``auto_converge`` QEMU throttles such a guest. ``bandwidth`` is in bytes per second. The migration is
    aborted after ``timeout``. With ``one_pass`` all memory is sent once while the guest runs, and pages dirtied
    meanwhile are sent while it is paused, however long that takes.
    """

    downtime: Seconds
    bandwidth: Bytes
    timeout: Seconds
    auto_converge: bool = True
    # 300 ms is QEMU's default.
    downtime_most: Seconds = Seconds(0.3)
    one_pass: bool = False

    def in_one_pass(self) -> TransferLimits:
        """These limits for an emulated guest."""
        # TCG marks a page dirty just before it writes to it. If QEMU syncs the dirty log in between and sends the
        # page, the write is lost, and the guest is corrupt on the target.
        return replace(self, one_pass=True)

    def downtime_after(self, span: Seconds, is_sent_once: bool = False) -> Seconds:
        """The downtime limit after ``span``: doubled every 5 s."""
        if self.one_pass:
            # QEMU syncs the dirty log as soon as the rest fits into the downtime limit, so the limit stays zero until
            # all memory was sent once.
            return _NO_LIMIT if is_sent_once else Seconds(0.0)
        # The cap only keeps the power of two finite: `downtime_most` is reached long before.
        doublings = min(span // _DOUBLED_EVERY, 32.0)
        return Seconds(max(self.downtime, min(self.downtime * 2.0**doublings, self.downtime_most)))


class TransferStatus(StrEnum):
    """Status of a migration, with QEMU's names."""

    SETUP = "setup"
    ACTIVE = "active"
    COMPLETED = "completed"


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Bytes, pages or milliseconds; never negative, and exact as a float."""


class TransferRam(msgspec.Struct, frozen=True, rename="kebab"):
    """RAM statistics, in QEMU's format and in bytes: ``total`` is the guest's memory, ``transferred`` went over the
    wire. ``duplicate`` (filled with one byte) and ``normal`` count pages of ``page_size``; ``dirty_pages_rate`` is in
    pages per second in the last round; ``dirty_sync_count`` counts rounds.
    """

    total: Count = 0
    transferred: Count = 0
    remaining: Count = 0
    duplicate: Count = 0
    normal: Count = 0
    dirty_pages_rate: Count = 0
    dirty_sync_count: Count = 0
    page_size: Count = 4096


@dataclass(frozen=True, slots=True)
class TransferInfo:
    """Progress of a migration. ``downtime`` is expected until the migration has completed, then measured."""

    status: TransferStatus
    total: Seconds
    setup: Seconds
    downtime: Seconds
    ram: TransferRam
