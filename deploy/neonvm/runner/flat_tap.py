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
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from deploy.neonvm.addressing import flat_mac
from deploy.neonvm.network.announcement import announcement
from deploy.neonvm.ports import GuestError, NetworkError
from deploy.neonvm.qemu.frame_handover import SourceFilters
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.runner.returned_frames import FrameStream, ReturnedFrames
from deploy.neonvm.texts import runner as texts
from protocol.units import Seconds

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


_CHUNK: Final = 128 * 1024
_AGAIN: Final = 0.2


class FrameReturn:
    """The ``FlatPlace`` behind an open tap: what a guest that leaves has not read goes back to the network. That needs
    no controller: QEMU says itself when the guest stops and goes on. ``held_for`` is as for ``SourceFilters``.
    """

    def __init__(self, tap: FlatTap, held_for: Seconds) -> None:
        self._tap = tap
        self._held_for = held_for
        self._held = ExitStack()
        self._filters: SourceFilters | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def announce(self) -> None:
        """Redirects frames for the VM to this pod."""
        self._tap.announce()

    async def prepare(self, machine: Machine) -> None:
        """The guest is about to be sent. If QEMU cannot divert frames, their senders must repeat them."""
        await self.restore()
        ours, theirs = socket.socketpair()
        filters = SourceFilters(machine, self._held_for)
        # QEMU gets a duplicate of this end, so ours is closed in any case.
        with theirs:
            try:
                await filters.prepare(theirs)
            except GuestError:
                ours.close()
                return
        self._filters = filters
        self._read(ours)
        # Registered only now: before the filters exist, a stop could divert nothing.
        self._held.enter_context(machine.hearing("STOP", self._stopped))
        self._held.enter_context(machine.hearing("RESUME", self.keep))

    def _read(self, end: socket.socket) -> None:
        stream, frames = FrameStream(), ReturnedFrames(self._tap.address)

        def hear() -> None:
            with suppress(BlockingIOError):
                if not (part := end.recv(_CHUNK)):
                    loop.remove_reader(end)
                for header, frame in stream.read(part):
                    for ready in frames.take(header, frame):
                        self._give(ready)

        loop = asyncio.get_running_loop()
        end.setblocking(False)
        self._held.callback(end.close)
        loop.add_reader(end, hear)
        # The stack runs backwards: the reader is removed before its socket is closed.
        self._held.callback(loop.remove_reader, end)

    def _give(self, frame: bytes) -> None:
        with suppress(OSError):  # its sender repeats it
            os.write(self._tap.descriptor, frame)

    def _stopped(self) -> None:
        if self._filters is not None:
            self._begin(self._filters.divert())

    def keep(self) -> None:
        """The guest stays here, and reads its frames itself."""
        if self._filters is not None:
            self._begin(self._kept())

    async def _kept(self) -> None:
        while True:
            try:
                await self.restore()
            except GuestError:
                # A guest whose frames stay diverted is deaf, so this is tried until it works or QEMU ends.
                await asyncio.sleep(_AGAIN)
            else:
                return

    async def restore(self) -> None:
        """Raises ``GuestError`` if QEMU may still keep frames from its guest."""
        if self._filters is not None:
            await self._filters.restore()
            self._filters = None
        self._held.close()

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        # The event loop holds tasks weakly; without a reference they may be collected.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """QEMU has ended."""
        for task in self._tasks:
            task.cancel()
        self._held.close()
