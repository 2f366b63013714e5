"""Datapaths of a sleeping guest: frames diverted by its QEMU, its tap, or its connection to a hub."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from deploy.neonvm.qemu.streams import BrokenStreamError, FrameStream, encode_stream
from deploy.neonvm.tap import header_size

Frame = tuple[bytes, bytes]
"""Offload header (virtio-net) and frame."""

_FRAME: Final = 128 * 1024
_PART: Final = 16 * 1024
"""Bytes per read of a stream; the event loop is blocked while its frames are processed."""
# From linux/if_tun.h.
_ATTACH_FILTER: Final = 0x401054D5
_DETACH_FILTER: Final = 0x401054D6


class SourceClosedError(OSError):
    """The source is closed and has no more frames."""


class FrameSource(Protocol):
    """An open source of frames that does not block. Only ``read`` raises."""

    def fileno(self) -> int:
        """File descriptor that becomes readable with the next frame."""

    def read(self) -> list[Frame]:
        """Read once; return the complete frames, if any. Raises ``BlockingIOError`` if nothing can be read now, and
        ``SourceClosedError`` after the last frame.
        """

    def write(self, frame: bytes) -> None:
        """Send a frame as the guest. It is dropped if the queue is full."""

    def close(self) -> None:
        """Stop reading; later frames are left for the next reader."""


class NetworkAttachment(Protocol):
    """Attachment of a guest to the network. QEMU must not read it while it is open here."""

    def open(self) -> FrameSource:
        """Start reading. Raises ``OSError``."""

    def write(self, frame: bytes) -> None:
        """Send a frame as the guest, also while QEMU reads. It is dropped if the queue is full."""

    def header_size(self) -> int:
        """Bytes of the offload header before each frame."""


class Tap:
    """A tap, as attachment and as source. The caller owns the descriptor; ``ip`` and ``mac`` are the guest's."""

    def __init__(self, descriptor: int, ip: bytes, mac: bytes) -> None:
        self._descriptor = descriptor
        self._program = _filter_program(ip, mac)
        self._size = 0  # set by open

    def open(self) -> Tap:
        """Attach a BPF filter, so that only frames to the guest and ARP for its address wake this process."""
        self._size = self.header_size()
        with suppress(OSError):  # works without the filter, at a higher cost
            _attach(self._descriptor, self._program)
        return self

    def fileno(self) -> int:
        """Descriptor of the tap."""
        return self._descriptor

    def read(self) -> list[Frame]:
        """Read one frame."""
        try:
            data = os.read(self._descriptor, _FRAME)
        except BlockingIOError:
            raise
        except OSError as error:
            raise SourceClosedError(str(error)) from error
        return [(data[: self._size], data[self._size :])]

    def write(self, frame: bytes) -> None:
        """Write with a zero header: no offload."""
        with suppress(OSError):
            os.write(self._descriptor, bytes(self.header_size()) + frame)

    def header_size(self) -> int:
        """Current size; QEMU changes it when the guest's driver negotiates features."""
        try:
            return header_size(self._descriptor)
        except OSError:
            return 0  # the tap is gone, and its frames are lost anyway

    def close(self) -> None:
        """Detach the filter: the next reader needs broadcasts."""
        with suppress(OSError):
            fcntl.ioctl(self._descriptor, _DETACH_FILTER, 0)


def _filter_program(ip: bytes, mac: bytes) -> bytes:
    """Classic BPF program that accepts unicast frames to ``mac`` and ARP for ``ip``."""
    load_word, load_half, jump, result = 0x20, 0x28, 0x15, 0x06
    instructions = (
        (load_word, 0, 0, 2),  # last four octets of the destination
        (jump, 0, 2, int.from_bytes(mac[2:], "big")),
        (load_half, 0, 0, 0),
        (jump, 4, 5, int.from_bytes(mac[:2], "big")),
        (load_half, 0, 0, 12),
        (jump, 0, 3, 0x0806),
        (load_word, 0, 0, 38),  # ARP target address
        (jump, 0, 1, int.from_bytes(ip, "big")),
        (result, 0, 0, 0xFFFFFFFF),
        (result, 0, 0, 0),
    )
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)


def _attach(descriptor: int, program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    # `struct sock_fprog`: number of instructions, pointer to them.
    fcntl.ioctl(descriptor, _ATTACH_FILTER, struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))


class _SocketSource:
    """A socket of QEMU."""

    def __init__(self, end: socket.socket, stream: FrameStream) -> None:
        end.setblocking(False)
        self._end, self._stream = end, stream

    def fileno(self) -> int:
        """Descriptor of the socket."""
        return self._end.fileno()

    def read(self) -> list[Frame]:
        """Read several frames."""
        try:
            part = self._end.recv(_PART)
            frames = self._stream.read(part)
        except BlockingIOError:
            raise
        except (OSError, BrokenStreamError) as error:
            raise SourceClosedError(str(error)) from error
        if not part:
            raise SourceClosedError
        return frames

    def close(self) -> None:
        """Close the socket; a hub then accepts the next connection."""
        self._end.close()


class DivertedFrames(_SocketSource):
    """Frames that QEMU's ``filter-redirector`` writes to a socket. It is one-way, so answers go to ``attachment``."""

    def __init__(self, end: socket.socket, attachment: NetworkAttachment) -> None:
        super().__init__(end, FrameStream())
        self._attachment = attachment

    def write(self, frame: bytes) -> None:
        """Write to the attachment, while QEMU reads it."""
        self._attachment.write(frame)


class HubConnection(_SocketSource):
    """Connection to a hub. Its frames have no offload header."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end, FrameStream(has_headers=False))

    def write(self, frame: bytes) -> None:
        """Send a frame. A partial write shuts the connection down, because the hub could not resynchronize."""
        data = encode_stream(frame)
        with suppress(OSError):
            if self._end.send(data) < len(data):
                self._end.shutdown(socket.SHUT_RDWR)


class HubSocket:
    """Hub socket to which one guest connects."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> HubConnection:
        """Connect. Raises ``OSError``."""
        end = socket.socket(socket.AF_UNIX)
        try:
            end.setblocking(False)
            end.connect(str(self._path))
        except BaseException:
            end.close()
            raise
        return HubConnection(end)

    def write(self, frame: bytes) -> None:
        """Do nothing: QEMU holds the only connection, and senders retransmit."""

    def header_size(self) -> int:
        """0: a hub carries bare frames."""
        return 0
