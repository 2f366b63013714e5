"""One sleep of a simulated guest: its counters stop, and it wakes when its load is not idle."""

from __future__ import annotations

import asyncio
from typing import Final

from deploy.neonvm.ports import GuestError, GuestPhase, GuestState
from deploy.neonvm.simulated.simulated_load import Demand
from deploy.neonvm.simulated.simulated_model import SimulatedKernel
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Instant, MilliCpu, Seconds

_REASON: Final = "its load is not idle"


class SimulatedSleep:
    """The sleep of a guest with ``kernel``, started at ``since``; it lasts until ``end``."""

    def __init__(self, kernel: SimulatedKernel, since: Instant, clock: Clock) -> None:
        self._kernel = kernel
        self._since = since
        self._clock = clock
        self._changed = asyncio.Event()
        self._is_called = False
        self._is_over = False

    @property
    def kernel(self) -> SimulatedKernel:
        """The guest as it would resume now."""
        self._kernel = self._kernel.after_sleep(Seconds(self._clock.now() - self._since))
        return self._kernel

    @property
    def state(self) -> GuestState:
        """State of the guest, which has no size while it is asleep."""
        phase = GuestPhase.WAKING if self._is_called else GuestPhase.ASLEEP
        return GuestState(phase, MilliCpu(0), Bytes(0))

    def set_demand(self, demand: Demand | None) -> None:
        """Set the demand; the guest must wake if that is not idle."""
        self._kernel = self.kernel.under(demand)
        self._changed.set()

    def end(self) -> SimulatedKernel:
        """End the sleep and return the guest, which resumes."""
        self._is_over = True
        self._changed.set()
        return self.kernel

    async def woken(self) -> str:
        """Wait until the load is not idle; return the reason. Raises ``GuestError`` if the sleep is over."""
        while not self._is_over:
            kernel = self.kernel
            due = kernel.next_work
            # Also if the load has become idle again meanwhile.
            self._is_called = self._is_called or (due is not None and due <= kernel.age)
            if self._is_called:
                return _REASON
            self._changed.clear()
            await self._clock.wait(self._changed, None if due is None else Instant(self._since + due))
        raise GuestError("the guest is not asleep")
