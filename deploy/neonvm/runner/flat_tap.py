"""The pod's place on the flat network: a tap that the node's network program makes and hands over.

The tap lives in the node's network, so nothing in the pod can change it. What is written to it comes out of the network
as if the guest had sent it.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from deploy.neonvm.addressing import flat_mac
from deploy.neonvm.network.announcement import announcement
from deploy.neonvm.ports import NetworkError
from deploy.neonvm.texts import runner as texts

SOCKET: Final = "tap.sock"
# TUNGETVNETHDRSZ of linux/if_tun.h.
_GET_HEADER_SIZE: Final = 0x800454D7
_LONGEST: Final = 4096  # bytes of an offer
_PAUSE: Final = 0.2


class TapOffer(msgspec.Struct):
    """A tap on offer: the address that it is for, and the network's MTU in bytes."""

    address: str
    mtu: int


@dataclass(frozen=True, slots=True)
class FlatTap:
    """An open tap."""

    descriptor: int
    address: str
    mtu: int

    def announce(self) -> None:
        """Redirects frames for the VM to this pod; the guest's own announcement follows in any case."""
        # Each frame starts with a virtio-net header, whose size QEMU may have changed from the default of 10.
        size = array.array("i", [10])
        try:
            fcntl.ioctl(self.descriptor, _GET_HEADER_SIZE, size)
            # A header of zeros: no offload.
            os.write(self.descriptor, bytes(size[0]) + announcement(flat_mac(self.address)))
        except OSError:
            return


async def handed_over(folder: Path, seconds: float) -> FlatTap:
    """Asks the node's network program for the tap, at its socket in ``folder``. Raises ``NetworkError``. The kubelet
    has mounted the folder into this pod alone, which is how the program knows whose tap it is.
    """
    reason = texts.NO_SOCKET
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await _taken(folder / SOCKET)
                # The program may be restarting, or may not know the pod yet.
                except (FileNotFoundError, ConnectionError) as error:
                    reason = str(error)
                await asyncio.sleep(_PAUSE)
    except TimeoutError as error:
        raise NetworkError(texts.NO_TAP.format(seconds=seconds, reason=reason)) from error
    except (OSError, ValueError, RecursionError) as error:
        raise NetworkError(texts.TAP_UNUSABLE.format(error=error)) from error


async def _taken(path: Path) -> FlatTap:
    """The tap, as soon as it is handed over. Raises ``ConnectionError`` if the program hangs up before."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, str(path))
        message, descriptors = b"", list[int]()
        while not descriptors:
            try:
                message, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, 1)
            except BlockingIOError:
                # asyncio has no recvmsg with descriptors, so the socket is polled.
                await asyncio.sleep(0.02)
                continue
            if not message:
                raise ConnectionError(texts.HUNG_UP)
        offer = msgspec.json.decode(message, type=TapOffer)
        return FlatTap(descriptors[0], offer.address, offer.mtu)
