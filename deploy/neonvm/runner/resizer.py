"""Brings one running guest to its desired size, and keeps reporting what it has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from deploy.neonvm.ports import CPU, MEMORY, GuestError, GuestPhase, GuestState, ResizableGuest
from protocol.backoff import Backoff
from protocol.runtime.clock import Clock
from protocol.units import Amount, Bytes, Instant, MilliCpu, Resources, Seconds

# Seconds before a resize that was refused, or stopped part of the way, is tried again; doubled each time.
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 10.0
STALLED_AFTER: Final = Seconds(60.0)
"""A guest that can follow an order shows some of it within seconds, even one that gives memory back under load."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals between queries of a guest: while it boots, once it runs, and while it does not answer."""

    booting: Backoff
    running: Seconds
    silent: Backoff


HERE: Final = Pace(
    booting=Backoff(Seconds(0.5), Seconds(0.5), spread=0.0),
    running=Seconds(2.0),
    silent=Backoff(Seconds(2.0), Seconds(2.0), spread=0.0),
)
"""For guests of this very machine, of which asking costs nothing."""


class Resizer:
    """One guest from its start to its end. ``on_change`` is called whenever ``state`` or ``fault`` has changed.
    ``phase`` is how the guest begins: it boots, or it receives, and is then held until it has arrived.
    """

    def __init__(
        self,
        guest: ResizableGuest,
        starting: Resources,
        clock: Clock,
        on_change: Callable[[], None],
        phase: GuestPhase = GuestPhase.BOOTING,
    ) -> None:
        self._guest = guest
        self._clock = clock
        self._on_change = on_change
        self._wanted = starting
        self.pace = HERE
        self._sign = asyncio.Event()
        self._is_held = phase is GuestPhase.RECEIVING
        self._steps = 0
        self._turns = 0  # how often the state was set from outside; looks from before are out of date
        self._orders = 0  # how often an order was answered with the CPU; the CPU of looks from before is out of date
        self._wakes = {CPU: asyncio.Event(), MEMORY: asyncio.Event()}
        self.state = GuestState(phase, starting.cpu, starting.mem)
        self._faults: dict[str, str] = {}
        # The amount of each resource that is not as ordered, and since when it has not changed.
        self._unchanged: dict[str, tuple[Amount, Instant]] = {}
        self.stalled: frozenset[str] = frozenset()

    @property
    def fault(self) -> str:
        """The guest's last refusal, unless it has complied since; empty if none."""
        return "; ".join(self._faults.values())

    def want(self, size: Resources) -> None:
        """From now on the guest should have ``size``, and is no longer held."""
        # A guest that is held for a migration is not resized until a size is asked for again, even if it is the same.
        if size != self._wanted or self._is_held:
            self._wanted = size
            self._is_held = False
            self._wake()

    def hold(self) -> None:
        """From now on the guest is left as it is; a resize in progress ends first (see ``is_quiet``)."""
        if not self._is_held:
            self._is_held = True
            self._on_change()

    @property
    def is_quiet(self) -> bool:
        """True if the guest is held and no resize is in progress."""
        return self._is_held and not self._steps

    def arrive(self, state: GuestState) -> None:
        """The received guest runs now, with the size that it had at its source."""
        self._turns += 1
        self.state = state
        self._on_change()

    def leave(self) -> None:
        """The guest has ended, or runs elsewhere now."""
        self._turns += 1
        self.state = GuestState(GuestPhase.STOPPED, MilliCpu(0), Bytes(0))
        self._on_change()

    async def run(self) -> str:
        """Works until the guest has ended, then returns the reason."""
        async with asyncio.TaskGroup() as tasks:
            # A task for each resource: memory that comes off slowly never delays a CPU.
            steps = {CPU: self._step_cpu, MEMORY: self._step_memory}
            workers = [tasks.create_task(self._follow(name, step)) for name, step in steps.items()]
            workers.append(tasks.create_task(self._poll()))
            reason = await self._guest.ended()
            for worker in workers:
                worker.cancel()
        # A guest that was sent away has left already.
        if self.state.phase is not GuestPhase.STOPPED:
            self.leave()
        return reason

    def has_failed(self, why: str) -> None:
        """A fault of this program has ended ``run``, which may be called again."""
        self._say("state", why)

    def look_again(self) -> None:
        """Asks the guest now, because there is a sign that it has changed."""
        self._sign.set()

    async def _poll(self) -> None:
        booting = silent = 0
        while True:
            # Before the look: a sign during it leads to another one.
            self._sign.clear()
            silent = 0 if await self._look() else silent + 1
            booting = booting + 1 if self.state.phase is GuestPhase.BOOTING else 0
            until = self._clock.now() + self._pause(booting, silent)
            await self._clock.wait(self._sign, Instant(until))

    def _pause(self, booting: int, silent: int) -> Seconds:
        """After this many looks in a row at a guest that boots, or that did not answer."""
        if silent:
            return self.pace.silent.delay(silent, self._clock.jitter())
        if booting:
            return self.pace.booting.delay(booting, self._clock.jitter())
        return self.pace.running

    async def _look(self) -> bool:
        """Asks the guest; whether it has answered."""
        turns, orders = self._turns, self._orders
        try:
            state = await self._guest.state()
        except GuestError as error:
            self._say("state", str(error))
            return False
        self._say("state", "")
        if orders != self._orders:
            # An order was answered while this look was on its way: what the look says of the CPU is older.
            state = replace(state, cpu=self.state.cpu)
        # If the turn has changed, the guest has arrived or left in the meantime, and this answer is out of date.
        if state != self.state and turns == self._turns:
            booted = self.state.phase is GuestPhase.BOOTING
            self.state = state
            # Orders that came while it booted were left alone.
            if booted:
                self._wake()
            self._note_progress()
            self._on_change()
        return True

    async def _follow(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        pause, wake = _FIRST_PAUSE, self._wakes[name]
        while True:
            self._steps += 1
            try:
                await step()
                self._say(name, "")
            except GuestError as error:
                self._say(name, str(error))
            finally:
                self._steps -= 1
            self._note_progress()
            if self.is_quiet:
                self._on_change()
            await self._clock.wait(wake, Instant(self._clock.now() + pause))
            # Another size is tried at once, and has not failed yet.
            pause = _FIRST_PAUSE if wake.is_set() else min(pause * 2, _LONGEST_PAUSE)
            wake.clear()

    @property
    def _may_step(self) -> bool:
        # A guest that boots is left alone: it was started with exactly what it may use.
        return self.state.phase is GuestPhase.RUNNING and not self._is_held

    async def _step_cpu(self) -> None:
        wanted: MilliCpu = self._wanted.cpu
        if self._may_step and self.state.cpu != wanted:
            turns = self._turns
            has = await self._guest.set_cpu(wanted)
            # The answer does not say the CPU, so the guest is asked.
            if has is None:
                await self._look()
            elif turns == self._turns:
                self._has_cpu(has)

    def _has_cpu(self, cpu: MilliCpu) -> None:
        """The guest itself says that it has this CPU; a look that is under way is older."""
        self._orders += 1
        self._say("state", "")
        if cpu != self.state.cpu:
            self.state = replace(self.state, cpu=cpu)
            self._note_progress()
            self._on_change()

    async def _step_memory(self) -> None:
        wanted: Bytes = self._wanted.mem
        if self._may_step and self.state.mem != wanted:
            # Memory comes and goes block by block, so the guest is asked how far it got.
            await self._guest.set_memory(wanted)
            await self._look()

    def _note_progress(self) -> None:
        """Finds out what has not come nearer to its order for a minute."""
        has, now = {CPU: self.state.cpu, MEMORY: self.state.mem}, self._clock.now()
        # A guest that must not be resized now cannot be late.
        wanted = {CPU: self._wanted.cpu, MEMORY: self._wanted.mem} if self._may_step else has
        for name, amount in has.items():
            if amount == wanted[name]:
                self._unchanged.pop(name, None)
            # Any change counts as progress, whatever the order was: the minute begins again.
            elif name not in self._unchanged or self._unchanged[name][0] != amount:
                self._unchanged[name] = amount, now
        stalled = frozenset(name for name, (_, since) in self._unchanged.items() if now - since >= STALLED_AFTER)
        if stalled != self.stalled:
            self.stalled = stalled
            self._on_change()

    def _say(self, about: str, fault: str) -> None:
        # Listeners write to the API server, so they are called for changes only.
        if fault == self._faults.get(about, ""):
            return
        if fault:
            self._faults[about] = fault
        else:
            del self._faults[about]
        self._on_change()

    def _wake(self) -> None:
        for wake in self._wakes.values():
            wake.set()
