"""Carries out orders to sleep and to wake for one guest, one at a time (B.18).

From an order to sleep until the guest runs again it is quiesced: it is neither polled nor resized.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from msgspec import structs

from deploy.neonvm.ports import (
    GuestError,
    GuestPhase,
    GuestState,
    ResizableGuest,
    SleepingGuest,
    SleepRefusedError,
    Woken,
)
from deploy.neonvm.texts import runner as texts
from deploy.neonvm.texts.lines import one_line
from protocol.backoff import Backoff, Retries
from protocol.guest.sleep import SLEEPING, SleepReport, SleepState
from protocol.runtime.clock import Clock
from protocol.units import Bytes, MilliCpu, Seconds

_BACKOFF: Final = Backoff(Seconds(1.0), Seconds(10.0), spread=0.0)


class SleepHost(Protocol):
    """The part of the guest's resizer that sleep uses."""

    state: GuestState

    @property
    def is_held(self) -> bool:
        """True if the guest is about to be migrated."""

    async def settle(self) -> None:
        """Wait until no resize is in progress."""

    def arrive(self, state: GuestState) -> None:
        """Set the guest's state, and discard responses to earlier polls."""

    def resume(self) -> None:
        """Poll the running guest immediately and resize it if needed."""


class SleepOrders:
    """Orders for one guest. ``report`` has the result of the last order, without ``since``. ``on_change`` is called
    when it changes, ``set_fault`` with an error that prevents the guest from waking, and with an empty text once it is
    resolved.
    """

    def __init__(
        self,
        guest: ResizableGuest,
        host: SleepHost,
        clock: Clock,
        on_change: Callable[[], None],
        set_fault: Callable[[str], None],
    ) -> None:
        self._resizable = guest
        self._guest = guest if isinstance(guest, SleepingGuest) else None
        self._host = host
        self._clock = clock
        self._on_change = on_change
        self._set_fault = set_fault
        self._changed = asyncio.Event()
        self._order = ""
        self._may_wake = False
        self._size_before: GuestState | None = None  # None if another process put the guest to sleep
        self.is_asleep = False
        self.report = SleepReport()

    @property
    def is_quiesced(self) -> bool:
        """True if the guest is falling asleep, asleep or waking."""
        return bool(self._order) or self.is_asleep

    def sleep(self, order: str) -> None:
        """Order the guest to sleep; ``report`` has the result. No-op if it sleeps, or if this order was already carried
        out or refused.
        """
        if self.is_quiesced or order == self.report.order:
            return
        self._order = order
        self._changed.set()

    def wake(self) -> None:
        """Order a sleeping guest to wake. There must be a permit for it."""
        if self.is_asleep and not self._may_wake:
            self._may_wake = True
            self._changed.set()

    def adopt(self) -> None:
        """Take over a guest that another process put to sleep."""
        if not self.is_asleep:
            self._fell_asleep(self.report.order)

    async def run(self) -> None:
        """Run until cancelled. May be called again after an exception; it continues from the guest's state."""
        while True:
            self._changed.clear()
            if self._guest is not None and self.is_asleep:
                await self._sleep_on(self._guest)
            elif self._order:
                await self._fall_asleep()
            else:
                await self._changed.wait()

    async def _fall_asleep(self) -> None:
        order = self._order
        try:
            if self._guest is None:
                self._refused(order, texts.CANNOT_SLEEP)
                return
            await self._host.settle()
            # A migration was ordered meanwhile, and needs a running guest.
            if self._host.is_held:
                self._refused(order, texts.MIGRATION_PENDING)
                return
            self._size_before = self._host.state
            result = await self._guest.fall_asleep()
            self._fell_asleep(order, result.saved, result.sessions)
        # The guest may also have ended, or its response was lost: the next poll shows which.
        except GuestError as error:
            self._refused(order, str(error))
            if not isinstance(error, SleepRefusedError):
                self._size_before = None
        finally:
            self._order = ""
            if not self.is_asleep:
                self._host.resume()

    def _refused(self, order: str, why: str) -> None:
        # No longer quiesced when on_change is called.
        self._order = ""
        self.report = SleepReport(order, SleepState.REFUSED, message=one_line(why))
        self._on_change()

    def _fell_asleep(self, order: str, saved: Bytes = Bytes(0), sessions: int = 0) -> None:
        self.is_asleep, self._may_wake = True, False
        self.report = SleepReport(order, SleepState.ASLEEP, saved=saved.value, sessions=sessions)
        self._host.arrive(_sleeping_state(GuestPhase.ASLEEP))
        self._changed.set()

    async def _sleep_on(self, guest: SleepingGuest) -> None:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch(guest))
            while self.is_asleep and not self._may_wake:
                await self._changed.wait()
                self._changed.clear()
            watching.cancel()
        if self.is_asleep:
            await self._wake(guest)

    async def _watch(self, guest: SleepingGuest) -> None:
        """Wait until the guest must wake, or is no longer asleep."""
        retries = Retries(_BACKOFF)
        while self.is_asleep:
            try:
                who = await guest.woken()
            except GuestError as error:
                await self._check_asleep(str(error))
                await self._clock.sleep(retries.failed(0.0))
            else:
                self._set_fault("")
                self.report = structs.replace(self.report, state=SleepState.WAKING, message=one_line(who))
                self._host.arrive(_sleeping_state(GuestPhase.WAKING))
                return

    async def _check_asleep(self, fault: str) -> None:
        try:
            state = await self._resizable.state()
        except GuestError:
            self._set_fault(fault)
            return
        self._set_fault("")
        if state.phase not in SLEEPING:
            # Another process woke it.
            self._woke(Woken(Seconds(0.0)), state)

    async def _wake(self, guest: SleepingGuest) -> None:
        retries = Retries(_BACKOFF)
        while True:
            try:
                woken = await guest.wake()
            except GuestError as error:
                self._set_fault(str(error))
                await self._clock.sleep(retries.failed(0.0))
            else:
                phase = GuestPhase.BOOTING if woken.fault else GuestPhase.RUNNING
                # If its size is unknown, the next poll reports it.
                self._woke(woken, replace(self._size_before, phase=phase) if self._size_before is not None else None)
                return

    def _woke(self, woken: Woken, now: GuestState | None) -> None:
        self.is_asleep = self._may_wake = False
        self._size_before = None
        self._set_fault("")
        state = SleepState.RESTARTED if woken.fault else SleepState.AWAKE
        message = one_line(woken.fault) or self.report.message
        self.report = structs.replace(self.report, state=state, message=message, seconds=round(woken.took, 3))
        if now is not None:
            self._host.arrive(now)
        self._changed.set()
        self._host.resume()


def _sleeping_state(phase: GuestPhase) -> GuestState:
    return GuestState(phase, MilliCpu(0), Bytes(0))
