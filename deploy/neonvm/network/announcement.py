"""The RARP frame from which bridges learn the port of a VM (pure). QEMU sends it once a migrated guest runs.

If it is sent earlier, when the guest stops on the source, frames already go to the target and are queued there. A frame
lost on the source costs its sender a retransmission timeout of 0.2 s.
"""

from __future__ import annotations

from typing import Final

_BROADCAST: Final = b"\xff" * 6
_RARP: Final = b"\x80\x35"
# Ethernet, IPv4, address lengths 6 and 4, and operation 3: the fixed part of a RARP request.
_REQUEST_REVERSE: Final = b"\x00\x01\x08\x00\x06\x04\x00\x03"
# Bytes of the shortest Ethernet frame without its checksum.
_SHORTEST: Final = 60


def is_announcement(frame: bytes, mac: bytes) -> bool:
    """Return True if ``frame`` announces ``mac``."""
    # The source MAC and the EtherType after it.
    return frame[6:14] == mac + _RARP


def announcement(mac: str) -> bytes:
    """A RARP request of ``mac`` for itself; bridges learn its port, and hosts ignore it."""
    address = bytes.fromhex(mac.replace(":", ""))
    unspecified = bytes(4)
    frame = _BROADCAST + address + _RARP + _REQUEST_REVERSE + address + unspecified + address + unspecified
    return frame.ljust(_SHORTEST, b"\0")
