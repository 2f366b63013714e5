"""Frames that reached the source pod of a migration after its guest had stopped, and return to the network (pure).

They are held until the guest announces itself from the target.
"""

from __future__ import annotations

from typing import Final

from deploy.neonvm.addressing import RETURNED_MAC, flat_mac
from deploy.neonvm.network.announcement import is_announcement

_MAC: Final = 6
_MOST: Final = 4096
"""Maximum number of held frames; senders retransmit the rest."""


class ReturnedFrames:
    """The frames of one migration of the VM with the flat-network address ``address``."""

    def __init__(self, address: str) -> None:
        self._mac = _bytes(flat_mac(address))
        self._queued: list[bytes] | None = []

    def take(self, header: bytes, frame: bytes) -> list[bytes]:
        """The frames to return to the network now, in order. Broadcasts reach the guest without us."""
        if is_announcement(frame, self._mac):
            # Sent from the target, so the network now forwards the guest's frames there.
            ready, self._queued = self._queued or [], None
            return ready
        if frame[:_MAC] != self._mac:
            return []
        # With a source MAC that no machine has: from the original one, bridges would learn that its sender is here.
        returned = header + frame[:_MAC] + _bytes(RETURNED_MAC) + frame[2 * _MAC :]
        if self._queued is None:
            return [returned]
        if len(self._queued) < _MOST:
            self._queued.append(returned)
        return []


def _bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))
