"""Sleep and wake of the guest of one pod. Requests are idempotent and may be concurrent.

A request runs to its end even if its caller disconnects, because the caller may be a controller that has died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from deploy.neonvm.ports import FellAsleep, GuestError, GuestPhase, GuestState, SleepingGuest, SleepRefusedError, Woken
from deploy.neonvm.texts import runner as texts
from protocol.units import Bytes, MilliCpu

_Result = TypeVar("_Result")


class NotAsleepError(GuestError):
    """The guest is not asleep."""


class PodSleep:
    """Sleep of ``guest`` (None: it cannot sleep). ``sleeps`` counts its sleeps, and so identifies the last."""

    def __init__(self, guest: SleepingGuest | None) -> None:
        self.sleeps = 0
        self._guest = guest
        self._before: GuestState | None = None
        self._falling: asyncio.Task[FellAsleep] | None = None
        self._listening: asyncio.Task[str] | None = None
        self._waking: asyncio.Task[Woken] | None = None
        self._woken: Woken | None = None
        self._superseded = asyncio.Event()

    @property
    def is_on(self) -> bool:
        """True from the request to sleep until the guest runs again; nothing else may control the guest meanwhile."""
        return self._falling is not None

    @property
    def fell_asleep(self) -> FellAsleep | None:
        """Sessions and image size of the current sleep; None if the guest is not asleep."""
        falling = self._falling
        # A failed task resets the field before it is done.
        return falling.result() if falling is not None and falling.done() and not falling.cancelled() else None

    @property
    def woken_by(self) -> str | None:
        """Reason to wake, in one line; None if there is none yet."""
        listening = self._listening
        return _wake_reason(listening) if listening is not None and listening.done() else None

    def state(self) -> GuestState | None:
        """State of a sleeping guest, or the last state of one that is falling asleep; None if it is awake."""
        if self.fell_asleep is None:
            return self._before if self.is_on else None
        is_waking = self._waking is not None or self.woken_by is not None
        return GuestState(GuestPhase.WAKING if is_waking else GuestPhase.ASLEEP, MilliCpu(0), Bytes(0))

    async def fall_asleep(self, prepare: Callable[[], Awaitable[GuestState]], sleeps: int | None = None) -> FellAsleep:
        """Put the guest to sleep after ``prepare`` has returned its state. Idempotent while it sleeps. ``sleeps`` is
        the number of its sleeps when the order was given; None: unknown. Raises ``SleepRefusedError`` if the guest
        stays awake, and ``GuestError`` if it ended.
        """
        if self._guest is None:
            raise SleepRefusedError(texts.NOT_WAKEABLE)
        if self._falling is None:
            # A late or repeated order must not put it to sleep a second time.
            if sleeps not in (None, self.sleeps):
                raise SleepRefusedError(texts.ANOTHER_SLEEP)
            self._falling = _start(self._fall(self._guest, prepare))
        return await asyncio.shield(self._falling)

    async def _fall(self, guest: SleepingGuest, prepare: Callable[[], Awaitable[GuestState]]) -> FellAsleep:
        try:
            self._before = await prepare()
            fell_asleep = await guest.fall_asleep()
        except BaseException:
            self._falling = None
            raise
        finally:
            self._before = None
        self.sleeps += 1
        self._woken = None
        self._listening = _start(guest.woken())
        return fell_asleep

    async def woken(self) -> str:
        """Wait until the sleeping guest must wake; return the reason in one line. Raises ``NotAsleepError``, and
        ``GuestError`` when another call starts to wait.
        """
        listening = self._listening
        if listening is None:
            raise NotAsleepError(texts.NOT_ASLEEP)
        self._superseded.set()
        self._superseded = superseded = asyncio.Event()
        newer = asyncio.ensure_future(superseded.wait())
        try:
            await asyncio.wait((listening, newer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            newer.cancel()
        if not listening.done():
            raise GuestError(texts.SUPERSEDED)
        if (woken_by := _wake_reason(listening)) is None:
            raise NotAsleepError(texts.NOT_ASLEEP)
        return woken_by

    async def wake(self, sleep: int) -> Woken:
        """Resume the guest from sleep number ``sleep``. Idempotent until the next sleep. Raises ``NotAsleepError`` if
        that is not its last sleep, and ``GuestError`` if it cannot be started.
        """
        # A delayed order must not wake the guest from a later sleep, for which there is no permit.
        if sleep != self.sleeps:
            raise NotAsleepError(texts.ANOTHER_SLEEP)
        if self._waking is None:
            if self._woken is not None:
                return self._woken
            if self._guest is None or self.fell_asleep is None:
                raise NotAsleepError(texts.NOT_ASLEEP)
            self._waking = _start(self._wake(self._guest))
        return await asyncio.shield(self._waking)

    async def _wake(self, guest: SleepingGuest) -> Woken:
        try:
            self._woken = woken = await guest.wake()
        finally:
            self._waking = None
        # Only now: the stand-in receives frames until the guest runs.
        if self._listening is not None:
            self._listening.cancel()
        self._falling = self._listening = None
        return woken

    async def settled(self) -> None:
        """Wait until the guest is neither falling asleep nor waking."""
        while under_way := [task for task in (self._falling, self._waking) if task is not None and not task.done()]:
            await asyncio.wait(under_way)

    async def close(self) -> None:
        """Cancel everything in progress."""
        tasks = [task for task in (self._falling, self._listening, self._waking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _wake_reason(listening: asyncio.Task[str]) -> str | None:
    """Result of a finished listener; None if it was cancelled because the guest runs again."""
    if listening.cancelled():
        return None
    fault = listening.exception()
    # A failed listener is a reason to wake: no client could reach the guest any more.
    return listening.result() if fault is None else str(fault)


def _start(work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
    task = asyncio.create_task(work)
    # Retrieve the exception, because the caller may be gone.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task
