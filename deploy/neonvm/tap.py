"""Opens taps, and queries the size of the header before each of their frames."""

from __future__ import annotations

import array
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

_TUN: Final = Path("/dev/net/tun")
# TUNSETIFF and the flags of its `struct ifreq`, from linux/if_tun.h: IFF_TAP, IFF_NO_PI and IFF_VNET_HDR.
_SET_INTERFACE: Final = 0x400454CA
_TAP: Final = 0x0002
_NO_INFORMATION: Final = 0x1000
_OFFLOADS: Final = 0x4000
# TUNGETVNETHDRSZ.
_GET_HEADER_SIZE: Final = 0x800454D7
_DEFAULT_HEADER: Final = 10


def open_tap(name: str) -> int:
    """Open a tap without blocking; a new one exists until its last descriptor is closed. Raises ``OSError``."""
    # Close-on-exec: child processes inherit it only if it is passed to them.
    descriptor = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(
            descriptor, _SET_INTERFACE, struct.pack("16sH14x", name.encode(), _TAP | _NO_INFORMATION | _OFFLOADS)
        )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def header_size(descriptor: int) -> int:
    """Bytes of the virtio-net header before each frame of an open tap. Raises ``OSError``."""
    # QEMU changes it when the guest's driver negotiates features.
    size = array.array("i", [_DEFAULT_HEADER])
    fcntl.ioctl(descriptor, _GET_HEADER_SIZE, size)
    return size[0]
