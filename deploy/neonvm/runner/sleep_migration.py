"""Migration of a sleeping guest between pods: TLS, disk and saved memory, from runner to runner."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.neonvm.addressing import MIGRATION_PORT
from deploy.neonvm.network.sockets import enable_keepalive, listening
from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.daemon import GuestDaemon
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.runner.frame_return import FrameReturn
from deploy.neonvm.runner.tls_identity import TlsIdentity
from deploy.neonvm.sleep.disk_copy import receive_disk, send_disk
from deploy.neonvm.sleep.migration_source import SleepingSource
from deploy.neonvm.sleep.sleeping import GuestSleep
from deploy.neonvm.sleep.suspend import thaw
from deploy.neonvm.texts import runner as texts
from protocol.runtime.clock import Clock

TARGET_NAME: Final = "target.migration.local"
"""Host name in the certificate of a migration's target."""
_DIAL_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class PodDisk:
    """Disk of a pod's guest. ``asleep`` returns its sleep, None if it is awake."""

    path: Path
    asleep: Callable[[], GuestSleep | None]
    clock: Clock
    port: int = MIGRATION_PORT


class SleepMigration:
    """Migration endpoint of a pod whose guest is asleep, or is to arrive asleep. ``disk`` is None if unsupported."""

    def __init__(self, disk: PodDisk | None, tls: TlsIdentity) -> None:
        self._disk = disk
        self._tls = tls
        self._certificate: tuple[str, str] | None = None
        self._source: tuple[GuestSleep, SleepingSource] | None = None
        self._has_sent_disk = False
        self._arriving = ExitStack()
        self._thawing: asyncio.Future[None] | None = None
        self._handing_over: asyncio.Future[None] | None = None

    @property
    def is_possible(self) -> bool:
        """True if the guest can be migrated while asleep."""
        return self._disk is not None

    def machine(self) -> SleepingSource | None:
        """The guest as a migration source; None if it is not asleep, or is waking."""
        sleep = None if self._disk is None else self._disk.asleep()
        if self._disk is None or sleep is None or sleep.is_waking:
            return None
        if self._source is None or self._source[0] is not sleep:
            self._source = sleep, SleepingSource(sleep, self._disk.clock, self._connect)
        return self._source[1]

    def certify(self, certificate: str, authority: str) -> None:
        """Use this certificate from now on, and trust only its CA."""
        self._certificate, self._has_sent_disk = (certificate, authority), False

    def _context(self, *, is_server: bool) -> ssl.SSLContext:
        """TLS context with the migration's certificate. Raises ``GuestError`` and ``ssl.SSLError``."""
        if self._certificate is None:
            raise GuestError(texts.NO_MIGRATION)
        return self._tls.context(*self._certificate, is_server=is_server)

    async def send_disk(self, host: str) -> None:
        """Send the sleeping guest's disk. Raises ``GuestError``."""
        disk = self._disk
        if disk is None or self.machine() is None:
            raise GuestError(texts.NOT_ASLEEP)
        certificate = self._certificate
        try:
            await send_disk(host, disk.port, self._context(is_server=False), TARGET_NAME, disk.path)
        except OSError as error:
            raise GuestError(texts.DISK_NOT_SENT.format(error=error)) from error
        # Another migration may have begun in the meantime, to a target without the disk.
        if certificate is self._certificate:
            self._has_sent_disk = True

    async def receive_disk(self, wildcard: str, machine: Machine, daemon: GuestDaemon) -> None:
        """Listen on the address ``wildcard`` for the disk of a sleeping guest, and thaw the guest once it runs in
        ``machine``. Raises ``GuestError``.
        """
        disk = self._disk
        if disk is None:
            raise GuestError(texts.NO_MIGRATION)
        # A repeated order must not find the port in use, nor write the disk while an earlier one still does.
        self._arriving.close()
        try:
            context = self._context(is_server=True)
            family = socket.AF_INET6 if ":" in wildcard else socket.AF_INET
            listener = listening(socket.socket(family, socket.SOCK_STREAM), wildcard, disk.port)
            end_copy = await receive_disk(listener, context, disk.path)
        except OSError as error:
            raise GuestError(texts.DISK_NOT_RECEIVED.format(error=error)) from error

        def on_resume() -> None:
            # Only once; from here on nothing but the guest may write the disk.
            self._arriving.close()
            self._thawing = asyncio.ensure_future(thaw(daemon, disk.clock))

        self._arriving.callback(end_copy)
        self._arriving.enter_context(machine.on_event("RESUME", on_resume))

    async def _connect(self, uri: str) -> socket.socket:
        """Connect to the target, which must have the disk, at QEMU's ``uri``. Raises ``GuestError`` and ``OSError``."""
        if not self._has_sent_disk:
            raise GuestError(texts.DISK_FIRST)
        host, _, port = uri.removeprefix("tcp:").rpartition(":")
        context = self._context(is_server=False)
        return await asyncio.to_thread(_dial, host.removeprefix("[").removesuffix("]"), int(port), context)

    async def hand_over(self, flat: FrameReturn | None) -> None:
        """Delete the image and stop the stand-in, before the target may run the guest."""
        # Shielded, because the caller may disconnect.
        if self._handing_over is None:
            self._handing_over = asyncio.ensure_future(self._hand_over(flat))
        await asyncio.shield(self._handing_over)

    async def _hand_over(self, flat: FrameReturn | None) -> None:
        sleep = None if self._disk is None else self._disk.asleep()
        if sleep is not None:
            sleep.image.delete()
            frames = await sleep.leave()
            if flat is not None:
                flat.return_frames(frames)

    def close(self) -> None:
        """Stop listening; the pod is ending."""
        self._arriving.close()
        if self._thawing is not None:
            self._thawing.cancel()


def _dial(host: str, port: int, context: ssl.SSLContext) -> socket.socket:
    plain = socket.create_connection((host, port), _DIAL_SECONDS)
    try:
        # The sending thread has no timeout, so the kernel must detect a dead peer.
        enable_keepalive(plain)
        end = context.wrap_socket(plain, server_hostname=TARGET_NAME)
        end.settimeout(None)
    except BaseException:
        plain.close()
        raise
    return end
