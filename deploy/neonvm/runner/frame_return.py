"""The source pod's interface on the flat network during a migration: returns frames that the guest has not read.

This needs neither privileges nor the controller: QEMU itself reports when the guest stops and resumes.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine, Iterable
from contextlib import ExitStack, suppress
from typing import Final

from deploy.neonvm.addressing import flat_mac
from deploy.neonvm.network.announcement import announcement
from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.frame_handover import SourceFilters
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.qemu.streams import BrokenStreamError, FrameStream
from deploy.neonvm.runner.flat_tap import FlatTap
from deploy.neonvm.runner.returned_frames import ReturnedFrames
from deploy.neonvm.tap import header_size
from protocol.units import Seconds

_CHUNK: Final = 128 * 1024
_RETRY_PAUSE: Final = 0.2


class FrameReturn:
    """The pod's interface on the flat network, an open tap. ``held_for`` is as for ``SourceFilters``."""

    def __init__(self, tap: FlatTap, held_for: Seconds) -> None:
        self._tap = tap
        self._held_for = held_for
        self._cleanup = ExitStack()
        self._filters: SourceFilters | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def announce(self) -> None:
        """Redirect frames for the VM to this pod."""
        with suppress(OSError):  # QEMU announces the guest as well
            # An all-zero virtio-net header: no offload.
            header = bytes(header_size(self._tap.descriptor))
            os.write(self._tap.descriptor, header + announcement(flat_mac(self._tap.address)))

    async def prepare(self, machine: Machine) -> None:
        """Prepare to send the guest. If QEMU cannot divert frames, their senders must retransmit them."""
        await self.restore()
        ours, theirs = socket.socketpair()
        filters = SourceFilters(machine, self._held_for)
        # QEMU gets a duplicate of this end.
        with theirs:
            try:
                await filters.prepare(theirs)
            except GuestError:
                ours.close()
                return
        self._filters = filters
        self._read(ours)
        # Registered last, because a stop can divert frames only with the filters.
        self._cleanup.enter_context(machine.on_event("STOP", self._stopped))
        self._cleanup.enter_context(machine.on_event("RESUME", self.keep))

    def _read(self, end: socket.socket) -> None:
        stream, frames = FrameStream(), ReturnedFrames(self._tap.address)

        def on_readable() -> None:
            with suppress(BlockingIOError, BrokenStreamError):
                if not (part := end.recv(_CHUNK)):
                    loop.remove_reader(end)
                for header, frame in stream.read(part):
                    for ready in frames.take(header, frame):
                        self._write(ready)

        loop = asyncio.get_running_loop()
        end.setblocking(False)
        self._cleanup.callback(end.close)
        loop.add_reader(end, on_readable)
        # Callbacks run in reverse order: the reader is removed before its socket is closed.
        self._cleanup.callback(loop.remove_reader, end)

    def return_frames(self, frames: Iterable[tuple[bytes, bytes]]) -> None:
        """Return the queued ``frames`` and those still in the tap, after a sleeping guest was handed over."""
        descriptor, loop = self._tap.descriptor, asyncio.get_running_loop()
        returned, size = ReturnedFrames(self._tap.address), 0
        with suppress(OSError):  # the tap is gone, and so are its frames
            size = header_size(descriptor)
        for header, frame in frames:
            returned.take(header, frame)

        def on_readable() -> None:
            try:
                data = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return
            except OSError:
                loop.remove_reader(descriptor)
                return
            for ready in returned.take(data[:size], data[size:]):
                self._write(ready)

        loop.add_reader(descriptor, on_readable)
        self._cleanup.callback(loop.remove_reader, descriptor)

    def _write(self, frame: bytes) -> None:
        with suppress(OSError):  # its sender retransmits it
            os.write(self._tap.descriptor, frame)

    def _stopped(self) -> None:
        if self._filters is not None:
            self._start(self._filters.divert())

    def keep(self) -> None:
        """Let the guest read its frames again, because it stays here."""
        if self._filters is not None:
            self._start(self._restore_with_retries())

    async def _restore_with_retries(self) -> None:
        while True:
            try:
                await self.restore()
            except GuestError:
                # A guest whose frames stay diverted is unreachable, so retry until it works or QEMU exits.
                await asyncio.sleep(_RETRY_PAUSE)
            else:
                return

    async def restore(self) -> None:
        """Undo the last ``prepare``. Raises ``GuestError`` if QEMU may still divert frames."""
        if self._filters is not None:
            await self._filters.restore()
            self._filters = None
        self._cleanup.close()

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        # The event loop keeps only weak references to tasks.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Clean up, after QEMU has exited."""
        for task in self._tasks:
            task.cancel()
        self._cleanup.close()
