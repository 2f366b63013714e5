"""Frames that reached a guest's old place after it had stopped there, and are given back to the network (pure).

They are held until the guest's own announcement comes by. Only its new place can have sent it, so the network takes
them there from then on. They go back under a hardware address that no other sender has: no bridge is to look for their
senders here.
"""

from __future__ import annotations

import struct
from typing import Final

from deploy.neonvm.addressing import RETURNED_MAC, flat_mac
from deploy.neonvm.network.announcement import is_announcement

_HEAD: Final = struct.Struct("!II")
_MAC: Final = 6
_MOST: Final = 4096
"""This many frames are held; senders repeat what comes after."""


class FrameStream:
    """Stream of QEMU's ``filter-redirector``: the length of each frame, of its offload header, and both."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, part: bytes) -> list[tuple[bytes, bytes]]:
        """The offload header and the frame of each that is complete by now."""
        found, said, at = list[tuple[bytes, bytes]](), self._rest + part, 0
        while len(said) >= at + _HEAD.size:
            length, header = _HEAD.unpack_from(said, at)
            start, end = at + _HEAD.size, at + _HEAD.size + length
            if len(said) < end:
                break
            found.append((said[start : start + header], said[start + header : end]))
            at = end
        self._rest = said[at:]
        return found


class ReturnedFrames:
    """The frames of one move of the VM that has the flat address ``address``."""

    def __init__(self, address: str) -> None:
        self._mac = _bytes(flat_mac(address))
        self._held: list[bytes] | None = []

    def take(self, header: bytes, frame: bytes) -> list[bytes]:
        """The frames to return to the network now, in order. Broadcasts reach the guest without us."""
        if is_announcement(frame, self._mac):
            ready, self._held = self._held or [], None
            return ready
        if frame[:_MAC] != self._mac:
            return []
        returned = header + frame[:_MAC] + _bytes(RETURNED_MAC) + frame[2 * _MAC :]
        if self._held is None:
            return [returned]
        if len(self._held) < _MOST:
            self._held.append(returned)
        return []


def _bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))
