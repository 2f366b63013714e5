"""Hands over frames that a paused guest has not read to the machine in which it resumes (S4.12).

When its guest stops, QEMU reads one more frame and leaves the rest in the backend, where they would be lost. So QEMU's
netfilter objects do the following during a migration:

- ``hold`` (filter-buffer) in the source releases frames at intervals of the guest's clock, so when that stops it keeps
  what it has;
- ``hand`` (filter-redirector) sends the held frames, and all later ones, to ``take`` in the target once the guest has
  stopped;
- ``deaf`` in a target on a hub, which floods every frame, drops frames until then.

Sleep diverts frames in the same way, and ``inject_frames`` injects frames into a guest that wakes or stays awake.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.qemu.qemu_command import DEAF, FLAT_NETDEV
from deploy.neonvm.qemu.streams import encode_redirected
from protocol.runtime.clock import Clock
from protocol.units import Seconds

HOLD: Final = "hold"
HAND: Final = "hand"
TAKE: Final = "take"
SOCKET: Final = "handed"
INJECT: Final = "put-in"
_PAUSE: Final = Seconds(0.02)
_ATTEMPTS: Final = 50

# QEMU's "tx" queue is the direction towards the guest.
_FILTER: Final[Mapping[str, object]] = {"netdev": FLAT_NETDEV, "queue": "tx"}
_REDIRECTOR: Final[Mapping[str, object]] = {"qom-type": "filter-redirector", "vnet_hdr_support": True, **_FILTER}
_FILTERS: Final = (DEAF, HAND, HOLD, TAKE, INJECT)
"""In the order of removal: once ``hand`` is gone, ``hold`` releases its frames to the guest."""


class FrameHandover:
    """Preserves frames for a guest during its migration. Only ``restore`` raises ``GuestError``. This implementation
    preserves none, so senders must retransmit.
    """

    async def prepare(self) -> None:
        """Prepare for the migration. If that fails, senders must retransmit unread frames."""

    async def divert(self) -> None:
        """After the source has stopped, divert unread and later frames to the target."""

    async def restore(self) -> None:
        """After an aborted migration, let the source read its frames again."""

    async def finish(self) -> None:
        """Clean up after a successful migration."""


class SourceFilters:
    """The filters of a migration source. They delay a frame by at most ``held_for``."""

    def __init__(self, machine: Machine, held_for: Seconds) -> None:
        self._machine = machine
        # In microseconds.
        self._interval = round(held_for * 1e6)

    async def prepare(self, end: socket.socket) -> None:
        """Prepare to send unread frames to ``end`` when the guest stops. Raises ``GuestError``."""
        machine = self._machine
        await stop_diverting(machine)
        try:
            await _connected(machine, end)
            buffer = {"qom-type": "filter-buffer", "id": HOLD, "interval": self._interval}
            await machine.call("object-add", {**buffer, **_FILTER})
            # Off until the guest stops, so that it reads its frames until then.
            await machine.call("object-add", {**_REDIRECTOR, "id": HAND, "outdev": SOCKET, "status": "off"})
        except GuestError:
            with suppress(GuestError):
                await self.restore()
            raise

    async def divert(self) -> None:
        """Divert frames to the target, once the guest has stopped."""
        on = {"path": f"/objects/{HAND}", "property": "status", "value": "on"}
        # `hand` first: `hold` releases its frames when it is deleted, and they must reach the target.
        commands = (self._machine.call("qom-set", on), self._machine.call("object-del", {"id": HOLD}))
        # Pipelined, because the guest is paused meanwhile.
        await asyncio.gather(*commands, return_exceptions=True)

    async def is_diverting(self) -> bool:
        """Return True if frames for the guest are diverted. Raises ``GuestError``."""
        return await self._machine.call("qom-get", {"path": f"/objects/{HAND}", "property": "status"}) == "on"

    async def end(self) -> None:
        """Stop diverting. Raises ``GuestError``."""
        await self._machine.call("object-del", {"id": HAND})

    async def restore(self) -> None:
        """Remove the filters, so that the guest reads its frames. Raises ``GuestError`` if that is not certain."""
        await stop_diverting(self._machine)


class DirectHandover(FrameHandover):
    """From one QEMU to another on the same host."""

    def __init__(self, source: Machine, target: Machine, clock: Clock, held_for: Seconds) -> None:
        self._source = SourceFilters(source, held_for)
        self._target = target
        self._clock = clock
        self._is_prepared = False

    async def prepare(self) -> None:
        """Add the filters. The migration continues without them if that fails."""
        ours, theirs = socket.socketpair()
        with ours, theirs, suppress(GuestError):
            await _connected(self._target, theirs)
            await self._target.call("object-add", {**_REDIRECTOR, "id": TAKE, "indev": SOCKET})
            # From here on there is something to remove, even if the source fails.
            self._is_prepared = True
            await self._source.prepare(ours)

    async def divert(self) -> None:
        """Divert the source's frames to the target. On a hub, the target receives later frames itself."""
        if self._is_prepared:
            await self._source.divert()
        with suppress(GuestError):
            # Fails unless the target is on a hub, where it receives every frame itself from here on.
            await self._target.call("object-del", {"id": DEAF})
            await self._source.end()

    async def restore(self) -> None:
        """Remove the filters of the source. Raises ``GuestError`` if that is not certain."""
        if self._is_prepared:
            await self._source.restore()
            self._is_prepared = False

    async def finish(self) -> None:
        """Remove the filters of the target once it has read all frames."""
        for _ in range(_ATTEMPTS):
            with suppress(GuestError):
                if _has_read_all(await self._target.call("query-chardev")):
                    await stop_diverting(self._target)
                    return
            await self._clock.sleep(_PAUSE)


def diverting(descriptor: int) -> Sequence[str]:
    """Extra arguments of a QEMU whose guest does not run yet: divert its frames to the socket ``descriptor`` until
    ``stop_diverting``.
    """
    options = f"filter-redirector,id={HAND},netdev={FLAT_NETDEV},queue=tx,outdev={SOCKET},vnet_hdr_support=on"
    return ("-chardev", f"socket,id={SOCKET},fd={descriptor}", "-object", options)


async def inject_frames(machine: Machine, frames: Iterable[tuple[bytes, bytes]], clock: Clock) -> None:
    """Inject ``frames``, each a virtio-net header and the frame, as if they came from the network. A paused guest
    receives them when it runs. May be repeated. Raises ``GuestError``.
    """
    stream = b"".join(encode_redirected(header, frame) for header, frame in frames)
    if not stream:
        return
    # An earlier attempt may have left them.
    await stop_diverting(machine, (INJECT,), (INJECT,))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        await _connected(machine, theirs, INJECT)
        await machine.call("object-add", {**_REDIRECTOR, "id": INJECT, "indev": INJECT})
        ours.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_sendall(ours, stream)
        except OSError as error:
            raise GuestError(f"cannot inject frames into QEMU: {error}") from error
    for _ in range(_ATTEMPTS):
        if _has_read_all(await machine.call("query-chardev"), INJECT):
            return
        await clock.sleep(_PAUSE)


async def _connected(machine: Machine, end: socket.socket, name: str = SOCKET) -> None:
    await machine.pass_socket(name, end)
    address = {"type": "fd", "data": {"str": name}}
    backend = {"type": "socket", "data": {"addr": address, "server": False}}
    await machine.call("chardev-add", {"id": name, "backend": backend})


async def stop_diverting(
    machine: Machine, filters: Sequence[str] = _FILTERS, chardevs: Sequence[str] = (SOCKET, INJECT)
) -> None:
    """Remove ``filters`` and ``chardevs`` if they exist, so that the guest reads its frames. Raises ``GuestError`` if
    that is not certain.
    """
    await delete_objects(machine, filters)
    existing = _named(await machine.call("query-chardev"), "label")
    for name in chardevs:
        if name in existing:
            await machine.call("chardev-remove", {"id": name})


async def delete_objects(machine: Machine, names: Sequence[str]) -> None:
    """Delete the links in ``names`` that exist, in this order. Raises ``GuestError`` if that is not certain."""
    # Before the first object is added, QEMU has no /objects and fails to list it.
    has_any = "objects" in _named(await machine.call("qom-list", {"path": "/"}), "name")
    objects = _named(await machine.call("qom-list", {"path": "/objects"}), "name") if has_any else {}
    for name in names:
        if name in objects:
            await machine.call("object-del", {"id": name})


def _named(answer: object, key: str) -> dict[str, Mapping[str, object]]:
    entries = answer if isinstance(answer, list) else []
    return {str(entry.get(key)): entry for entry in entries if isinstance(entry, Mapping)}


def _has_read_all(chardevs: object, name: str = SOCKET) -> bool:
    ours = _named(chardevs, "label").get(name)
    # A closed socket counts as disconnected once everything has been read.
    return ours is None or str(ours.get("filename", "")).startswith("disconnected")


_SETTLED_WITHIN: Final = 0.5
"""Seconds; longer downtime costs more than the frames."""


class FrameRouting:
    """Switches the guest's frames between the ends. ``to_source`` and ``to_target`` redirect the network; ``frames``
    hands over what the source received unread.
    """

    def __init__(self, to_source: Callable[[], None], to_target: Callable[[], None], frames: FrameHandover) -> None:
        self._to_source = to_source
        self._to_target = to_target
        self._frames = frames
        self._is_away = False
        self._diverting: asyncio.Task[None] | None = None

    def away(self) -> None:
        """Redirect to the target when the guest stops. Repeated calls do nothing."""
        if not self._is_away:
            self._is_away = True
            # Synchronously, before any await: each lost frame costs its sender a retransmission timeout of 0.2 s.
            self._to_target()
            self._diverting = asyncio.ensure_future(self._frames.divert())

    def back(self) -> None:
        """Redirect to the source again, whose guest resumes."""
        if self._is_away:
            self._is_away = False
            self._to_source()

    async def settled(self) -> None:
        """Wait until the source's frames have been diverted, at most half a second."""
        if self._diverting is not None:
            # `wait` does not cancel the task, so frames may follow after the timeout.
            await asyncio.wait((self._diverting,), timeout=_SETTLED_WITHIN)
