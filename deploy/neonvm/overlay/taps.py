"""Taps of the node, and the sockets at which runner pods are handed theirs.

Each place that the device plugin gives to a pod has a folder with a socket. The kubelet mounts it read-only into that
pod alone, so a pod can leave nothing on the node, and is known by the socket at which it calls. The kernel
removes a tap that nobody holds open.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Never

import msgspec

from deploy.neonvm.devices.wire import is_place
from deploy.neonvm.runner.flat_tap import SOCKET, TapOffer
from deploy.neonvm.texts import network as texts

LOG: Final = logging.getLogger("neonvm.network")

_TUN: Final = Path("/dev/net/tun")
# TUNSETIFF and the flags of its `struct ifreq`, from linux/if_tun.h: IFF_TAP, IFF_NO_PI and IFF_VNET_HDR.
_SET_INTERFACE: Final = 0x400454CA
_TAP: Final = 0x0002
_NO_INFORMATION: Final = 0x1000
_OFFLOADS: Final = 0x4000
_SECONDS: Final = 10.0  # for a pod to be served before the next one may call
_PAUSE: Final = 0.5

Serve = Callable[[str, socket.socket], Awaitable[None]]
"""Serves the pod that has the named place, over its connection."""


def open_tap(name: str) -> int:
    """A new tap, open; it lives as long as a process holds it. Raises ``OSError``."""
    # Close-on-exec: the tap leaves this process only by `hand_over`.
    descriptor = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(
            descriptor, _SET_INTERFACE, struct.pack("16sH14x", name.encode(), _TAP | _NO_INFORMATION | _OFFLOADS)
        )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def hand_over(connection: socket.socket, descriptor: int, offer: TapOffer) -> None:
    """Gives the tap to the runner that has called. Raises ``OSError``."""
    socket.send_fds(connection, [msgspec.json.encode(offer)], [descriptor])


class TapSockets:
    """The sockets below ``root``, one for each place; ``close`` ends them all."""

    def __init__(self, root: Path, serve: Serve) -> None:
        self._root = root
        self._serve = serve
        self._listening: dict[str, asyncio.Task[Never]] = {}

    def restore(self) -> None:
        """Listens again at the places that an earlier process has made. Raises ``OSError``."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._root.chmod(0o755)  # an earlier version let everybody write here
        for folder in self._root.iterdir():
            if is_place(folder.name):
                self._listen(folder)
                continue
            try:
                _remove(folder)  # left by a version that let pods write here
            except OSError as error:
                LOG.warning(texts.LEFTOVER, extra={"folder": folder.name, "reason": str(error)})

    def make(self, place: str) -> Path:
        """A new folder for the pod that gets ``place``. Raises ``OSError``."""
        # An earlier pod may still hold a connection or the folder of this place: both must lead nowhere from now on.
        if (task := self._listening.pop(place, None)) is not None:
            task.cancel()
        # The name comes from the kubelet, and becomes a path that is deleted.
        if not is_place(place):
            raise OSError(texts.NO_PLACE.format(place=place))
        folder = self._root / place
        _remove(folder)
        folder.mkdir(mode=0o755)
        self._listen(folder)
        return folder

    def _listen(self, folder: Path) -> None:
        # SEQPACKET keeps the offer and its descriptor in one message.
        path, listener = folder / SOCKET, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            path.unlink(missing_ok=True)
            listener.setblocking(False)
            listener.bind(str(path))
            # The pod's user is not root and not known; only this pod sees the socket at all.
            path.chmod(0o666)
            listener.listen(1)
        except BaseException:
            listener.close()
            raise
        task = asyncio.ensure_future(self._accept(folder.name, listener))
        # The task may be cancelled before it first runs, so it cannot close the listener itself.
        task.add_done_callback(lambda _: listener.close())
        self._listening[folder.name] = task

    async def _accept(self, place: str, listener: socket.socket) -> Never:
        loop, is_failing = asyncio.get_running_loop(), False
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                # Too many files are open, for example: the pod keeps calling, so it is served later. Logged once in a
                # row.
                if not is_failing:
                    LOG.warning(texts.CALL_LOST, extra={"place": place, "reason": str(error)})
                is_failing = True
                await asyncio.sleep(_PAUSE)
                continue
            is_failing = False
            with connection, suppress(TimeoutError, OSError):
                async with asyncio.timeout(_SECONDS):
                    await self._serve(place, connection)
            await asyncio.sleep(_PAUSE)  # a pod that calls again and again costs no more than this

    def close(self) -> None:
        """Stops listening. Folders stay: pods that wait call the next process."""
        for task in self._listening.values():
            task.cancel()
        self._listening.clear()


def _remove(path: Path) -> None:
    """Removes whatever is there, and follows no link. Raises ``OSError``."""
    # A pod of an earlier version could leave a link to any folder of the node.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
