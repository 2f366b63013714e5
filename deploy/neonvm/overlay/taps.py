"""Taps of the node that are handed over to runner pods.

A tap that nothing holds open any more is removed by the kernel, so nothing has to be cleaned up after a pod.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import struct
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from deploy.neonvm.runner.flat_tap import SOCKET, TapOffer

_FOR_ALL: Final = 0o777
_TUN: Final = Path("/dev/net/tun")
_SET_INTERFACE: Final = 0x400454CA
_TAP: Final = 0x0002
_NO_INFORMATION: Final = 0x1000
_OFFLOADS: Final = 0x4000


def open_tap(name: str) -> int:
    """A new tap, open; it lives as long as a process holds it. Raises ``OSError``."""
    descriptor = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(
            descriptor, _SET_INTERFACE, struct.pack("16sH14x", name.encode(), _TAP | _NO_INFORMATION | _OFFLOADS)
        )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def hand_over(folder: Path, descriptor: int, offer: TapOffer) -> None:
    """Gives the tap to the runner that waits in ``folder``. Raises ``OSError``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(2.0)
        connection.connect(str(folder / SOCKET))
        socket.send_fds(connection, [msgspec.json.encode(offer)], [descriptor])


def open_folders(root: Path) -> None:
    """Lets runners, which are not root, write into the folders that the kubelet makes for them. Raises ``OSError``.

    It makes them with the rights of ``root``, and mounts each into one pod alone.
    """
    root.mkdir(parents=True, exist_ok=True)
    for each in (root, *(child for child in root.iterdir() if child.is_dir() and not child.is_symlink())):
        if stat.S_IMODE(each.stat().st_mode) != _FOR_ALL:
            each.chmod(_FOR_ALL)


def forget(root: Path, present: Collection[str], before: float) -> None:
    """Removes what pods have left that are gone, and not newer than ``before``: whatever they put there, too.

    What cannot be removed now stays for the next time.
    """
    for each in root.iterdir():
        with suppress(OSError):
            if each.name not in present and each.lstat().st_mtime < before:
                shutil.rmtree(each)


def waiting(root: Path) -> list[str]:
    """The pods, by uid, whose runners wait for a tap."""
    return sorted(each.parent.name for each in root.glob(f"*/{SOCKET}"))
