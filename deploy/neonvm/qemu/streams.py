"""Framing of QEMU's ``filter-redirector`` and ``-netdev stream`` (pure)."""

from __future__ import annotations

import struct
from typing import Final

# Network byte order: length of header and frame together, and of the header, which `-netdev stream` does not have.
_HEAD: Final = struct.Struct("!II")
_LENGTH: Final = struct.Struct("!I")
LONGEST: Final = 128 * 1024
"""Bytes of a frame with its header. With segmentation offload a frame has up to 64 KiB."""
_LONGEST_HEADER: Final = 255
"""virtio-net's have 20 bytes at most; the frame queue stores the length in a byte."""


class BrokenStreamError(ValueError):
    """The stream announces an impossible length, so the next frame cannot be located."""


class FrameStream:
    """Decoder for the stream of a ``filter-redirector``; without ``has_headers``, of ``-netdev stream``."""

    def __init__(self, *, has_headers: bool = True) -> None:
        self._head = _HEAD if has_headers else _LENGTH
        self._rest = b""

    def read(self, part: bytes) -> list[tuple[bytes, bytes]]:
        """Feed bytes; return offload header and frame of each complete frame. Raises ``BrokenStreamError``."""
        frames, stream, at = list[tuple[bytes, bytes]](), self._rest + part, 0
        while len(stream) >= at + self._head.size:
            # Without headers, only the length is unpacked.
            length, header, *_ = *self._head.unpack_from(stream, at), 0
            if header > min(length, _LONGEST_HEADER) or length > LONGEST:
                raise BrokenStreamError
            start, end = at + self._head.size, at + self._head.size + length
            # Incomplete: wait for the next read.
            if len(stream) < end:
                break
            frames.append((stream[start : start + header], stream[start + header : end]))
            at = end
        self._rest = stream[at:]
        return frames


def encode_redirected(header: bytes, frame: bytes) -> bytes:
    """Encode a frame for a ``filter-redirector``.

    >>> FrameStream().read(encode_redirected(b"head", b"frame"))
    [(b'head', b'frame')]
    """
    return _HEAD.pack(len(header) + len(frame), len(header)) + header + frame


def encode_stream(frame: bytes) -> bytes:
    """Encode a frame for ``-netdev stream``.

    >>> FrameStream(has_headers=False).read(encode_stream(b"frame"))
    [(b'', b'frame')]
    """
    return _LENGTH.pack(len(frame)) + frame
