"""The pod's tap on the flat network, which ``neonvm-network`` creates and passes to the pod.

The tap is in the node's network namespace, so nothing in the pod can reconfigure it. A frame written to it enters the
network as if the guest had sent it.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from deploy.neonvm.ports import NetworkError
from deploy.neonvm.texts import runner as texts

SOCKET: Final = "tap.sock"
_MAX_OFFER: Final = 4096  # bytes of an offer
_PAUSE: Final = 0.2


class TapOffer(msgspec.Struct):
    """Message with the tap's descriptor: the address that it is for, and the network's MTU in bytes."""

    address: str
    mtu: int


@dataclass(frozen=True, slots=True)
class FlatTap:
    """An open tap."""

    descriptor: int
    address: str
    mtu: int


async def receive_tap(folder: Path, seconds: float) -> FlatTap:
    """Get the tap from ``neonvm-network`` at its socket in ``folder``. Raises ``NetworkError``. The kubelet mounts the
    folder only into this pod, which identifies the pod.
    """
    reason = texts.NO_SOCKET
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await _receive(folder / SOCKET)
                # neonvm-network may be restarting, or may not know the pod yet.
                except (FileNotFoundError, ConnectionError) as error:
                    reason = str(error)
                await asyncio.sleep(_PAUSE)
    except TimeoutError as error:
        raise NetworkError(texts.NO_TAP.format(seconds=seconds, reason=reason)) from error
    except (OSError, ValueError, RecursionError) as error:
        raise NetworkError(texts.TAP_UNUSABLE.format(error=error)) from error


async def _receive(path: Path) -> FlatTap:
    """Wait for the tap. Raises ``ConnectionError`` if ``neonvm-network`` closes the connection."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, str(path))
        message, descriptors = b"", list[int]()
        while not descriptors:
            try:
                message, descriptors, _, _ = socket.recv_fds(connection, _MAX_OFFER, 1)
            except BlockingIOError:
                # asyncio cannot receive SCM_RIGHTS, so poll the socket.
                await asyncio.sleep(0.02)
                continue
            if not message:
                raise ConnectionError(texts.CONNECTION_CLOSED)
        offer = msgspec.json.decode(message, type=TapOffer)
        return FlatTap(descriptors[0], offer.address, offer.mtu)
