"""A sleeping guest as the source of a ``Transfer``: streams its image to the target.

Implements the QMP commands of a migration as a QEMU with a stopped guest would. The transfer decides which end runs the
guest; the image is deleted exactly when it decides for the target.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.frame_handover import FrameHandover, inject_frames, stop_diverting
from deploy.neonvm.qemu.machine import Decided, Machine, retried
from deploy.neonvm.qemu.qemu_process import EventListeners
from deploy.neonvm.qemu.transfer import TransferEndpoints
from deploy.neonvm.sleep.sleeping import GuestSleep
from protocol.runtime.clock import Clock
from protocol.units import Seconds

_SENDING, _SENT, _FAILED, _CANCELLED = "active", "completed", "failed", "cancelled"
_PAUSED: Final = "postmigrate"
_SUSPENDED: Final = "suspended"
"""QEMU's names of migration states and run states."""

_POLL: Final = 0.02
"""Seconds between polls of a target that has received everything."""
_REFUSALS: Final = 4
_REFUSAL_PAUSE: Final = Seconds(0.5)
_HEARS_WITHIN: Final = Seconds(30.0)
_REPLAYED_WITHIN: Final = Seconds(1.0)
"""Senders retransmit most frames, and clients are waiting."""

Connect = Callable[[str], Awaitable[socket.socket]]
"""Connects to the target at a QEMU migration URI. Raises ``OSError`` and ``GuestError``."""


class SleepingSource(EventListeners):
    """``Machine`` of a sleeping guest. Its only event is ``MIGRATION``, at the end of sending."""

    def __init__(self, sleep: GuestSleep, clock: Clock, connect: Connect | None = None) -> None:
        super().__init__()
        self._sleep = sleep
        self._clock = clock
        self._connect = self._named_socket if connect is None else connect
        self._ends: dict[str, socket.socket] = {}
        self._sending: asyncio.Task[None] | None = None
        self._end: socket.socket | None = None
        self._open = ExitStack()
        self._changed = asyncio.Event()
        self._began = clock.now()
        self._sent = 0
        self._status, self._fault = "", ""

    @property
    def alive(self) -> bool:
        """True while the guest is asleep."""
        return not self._sleep.is_over.is_set()

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """Execute a QMP command of a migration; ignore others. Raises ``GuestError`` if the guest is waking."""
        match command:
            case "migrate":
                self._begin(str((arguments or {}).get("uri", "")))
            case "migrate_cancel":
                await self._stop()
            case "cont":
                self._status = ""
            case "quit":
                await self.end()
            case "query-migrate":
                return self._report()
            case "query-status":
                return {"status": _PAUSED if self._status == _SENT else _SUSPENDED}
        return {}

    def _begin(self, uri: str) -> None:
        if self._sleep.is_waking:
            raise GuestError("the guest is waking")
        if self._sending is None or self._sending.done():
            self._began, self._sent, self._fault = self._clock.now(), 0, ""
            self._status, self._end = _SENDING, None
            self._open.close()
            self._sending = asyncio.create_task(self._send(uri))

    async def _send(self, uri: str) -> None:
        try:
            end = self._open.enter_context(await self._connect(uri))
            # A second descriptor for shutdown: ending TLS under the thread would make it send plain text.
            self._end = self._open.enter_context(socket.fromfd(end.fileno(), end.family, end.type))
            await asyncio.to_thread(self._sleep.image.send, end, self._count)
            # Not closed yet: unread input, such as TLS tickets, would turn the close into a reset.
            self._end.shutdown(socket.SHUT_WR)
            self._status = _SENT
        except (GuestError, OSError) as error:
            self._status, self._fault = _FAILED, str(error)
        finally:
            self._changed.set()
            self.dispatch("MIGRATION")

    def _count(self, part: int) -> None:
        self._sent += part

    async def _named_socket(self, uri: str) -> socket.socket:
        """The socket passed with ``pass_socket`` under the name in ``uri``."""
        end = self._ends.pop(uri.removeprefix("fd:"), None)
        if end is None:
            raise GuestError(f"cannot send a sleeping guest to {uri}")
        end.setblocking(True)
        return end

    async def _stop(self) -> None:
        """Stop sending. The image stays."""
        sending = self._sending
        if sending is not None and not sending.done():
            # Makes the thread fail.
            if self._end is not None:
                with suppress(OSError):
                    self._end.shutdown(socket.SHUT_RDWR)
            else:
                sending.cancel()
            await asyncio.wait((sending,))
        self._open.close()
        for end in self._ends.values():
            end.close()
        self._ends.clear()
        if self._status:
            self._status = _CANCELLED

    def _report(self) -> Mapping[str, object]:
        size = self._sleep.snapshot.saved.value
        ram = {"total": size, "transferred": self._sent, "remaining": max(0, size - self._sent)}
        total = round((self._clock.now() - self._began) * 1000)
        return {"status": self._status, "total-time": total, "error-desc": self._fault, "ram": ram}

    async def pass_socket(self, name: str, end: socket.socket) -> None:
        """Store a duplicate of the socket under ``name``."""
        if (before := self._ends.pop(name, None)) is not None:
            before.close()
        self._ends[name] = end.dup()

    async def wait_for_event(self, seconds: float) -> None:
        """Wait until sending has ended, at most ``seconds``."""
        with suppress(TimeoutError):
            # After the last byte the target is ready in a moment, and clients may be waiting.
            async with asyncio.timeout(_POLL if self._status == _SENT else seconds):
                await self._changed.wait()
        self._changed.clear()

    def event_time(self, event: str) -> float | None:  # noqa: ARG002 - a part of the port
        """None: the guest did not stop for the migration."""
        return None

    async def failed(self) -> str:
        """Wait until the sleep is over."""
        await self._sleep.is_over.wait()
        return "the guest is no longer asleep"

    def output_tail(self) -> str:
        """Reason of the last failure to send."""
        return self._fault or "nothing"

    async def kill(self) -> None:
        """Abandon the sleep: the guest can only boot from its disk."""
        await self._stop()
        await self._sleep.abandon()

    async def end(self) -> None:
        """Same as ``kill``."""
        await self.kill()


class QueuedFramesHandover(FrameHandover):
    """Replays the queued frames to the target, whose network has offload headers of ``header_size`` bytes."""

    def __init__(self, sleep: GuestSleep, target: Machine, clock: Clock, header_size: Callable[[], int]) -> None:
        self._sleep = sleep
        self._target = target
        self._clock = clock
        self._header_size = header_size

    async def divert(self) -> None:
        """Stop the stand-in and hand its queued frames to the target, which is about to run."""
        frames, target = await self._sleep.leave(self._header_size()), self._target
        # A target on a hub that stays deaf is unreachable, and so lost. Other targets have nothing to remove.
        for step, within in (
            (partial(stop_diverting, target), _HEARS_WITHIN),
            (partial(inject_frames, target, frames, self._clock), _REPLAYED_WITHIN),
        ):
            with suppress(GuestError):
                await retried(target, step, self._clock, within)

    async def restore(self) -> None:
        """Keep sleeping here: the target did not run."""
        self._sleep.stay()


def sleeping_endpoints(ends: TransferEndpoints, sleep: GuestSleep, header_size: Callable[[], int]) -> TransferEndpoints:
    """Endpoints of a transfer within this process whose source is asleep. The target's network has offload headers of
    ``header_size`` bytes.
    """

    is_given, refusals = False, 0

    async def decide(requested: Decided) -> Decided:
        nonlocal is_given, refusals
        if requested is Decided.GIVEN:
            # Before the target may run: from here on the source could only boot from its disk.
            sleep.image.delete()
            is_given = True
        elif requested is Decided.KEPT and is_given and refusals < _REFUSALS:
            # Retry a target that refused to run.
            refusals += 1
            await ends.clock.sleep(_REFUSAL_PAUSE)
            return Decided.GIVEN
        return requested

    source, frames = (
        SleepingSource(sleep, ends.clock),
        QueuedFramesHandover(sleep, ends.target, ends.clock, header_size),
    )
    return replace(ends, source=source, frames=frames, decide=decide)
