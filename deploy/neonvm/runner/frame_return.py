"""The pod's place on the flat network while its guest leaves it: what the guest has not read goes back to the network.

No privilege is needed for that, and no controller: QEMU says itself when the guest stops, and when it goes on.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine, Iterable
from contextlib import ExitStack, suppress
from typing import Final

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.frame_handover import SourceFilters
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.qemu.streams import BrokenStreamError, FrameStream
from deploy.neonvm.runner.flat_tap import FlatTap
from deploy.neonvm.runner.returned_frames import ReturnedFrames
from deploy.neonvm.tap import header_size
from protocol.units import Seconds

_CHUNK: Final = 128 * 1024
_AGAIN: Final = 0.2


class FrameReturn:
    """The ``FlatPlace`` behind an open tap. ``held_for`` is as for ``SourceFilters``."""

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
        self._held.enter_context(machine.on_event("STOP", self._stopped))
        self._held.enter_context(machine.on_event("RESUME", self.keep))

    def _read(self, end: socket.socket) -> None:
        stream, frames = FrameStream(), ReturnedFrames(self._tap.address)

        def hear() -> None:
            with suppress(BlockingIOError, BrokenStreamError):
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

    def give_back(self, frames: Iterable[tuple[bytes, bytes]]) -> None:
        """The guest was given away while it slept, and nobody reads the tap: what was kept for it goes back as well."""
        descriptor, loop = self._tap.descriptor, asyncio.get_running_loop()
        returned, size = ReturnedFrames(self._tap.address), 0
        with suppress(OSError):  # a tap that is gone has no frames
            size = header_size(descriptor)
        for header, frame in frames:
            returned.take(header, frame)

        def hear() -> None:
            try:
                data = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return
            except OSError:
                loop.remove_reader(descriptor)
                return
            for ready in returned.take(data[:size], data[size:]):
                self._give(ready)

        loop.add_reader(descriptor, hear)
        self._held.callback(loop.remove_reader, descriptor)

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
