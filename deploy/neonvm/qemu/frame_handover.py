"""Hands over the frames that a guest has not read when it stops to the machine in which it goes on (S4.12).

A QEMU whose guest stops takes one frame more and leaves all others where they are; they would be lost with it. So
during a move:

- ``hold`` in the source passes frames on at intervals of the guest's clock, so it keeps what it has when that stops;
- once the guest has stopped ``hand`` sends what was held, and all that still arrives, to ``take`` in the target;
- ``deaf`` in a target on a hub, which sends every frame to everyone, drops what arrives before.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.qemu.qemu_command import DEAF, FLAT_NETDEV
from protocol.runtime.clock import Clock
from protocol.units import Seconds

HOLD: Final = "hold"
HAND: Final = "hand"
TAKE: Final = "take"
SOCKET: Final = "handed"
_PAUSE: Final = Seconds(0.02)
_LOOKS: Final = 50

# In QEMU's words "tx" is towards the guest.
_FILTER: Final[Mapping[str, object]] = {"netdev": FLAT_NETDEV, "queue": "tx"}
_REDIRECTOR: Final[Mapping[str, object]] = {"qom-type": "filter-redirector", "vnet_hdr_support": True, **_FILTER}
_OURS: Final = (DEAF, HAND, HOLD, TAKE)
"""In this order they are removed: what ``hold`` has goes to its guest once ``hand`` is gone."""


class FrameHandover:
    """Keeps frames that were sent to the guest while it moves. Only ``restore`` raises ``GuestError``. This one keeps
    none: senders must repeat the frames that are not read.
    """

    async def prepare(self) -> None:
        """Prepares before the move. If that fails, senders must repeat the frames that are not read."""

    async def divert(self) -> None:
        """The source has stopped: what it has not read, and what still comes to it, goes to the target."""

    async def restore(self) -> None:
        """The source keeps its guest, and reads its frames itself."""

    async def finish(self) -> None:
        """The target has the guest, and its source has ended."""


class SourceFilters:
    """The filters of a machine whose guest leaves it. ``held_for`` is the longest that they delay a frame."""

    def __init__(self, machine: Machine, held_for: Seconds) -> None:
        self._machine = machine
        # In microseconds.
        self._interval = round(held_for * 1e6)

    async def prepare(self, end: socket.socket) -> None:
        """Prepares to send ``end`` the frames that the guest has not read when it stops. Raises ``GuestError``."""
        machine = self._machine
        await _clear(machine)
        try:
            await _connected(machine, end)
            buffer = {"qom-type": "filter-buffer", "id": HOLD, "interval": self._interval}
            await machine.call("object-add", {**buffer, **_FILTER})
            # Switched off until the guest stops: until then it reads its frames itself.
            await machine.call("object-add", {**_REDIRECTOR, "id": HAND, "outdev": SOCKET, "status": "off"})
        except GuestError:
            with suppress(GuestError):
                await self.restore()
            raise

    async def divert(self) -> None:
        """The guest has stopped: its frames go to the target from now on."""
        on = {"path": f"/objects/{HAND}", "property": "status", "value": "on"}
        # First `hand` goes on, and only then does `hold` release its frames, so that they reach the target.
        orders = (self._machine.call("qom-set", on), self._machine.call("object-del", {"id": HOLD}))
        # Both orders are given before the first is answered: every moment counts.
        await asyncio.gather(*orders, return_exceptions=True)

    async def end(self) -> None:
        """Nothing more has to be written. Raises ``GuestError``."""
        await self._machine.call("object-del", {"id": HAND})

    async def restore(self) -> None:
        """The guest reads its frames itself again. Raises ``GuestError`` if that is not certain."""
        await _clear(self._machine)


class DirectHandover(FrameHandover):
    """From one QEMU to another on the same machine."""

    def __init__(self, source: Machine, target: Machine, clock: Clock, held_for: Seconds) -> None:
        self._source = SourceFilters(source, held_for)
        self._target = target
        self._clock = clock
        self._is_prepared = False

    async def prepare(self) -> None:
        """Puts the filters in place; without them the move goes on."""
        ours, theirs = socket.socketpair()
        with ours, theirs, suppress(GuestError):
            await _connected(self._target, theirs)
            await self._target.call("object-add", {**_REDIRECTOR, "id": TAKE, "indev": SOCKET})
            # From here on something has to be removed, even if the source's part fails.
            self._is_prepared = True
            await self._source.prepare(ours)

    async def divert(self) -> None:
        """Sends the source's frames to the target. On a hub the target gets all later ones itself."""
        if self._is_prepared:
            await self._source.divert()
        with suppress(GuestError):
            # Only a target on a hub has it.
            await self._target.call("object-del", {"id": DEAF})
            await self._source.end()  # reached only on a hub, where the target itself gets every frame from here on

    async def restore(self) -> None:
        """Removes what is in the source. Raises ``GuestError`` if that is not certain."""
        if self._is_prepared:
            await self._source.restore()
            self._is_prepared = False

    async def finish(self) -> None:
        """Removes what is in the target, once it has read all."""
        for _ in range(_LOOKS):
            with suppress(GuestError):
                if _has_read_all(await self._target.call("query-chardev")):
                    await _clear(self._target)
                    return
            await self._clock.sleep(_PAUSE)


async def _connected(machine: Machine, end: socket.socket) -> None:
    await machine.give(SOCKET, end)
    address = {"type": "fd", "data": {"str": SOCKET}}
    backend = {"type": "socket", "data": {"addr": address, "server": False}}
    await machine.call("chardev-add", {"id": SOCKET, "backend": backend})


async def _clear(machine: Machine) -> None:
    # QEMU has no /objects before the first object is added, and refuses to list it.
    has_any = "objects" in _named(await machine.call("qom-list", {"path": "/"}), "name")
    objects = _named(await machine.call("qom-list", {"path": "/objects"}), "name") if has_any else {}
    for name in _OURS:
        if name in objects:
            await machine.call("object-del", {"id": name})
    if SOCKET in _named(await machine.call("query-chardev"), "label"):
        await machine.call("chardev-remove", {"id": SOCKET})


def _named(answer: object, key: str) -> dict[str, Mapping[str, object]]:
    entries = answer if isinstance(answer, list) else []
    return {str(entry.get(key)): entry for entry in entries if isinstance(entry, Mapping)}


def _has_read_all(chardevs: object) -> bool:
    ours = _named(chardevs, "label").get(SOCKET)
    # A socket whose other end is gone counts as disconnected once nothing is left to be read.
    return ours is None or str(ours.get("filename", "")).startswith("disconnected")


_SETTLED_WITHIN: Final = 0.5
"""Seconds; frames are not worth a longer standstill."""


class FrameLead:
    """``to_source`` and ``to_target`` redirect the network; ``frames`` takes care of what went to the source unread."""

    def __init__(self, to_source: Callable[[], None], to_target: Callable[[], None], frames: FrameHandover) -> None:
        self._to_source = to_source
        self._to_target = to_target
        self._frames = frames
        self._is_away = False
        self._diverting: asyncio.Task[None] | None = None

    def away(self) -> None:
        """The guest has stopped: in this instant, and once."""
        if not self._is_away:
            self._is_away = True
            # Synchronously, before anything is awaited: each lost frame costs its sender a fifth of a second.
            self._to_target()
            self._diverting = asyncio.ensure_future(self._frames.divert())

    def back(self) -> None:
        """The guest goes on where it was, or will."""
        if self._is_away:
            self._is_away = False
            self._to_source()

    async def settled(self) -> None:
        """Returns once all frames that the source had are on their way."""
        if self._diverting is not None:
            # `wait` does not cancel the task: frames may still follow after the time-out.
            await asyncio.wait((self._diverting,), timeout=_SETTLED_WITHIN)
