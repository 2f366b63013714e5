"""Puts a running guest to sleep. If any step fails or is interrupted, the guest resumes with all its frames.

Frames are diverted before the database is checked. Otherwise the guest could acknowledge a query between the check and
the stop, and nothing would wake it for that query.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from deploy.neonvm.ports import FellAsleep, GuestError, SleepRefusedError
from deploy.neonvm.qemu.daemon import GuestDaemon
from deploy.neonvm.qemu.frame_handover import SourceFilters, inject_frames, stop_diverting
from deploy.neonvm.qemu.machine import Machine, plug_memory, retried
from deploy.neonvm.sleep.connections import MAX_CONNECTIONS
from deploy.neonvm.sleep.image import SleepImage
from deploy.neonvm.sleep.network_stand_in import NetworkStandIn
from deploy.neonvm.sleep.saving import flush, save
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Seconds

Result = TypeVar("Result")

_SPARE_SECONDS: Final = 15.0
_FREEZE_SECONDS: Final = 12.0
"""With little CPU, the guest takes up to 5 s to check its database, and a periodic check may already be running."""
_THAW_ATTEMPTS: Final = 10
_CLOCK_ATTEMPTS: Final = 5
"""The guest may be busy for the first five seconds, and each attempt waits for two."""
_UNDONE_WITHIN: Final = Seconds(30.0)
_PAUSE: Final = Seconds(0.1)
_LATE: Final = Seconds(0.2)
"""How late the clock of a woken guest may be, if the guest is not too busy for it."""
_PLUG_PAUSE: Final = Seconds(0.05)
OK: Final = 200
STARTED_WITHIN: Final = Seconds(30.0)
"""How long to retry starting QEMU, for example while the node lacks memory: if that fails, the guest's pod ends, and
its disk may be lost with it.
"""
START_PAUSE: Final = Seconds(1.0)

Boot = Callable[[], Awaitable[Machine]]
"""Boots the guest from its disk. Raises ``GuestError``."""


class _Frozen(msgspec.Struct):
    """Response to ``PUT /freeze``: number of open sessions."""

    sessions: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


@dataclass(frozen=True, slots=True)
class Suspend:
    """One attempt to put a guest to sleep. ``disk`` is its image; ``held_for`` as for ``SourceFilters``."""

    vm: str
    machine: Machine
    daemon: GuestDaemon
    stand_in: NetworkStandIn
    image: SleepImage
    clock: Clock
    held_for: Seconds
    disk: Path
    has_memory_device: bool
    boot: Boot

    async def run(self) -> FellAsleep:
        """Save the guest, and leave its QEMU stopped and ready to be ended. Raises ``SleepRefusedError`` if the guest
        keeps running, as it does after every failure, or boots because QEMU has ended or could not resume it, and
        ``GuestError`` if it cannot boot.
        """
        try:
            async with AsyncExitStack() as undo:
                undo.callback(self.stand_in.close)
                done = await self._steps(undo)
                undo.pop_all()
                return done
        except GuestError as error:
            if self.machine.alive:
                raise SleepRefusedError(str(error)) from error
            await booted(self.boot, self.clock)
            raise SleepRefusedError(f"{error}; the guest boots from its disk") from error

    async def _steps(self, undo: AsyncExitStack) -> FellAsleep:
        # A guest that stays awake must keep the memory and the page cache that the next steps take from it.
        self.image.check_room()
        async with self._thawed_after():
            await self._freeze()
        # Unplug first, so that the guest only has to clear what remains. If either fails, the image is just larger.
        if self.has_memory_device:
            await plug_memory(self.machine, Bytes(0), self.clock, _PLUG_PAUSE)
        with suppress(GuestError):
            await self.daemon.ask("PUT", "/spare", seconds=_SPARE_SECONDS)
        await self._divert(undo)
        # Register each undo before its step: a command without a response may still have taken effect.
        async with self._thawed_after() as undo_freeze:
            sessions = await self._unless_woken(self._freeze())
            undo_freeze.pop_all()
        undo.push_async_callback(self._thaw_if_alive)
        undo.push_async_callback(self._retry_or_kill, partial(self.machine.call, "cont"))
        await self._unless_woken(self.machine.call("stop"))
        undo.callback(self.image.delete)
        saved = await self._unless_woken(save(self.machine, self.image))
        # If the node dies later, the guest boots from this disk. QEMU writes nothing after this point, and if the
        # flush fails, the guest can still resume.
        await self._unless_woken(asyncio.to_thread(flush, self.disk))
        return FellAsleep(saved, sessions)

    @asynccontextmanager
    async def _thawed_after(self) -> AsyncIterator[AsyncExitStack]:
        """Thaw the guest, which has not stopped, at the end of the context, unless that was removed from the stack."""
        async with AsyncExitStack() as undo:
            undo.push_async_callback(thaw, self.daemon, self.clock, has_stopped=False)
            yield undo

    async def _divert(self, undo: AsyncExitStack) -> None:
        ours, theirs = socket.socketpair()
        filters = SourceFilters(self.machine, self.held_for)
        # QEMU gets a duplicate of this end.
        async with AsyncExitStack() as unless_prepared:
            unless_prepared.enter_context(theirs)
            unless_prepared.callback(ours.close)
            # Until frames are diverted, the filters only delay them.
            unless_prepared.push_async_callback(self._retried, partial(stop_diverting, self.machine))
            await filters.prepare(theirs)
            unless_prepared.pop_all()
            theirs.close()
        self.stand_in.read_diverted(ours)
        undo.push_async_callback(self._undivert)
        await filters.divert()
        # A frame that reached the guest after the check would be lost.
        if not await filters.is_diverting():
            raise GuestError(f"{self.vm}: QEMU did not divert the guest's frames")

    async def _retry_or_kill(self, step: Callable[[], Awaitable[object]]) -> None:
        """Retry ``step``, and kill QEMU if it never works: a guest that is paused, or has no frames, is unreachable."""
        if not await self._retried(step):
            await self.machine.kill()

    async def _retried(self, step: Callable[[], Awaitable[object]]) -> bool:
        """Retry ``step`` until it works, for half a minute at most; return False if it did not, or QEMU has exited."""
        with suppress(GuestError):
            await retried(self.machine, step, self.clock, _UNDONE_WITHIN)
            return True
        return False

    async def _undivert(self) -> None:
        """Give the datapath back to the guest, and replay the queued frames."""
        await self._retry_or_kill(partial(stop_diverting, self.machine))
        # Frames may still be in flight to us, among them FINs that we have acknowledged.
        await self.stand_in.drain()
        # Without them the guest still runs, and senders retransmit most of them.
        await self._retried(lambda: inject_frames(self.machine, self.stand_in.queued_frames(), self.clock))

    async def _freeze(self) -> int:
        answer = await self.daemon.ask("PUT", "/freeze", seconds=_FREEZE_SECONDS)
        if answer.status != OK:
            raise SleepRefusedError(f"{self.vm} is busy: {answer.text[:200]}")
        try:
            sessions = msgspec.json.decode(answer.text, type=_Frozen).sessions
        except (msgspec.DecodeError, RecursionError) as error:
            raise SleepRefusedError(f"{self.vm}: invalid response to /freeze: {error}") from error
        # The stand-in cannot answer the keepalives of more.
        if sessions > MAX_CONNECTIONS:
            raise SleepRefusedError(
                f"{self.vm} has {sessions} open sessions; at most {MAX_CONNECTIONS} can be kept alive during sleep"
            )
        return sessions

    async def _thaw_if_alive(self) -> None:
        # QEMU may have been killed, and its owner should not wait for all attempts before it starts the guest again.
        if self.machine.alive:
            await thaw(self.daemon, self.clock)

    async def _unless_woken(self, step: Coroutine[object, object, Result]) -> Result:
        """Return the result of ``step``. Raises ``SleepRefusedError`` as soon as a frame needs the guest."""
        task, wake = asyncio.ensure_future(step), asyncio.ensure_future(self.stand_in.wait_for_wake())
        try:
            await asyncio.wait((task, wake), return_when=asyncio.FIRST_COMPLETED)
            # A frame may have arrived as the step finished.
            if wake.done():
                raise SleepRefusedError(f"{self.vm} was needed while falling asleep: {wake.result()}")
            return task.result()
        finally:
            wake.cancel()
            task.cancel()
            # Let the cancelled step clean up before anything is undone.
            await asyncio.wait((task,))


async def booted(boot: Boot, clock: Clock) -> Machine:
    """Boot a guest with ``boot``, which is retried. Raises ``GuestError``."""
    return await retried(None, boot, clock, STARTED_WITHIN, START_PAUSE)


async def thaw(daemon: GuestDaemon, clock: Clock, *, has_stopped: bool = True) -> None:
    """Thaw the guest's database, and set its clock if the guest ``has_stopped`` meanwhile. Gives up after repeated
    failures: the guest thaws itself.
    """
    lag = None
    for _ in range(_THAW_ATTEMPTS):
        if (lag := await daemon.thaw(clock, has_stopped=has_stopped)) is not None:
            break
        await clock.sleep(_PAUSE)
    if not has_stopped or lag is None:
        return
    # A slow guest may have set its clock only just before it answered, so the clock may be late. A request without a
    # response may still be executed, with the time at which it was sent. So only a prompt response ends this.
    for _ in range(_CLOCK_ATTEMPTS):
        if lag is not None and lag <= _LATE:
            return
        lag = await daemon.set_clock(clock)
