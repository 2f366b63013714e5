"""Resizes one running guest to its desired size, and polls its actual size."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from deploy.neonvm.ports import CPU, MEMORY, GuestError, GuestPhase, GuestState, ResizableGuest
from deploy.neonvm.runner.sleep_orders import SleepOrders
from deploy.neonvm.texts.lines import one_line
from protocol.backoff import Backoff, Retries
from protocol.guest.sleep import SLEEPING
from protocol.runtime.clock import Clock
from protocol.units import ZERO, Amount, Bytes, Instant, MilliCpu, Resources, Seconds

# Before a refused or incomplete resize is retried.
_BACKOFF: Final = Backoff(Seconds(1.0), Seconds(10.0), spread=0.0)
STALLED_AFTER: Final = Seconds(60.0)
"""A guest that can be resized shows progress within seconds, even one that unplugs memory under load."""
ORDER_LIFETIME: Final = Seconds(60.0)
"""An order without a response may still be carried out for this long: by a busy runner, or after lost packets."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """Poll intervals: while a guest boots, once it runs, and while it does not respond."""

    booting: Backoff
    running: Seconds
    silent: Backoff


LOCAL_INTERVALS: Final = PollIntervals(
    booting=Backoff(Seconds(0.5), Seconds(0.5), spread=0.0),
    running=Seconds(2.0),
    silent=Backoff(Seconds(2.0), Seconds(2.0), spread=0.0),
)
"""For guests of this process, whose polls cost nothing."""


class Resizer:
    """Resizes one guest from its start to its end. ``on_change`` is called whenever ``state`` or ``fault`` has changed.
    ``phase`` is the initial phase: booting, or receiving, which is held until the guest has arrived. ``sleep_orders``
    put the guest to sleep: its phase is then ``ASLEEP``, with a size of zero, and ``WAKING`` once it must wake.
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
        self._target = starting
        self.poll_intervals = LOCAL_INTERVALS
        self._poll_requested = asyncio.Event()
        self._idle = asyncio.Event()  # set while no resize is in progress
        self._idle.set()
        self.sleep_orders = SleepOrders(guest, self, clock, on_change, lambda fault: self._set_fault("sleep", fault))
        self.is_held = phase is GuestPhase.RECEIVING  # it is not resized
        self._steps = 0
        self._state_version = 0  # incremented when the state is set from outside; polls sent before that are stale
        self._cpu_version = 0  # incremented when a resize returns the CPU; the CPU in polls sent before that is stale
        self._wakes = {CPU: asyncio.Event(), MEMORY: asyncio.Event()}
        self.state = GuestState(phase, starting.cpu, starting.mem)
        # The largest size among the orders that may be in effect; one without a response may be, until ``_open_until``.
        self._ordered = ZERO
        self._open_until: dict[str, Instant] = {}
        self._inherits = True
        self._inherited = ZERO
        self._faults: dict[str, str] = {}
        # For each resource that differs from the desired size: its amount, and since when it has not changed.
        self._unchanged: dict[str, tuple[Amount, Instant]] = {}
        self.stalled: frozenset[str] = frozenset()

    @property
    def fault(self) -> str:
        """The guest's current errors; empty if none. For a sleeping guest, only those that keep it from waking."""
        # A failed resize does not matter until the guest is awake.
        past = {CPU, MEMORY} if self.sleep_orders.is_asleep else set[str]()
        return "; ".join(fault for about, fault in self._faults.items() if about not in past)

    @property
    def largest(self) -> Resources:
        """The largest size that the guest has, or may reach until the next ``resize_to``."""
        target = ZERO if self.is_held else self._target
        return Resources(self.state.cpu, self.state.mem).at_least(self._ordered).at_least(target)

    @property
    def reported(self) -> Resources:
        """The largest size that the VM's status covers for certain."""
        return Resources(self.state.cpu, self.state.mem) if self._inherits else self.largest

    def inherit(self, growing_to: Resources) -> None:
        """Count orders of an earlier process, up to this size, which its VM's status names."""
        if self._inherits and not growing_to.within(self._inherited):
            self._inherited = self._inherited.at_least(growing_to)
            self._order(growing_to)
            self._open_until = dict.fromkeys((CPU, MEMORY), Instant(self._clock.now() + ORDER_LIFETIME))

    def end_inheritance(self) -> None:
        """Inherit nothing any more: the status was up to date, and any later growth in it is this process's own."""
        self._inherits = False

    def resize_to(self, size: Resources) -> None:
        """Set the desired size and end a hold."""
        # A held guest is resized only after a new request, even if the size is the same.
        if size != self._target or self.is_held:
            self._target = size
            self.is_held = False
            self._wake()

    def hold(self) -> None:
        """Stop resizing the guest. A resize in progress ends first (see ``is_quiet``)."""
        if not self.is_held:
            self.is_held = True
            self._on_change()

    @property
    def is_quiet(self) -> bool:
        """True if the guest is held, no resize is in progress, and it is neither asleep nor falling asleep."""
        return self.is_held and not self._steps and not self.sleep_orders.is_quiesced

    async def settle(self) -> None:
        """Wait until no resize is in progress."""
        await self._idle.wait()

    def resume(self) -> None:
        """Poll and resize the guest again."""
        self.poll_soon()
        self._wake()

    def arrive(self, state: GuestState) -> None:
        """Set the guest's state: it has arrived by migration, fallen asleep, or woken."""
        self._state_version += 1
        self.state = state
        if state.phase in SLEEPING:
            self._ordered = ZERO
        # Errors of earlier polls are stale.
        self._faults.pop("state", None)
        self._on_change()

    def leave(self) -> None:
        """Set the state to stopped: the guest has ended, or runs elsewhere."""
        self._state_version += 1
        self.state = GuestState(GuestPhase.STOPPED, MilliCpu(0), Bytes(0))
        self._ordered = ZERO
        self._on_change()

    async def run(self) -> str:
        """Resize and poll until the guest has ended; return the reason."""
        async with asyncio.TaskGroup() as tasks:
            # One task per resource, so that slow memory unplug never delays a CPU change.
            steps = {CPU: self._step_cpu, MEMORY: self._step_memory}
            workers = [tasks.create_task(self._resize_forever(name, step)) for name, step in steps.items()]
            workers += [tasks.create_task(self._poll()), tasks.create_task(self.sleep_orders.run())]
            reason = await self._guest.ended()
            for worker in workers:
                worker.cancel()
        # A guest that was migrated away has already left.
        if self.state.phase is not GuestPhase.STOPPED:
            self.leave()
        return reason

    def has_failed(self, why: str) -> None:
        """Report an internal error that ended ``run``, which may be called again."""
        self._set_fault("state", why)

    def poll_soon(self) -> None:
        """Poll the guest now, because it may have changed."""
        self._poll_requested.set()

    async def _poll(self) -> None:
        booting = silent = 0
        while True:
            # Before the poll: a request during it triggers another one.
            self._poll_requested.clear()
            # A sleeping guest is not polled; it reports when it must wake.
            if self.sleep_orders.is_quiesced:
                await self._poll_requested.wait()
                continue
            silent = 0 if await self._poll_once() else silent + 1
            booting = booting + 1 if self.state.phase is GuestPhase.BOOTING else 0
            until = self._clock.now() + self._pause(booting, silent)
            await self._clock.wait(self._poll_requested, Instant(until))

    def _pause(self, booting: int, silent: int) -> Seconds:
        """The poll interval after this many consecutive polls of a guest that is booting, or did not respond."""
        if silent:
            return self.poll_intervals.silent.delay(silent, self._clock.jitter())
        if booting:
            return self.poll_intervals.booting.delay(booting, self._clock.jitter())
        return self.poll_intervals.running

    async def _poll_once(self) -> bool:
        """Poll the guest once. Return True if it responded."""
        version, cpu_version = self._state_version, self._cpu_version
        try:
            state = await self._guest.state()
        except GuestError as error:
            # A guest that has begun to fall asleep need not respond.
            if version == self._state_version and not self.sleep_orders.is_quiesced:
                self._set_fault("state", str(error))
            return False
        self._set_fault("state", "")
        if state.phase in SLEEPING:
            # A poll sent before it woke, or a guest put to sleep by an earlier process.
            if version == self._state_version and not self.sleep_orders.is_quiesced:
                self.sleep_orders.adopt()
            return True
        if cpu_version != self._cpu_version:
            # A resize returned during this poll, so the CPU in the poll is stale.
            state = replace(state, cpu=self.state.cpu)
        # If the version has changed, the guest has arrived or left meanwhile, and this poll is stale.
        if state != self.state and version == self._state_version:
            booted = self.state.phase is GuestPhase.BOOTING
            self.state = state
            # Requests during boot were deferred.
            if booted:
                self._wake()
            self._note_progress()
            self._on_change()
        return True

    async def _resize_forever(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        retries, wake = Retries(_BACKOFF), self._wakes[name]
        while True:
            await self._run_step(name, step)
            self._note_progress()
            if self.is_quiet:
                self._on_change()
            # Do not resize a sleeping guest; waking ends the wait.
            until = None if self.sleep_orders.is_quiesced else Instant(self._clock.now() + retries.failed(0.0))
            await self._clock.wait(wake, until)
            if wake.is_set():
                # A new size is tried immediately, without backoff.
                retries.succeeded()
                wake.clear()

    async def _run_step(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        self._steps += 1
        self._idle.clear()
        try:
            await step()
            self._set_fault(name, "")
        except GuestError as error:
            self._set_fault(name, str(error))
        finally:
            self._steps -= 1
            if not self._steps:
                self._idle.set()

    @property
    def _may_resize(self) -> bool:
        # Do not resize a booting guest: it was started with the right size.
        return self.state.phase is GuestPhase.RUNNING and not self.is_held and not self.sleep_orders.is_quiesced

    async def _step_cpu(self) -> None:
        target: MilliCpu = self._target.cpu
        # If a larger order may be in effect, or may yet be carried out, order again until it cannot.
        if self._may_resize and (self.state.cpu != target or self._ordered.cpu > target):
            version, sent = self._state_version, self._clock.now()
            self._order(Resources(target, ZERO.mem))
            cpu = await self._carried_out(CPU, self._guest.set_cpu(target))
            # The response has no CPU, so poll.
            if cpu is None:
                await self._poll_once()
            elif version == self._state_version:
                self._update_cpu(cpu)
            self._settle(Resources(target, self._ordered.mem), CPU, sent)

    def _update_cpu(self, cpu: MilliCpu) -> None:
        """Set the CPU that a resize returned; polls in flight are stale."""
        self._cpu_version += 1
        self._set_fault("state", "")
        if cpu != self.state.cpu:
            self.state = replace(self.state, cpu=cpu)
            self._note_progress()
            self._on_change()

    async def _step_memory(self) -> None:
        target: Bytes = self._target.mem
        if self._may_resize and (self.state.mem != target or self._ordered.mem > target):
            sent = self._clock.now()
            self._order(Resources(ZERO.cpu, target))
            # Memory is plugged block by block, so poll how far the guest got.
            await self._carried_out(MEMORY, self._guest.set_memory(target))
            await self._poll_once()
            self._settle(Resources(self._ordered.cpu, target), MEMORY, sent)

    def _order(self, size: Resources) -> None:
        self._ordered = self._ordered.at_least(size)

    async def _carried_out(self, name: str, order: Awaitable[T]) -> T:
        try:
            return await order
        except BaseException:  # also if it was interrupted
            self._open_until[name] = Instant(self._clock.now() + ORDER_LIFETIME)
            raise

    def _settle(self, ordered: Resources, name: str, sent: Instant) -> None:
        """Set what is ordered after a response to an order that was ``sent`` at that time."""
        # An earlier order without a response may still be carried out.
        if sent >= self._open_until.get(name, sent) and ordered != self._ordered:
            self._ordered = ordered
            self._on_change()

    def _note_progress(self) -> None:
        """Update ``stalled``: the resources that made no progress for a minute."""
        actual, now = {CPU: self.state.cpu, MEMORY: self.state.mem}, self._clock.now()
        # A guest that must not be resized cannot stall.
        target = {CPU: self._target.cpu, MEMORY: self._target.mem} if self._may_resize else actual
        for name, amount in actual.items():
            if amount == target[name]:
                self._unchanged.pop(name, None)
            # Any change counts as progress, in either direction, and restarts the minute.
            elif name not in self._unchanged or self._unchanged[name][0] != amount:
                self._unchanged[name] = amount, now
        stalled = frozenset(name for name, (_, since) in self._unchanged.items() if now - since >= STALLED_AFTER)
        if stalled != self.stalled:
            self.stalled = stalled
            self._on_change()

    def _set_fault(self, about: str, fault: str) -> None:
        # A guest's pod is not trusted, and its messages go into the VM's status.
        fault = one_line(fault)
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
