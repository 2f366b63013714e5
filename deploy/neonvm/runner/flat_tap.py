"""The pod's place on the flat network: a tap that the node's network program makes and hands over.

The tap lives in the node's network, so nothing in the pod can change it. What is written to it comes out of the network
as if the guest had sent it.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import itertools
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from deploy.neonvm.addressing import flat_mac
from deploy.neonvm.network.announcement import announcement
from deploy.neonvm.ports import NetworkError

SOCKET: Final = "runner.sock"
_GET_HEADER_SIZE: Final = 0x800454D7
_LONGEST: Final = 4096
_PAUSE: Final = 0.2


class TapOffer(msgspec.Struct):
    """What comes with a tap: the address that it is for, and the network's MTU in bytes."""

    address: str
    mtu: int


@dataclass(frozen=True, slots=True)
class FlatTap:
    """An open tap."""

    descriptor: int
    address: str
    mtu: int

    def announce(self) -> None:
        """Leads what is sent to the VM to this pod; the guest's own announcement follows where this one is lost."""
        size = array.array("i", [10])
        try:
            fcntl.ioctl(self.descriptor, _GET_HEADER_SIZE, size)
            os.write(self.descriptor, bytes(size[0]) + announcement(flat_mac(self.address)))
        except OSError:
            return


async def handed_over(folder: Path, seconds: float) -> FlatTap:
    """Waits for the node's program to hand over the tap, at a socket in ``folder``. Raises ``NetworkError``.

    The folder is this pod's alone, which is how the node's program knows whose tap it is.
    """
    path = folder / SOCKET
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.setblocking(False)
    try:
        async with asyncio.timeout(seconds):
            await _bound(listener, path)
            return await _taken(listener)
    except TimeoutError as error:
        story = f"the node's network program handed no tap over within {seconds:g} s (does it run on this node?)"
        raise NetworkError(story) from error
    except (OSError, msgspec.DecodeError) as error:
        raise NetworkError(f"no tap could be taken over: {error}") from error
    finally:
        listener.close()
        with suppress(OSError):
            path.unlink(missing_ok=True)


async def _bound(listener: socket.socket, path: Path) -> None:
    """Listens at ``path``, once the node's program lets this pod write there. Raises ``OSError``."""
    for _ in itertools.count():
        if _is_bound(listener, path):
            listener.listen(1)
            return
        await asyncio.sleep(_PAUSE)


def _is_bound(listener: socket.socket, path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o666)
    except PermissionError:
        return False
    return True


async def _taken(listener: socket.socket) -> FlatTap:
    loop = asyncio.get_running_loop()
    connection, _ = await loop.sock_accept(listener)
    with connection:
        said, descriptors = b"", list[int]()
        while not descriptors:
            try:
                said, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, 1)
            except BlockingIOError:
                await asyncio.sleep(0.02)
                continue
            if not said:
                raise OSError("the node's network program hung up")
        offer = msgspec.json.decode(said, type=TapOffer)
        return FlatTap(descriptors[0], offer.address, offer.mtu)
