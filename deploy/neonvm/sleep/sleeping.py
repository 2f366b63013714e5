"""One sleep of a guest, from the exit of its QEMU until it runs again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from deploy.neonvm.ports import FellAsleep, GuestError, GuestPhase, GuestState, Woken
from deploy.neonvm.qemu.frame_handover import diverting, inject_frames, stop_diverting
from deploy.neonvm.qemu.machine import Machine, retried
from deploy.neonvm.qemu.qemu_command import INCOMING
from deploy.neonvm.sleep.frame_sources import Frame
from deploy.neonvm.sleep.image import SleepImage
from deploy.neonvm.sleep.network_stand_in import NetworkStandIn
from deploy.neonvm.sleep.saving import load
from deploy.neonvm.sleep.suspend import START_PAUSE, STARTED_WITHIN, Boot, booted
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Instant, MilliCpu, Seconds

_UNUSED_FOR: Final = Seconds(10.0)
"""An empty QEMU is ended after waiting this long for a permit: on a full node hundreds of guests may wait for minutes.
"""
_RESUMED_WITHIN: Final = Seconds(30.0)
"""Limit for each step of resuming a guest whose memory is loaded. If it is exceeded, all sessions are lost."""
_REPLAYED_WITHIN: Final = Seconds(1.0)
"""Senders retransmit most frames, and clients are waiting."""

Launch = Callable[[Sequence[str], Sequence[int]], Awaitable[Machine]]
"""Starts a QEMU for the guest with extra arguments and inherited descriptors. Raises ``GuestError``."""


@dataclass(frozen=True, slots=True)
class SleepDependencies:
    """Dependencies of a sleep. ``launch`` starts an empty QEMU, ``boot`` boots the guest from its disk, ``thaw``
    resumes its database, and ``adopt`` takes over the QEMU in which it runs.
    """

    stand_in: NetworkStandIn
    image: SleepImage
    clock: Clock
    launch: Launch
    boot: Boot
    thaw: Callable[[], Awaitable[None]]
    adopt: Callable[[Machine, Woken], None]


class GuestSleep:
    """One sleep. ``snapshot`` is the result of falling asleep; ``is_wake_requested`` is set by a frame that needs the
    guest, and ``is_over`` when the guest runs again or the sleep was abandoned.
    """

    def __init__(self, snapshot: FellAsleep, deps: SleepDependencies) -> None:
        self.snapshot = snapshot
        self.is_wake_requested = False
        self.is_over = asyncio.Event()
        self._deps = deps
        self._requested_at: Instant | None = None
        self._preparing: asyncio.Future[Machine] | None = None
        self._unused: asyncio.Future[None] | None = None
        self._decided = asyncio.Event()
        self._process_lock = asyncio.Lock()
        self._waking: asyncio.Future[Woken] | None = None
        self._has_left = False

    @property
    def image(self) -> SleepImage:
        """The saved memory."""
        return self._deps.image

    @property
    def state(self) -> GuestState:
        """State of the sleeping guest, which has no size."""
        phase = GuestPhase.WAKING if self.is_wake_requested else GuestPhase.ASLEEP
        return GuestState(phase, MilliCpu(0), Bytes(0))

    @property
    def is_waking(self) -> bool:
        """True from the order to wake on."""
        return self._waking is not None

    def begin(self) -> None:
        """Start answering on the network; QEMU has exited."""
        self._deps.stand_in.read_network()

    async def woken(self) -> str:
        """Wait for a frame that needs the guest, and start an empty QEMU; return sender and reason."""
        sender_and_reason = await self._deps.stand_in.wait_for_wake()
        if not self.is_wake_requested:
            self.is_wake_requested, self._requested_at = True, self._deps.clock.now()
            # A wake in progress has its QEMU already; a second one would steal frames of a booting guest. And a guest
            # that was migrated must find its disk unused.
            if self._waking is None and not self._has_left:
                self._prepare()
                self._unused = asyncio.ensure_future(self._end_unused())
        return sender_and_reason

    async def _end_unused(self) -> None:
        clock = self._deps.clock
        await clock.wait(self._decided, Instant(clock.now() + _UNUSED_FOR))
        async with self._process_lock:
            if not self._decided.is_set():
                await self._end_empty()

    async def _end_empty(self) -> None:
        await self._discard()
        self._preparing = None
        # Queued frames stay queued, and the guest's sessions are answered as before.
        self._deps.stand_in.read_network()

    def _prepare(self) -> asyncio.Future[Machine]:
        if self._preparing is None or _is_lost(self._preparing):
            self._preparing = asyncio.ensure_future(self._launch_empty())
            # wake() reports a failure; mark it as retrieved until then.
            self._preparing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._preparing

    async def _launch_empty(self) -> Machine:
        """A QEMU with everything but the guest's memory. It diverts the frames that it reads to the stand-in."""
        ours, theirs = socket.socketpair()
        with theirs:
            # Before QEMU starts: QEMU reads the network immediately, and two readers would split the frames. And
            # a hundred unread frames would fill its socket and block QEMU before it answers.
            self._deps.stand_in.read_diverted(ours)
            try:
                return await self._deps.launch((*INCOMING, *diverting(theirs.fileno())), (theirs.fileno(),))
            except BaseException as error:
                self._deps.stand_in.read_network()
                if isinstance(error, OSError):
                    raise GuestError(f"cannot start QEMU: {error}") from error
                raise

    async def wake(self) -> Woken:
        """Resume the guest, or boot it if its memory cannot be restored. Idempotent; a cancelled call does not stop
        the wake. Raises ``GuestError`` if QEMU cannot be started.
        """
        self._decided.set()
        if self._waking is None:
            self._waking = asyncio.ensure_future(self._wake())
        return await asyncio.shield(self._waking)

    async def _wake(self) -> Woken:
        clock, stand_in = self._deps.clock, self._deps.stand_in
        began = clock.now() if self._requested_at is None else self._requested_at
        fault = ""
        try:
            try:
                machine = await self._restore()
            except GuestError as error:
                fault = str(error)
                await self._discard()
                # After a failed start it reads the network again, and has the pod's ports, which QEMU needs now.
                stand_in.close()
                machine = await booted(self._deps.boot, clock)
            woken = Woken(Seconds(clock.now() - began), fault)
            # Before is_over is set: its waiters use the guest's QEMU next.
            self._deps.adopt(machine, woken)
            stand_in.pass_on_clients()
            return woken
        finally:
            self._deps.image.delete()
            stand_in.close()
            stand_in.hang_up_clients()
            self.is_over.set()

    async def _load_with_retries(self) -> Machine:
        """A QEMU with the guest's memory. Another QEMU is tried as long as none has read the image: on a node where
        hundreds wake at once one may fail, and the sessions should survive that.
        """
        clock = self._deps.clock
        deadline = clock.now() + STARTED_WITHIN
        while True:
            try:
                return await self._load()
            except GuestError:
                if self._deps.image.is_used or clock.now() >= deadline:
                    raise
            await self._end_empty()
            await clock.sleep(START_PAUSE)

    async def _load(self) -> Machine:
        machine = await self._prepare()
        await load(machine, self._deps.image, self._deps.clock)
        return machine

    async def _restore(self) -> Machine:
        clock, stand_in = self._deps.clock, self._deps.stand_in
        async with self._process_lock:  # a second QEMU would share the disk and the frames
            machine = await self._load_with_retries()
        # A QEMU that has the memory is not given up for one failure: it is paused, and the image is gone.
        # Reconnect the guest's network first, then replay the queue, so that no frame is lost in between.
        await retried(machine, partial(stop_diverting, machine), clock, _RESUMED_WITHIN)
        await stand_in.drain()
        with suppress(GuestError):
            await retried(
                machine, lambda: inject_frames(machine, stand_in.queued_frames(), clock), clock, _REPLAYED_WITHIN
            )
        await retried(machine, partial(machine.call, "cont"), clock, _RESUMED_WITHIN)
        await self._deps.thaw()
        return machine

    async def leave(self, header_size: int | None = None) -> list[Frame]:
        """Stop answering and release the disk, because the guest is about to run elsewhere. Return the queued frames,
        with offload headers of ``header_size`` bytes (None: the size of its network here).
        """
        self._has_left = True
        self._decided.set()
        async with self._process_lock:
            if self._preparing is not None:
                await asyncio.wait((self._preparing,))
                await self._discard()
                self._preparing = None
        await self._deps.stand_in.drain()
        self._deps.stand_in.hang_up_clients()
        return self._deps.stand_in.queued_frames(header_size)

    def stay(self) -> None:
        """Undo ``leave``: the guest sleeps on, and boots if its image was used."""
        if self._has_left:
            self._has_left = False
            self._deps.stand_in.read_network()

    async def _discard(self) -> None:
        """End the empty QEMU, so that it does not hold the disk when the guest boots."""
        if self._preparing is not None:
            with suppress(GuestError):
                await (await self._preparing).kill()

    async def abandon(self) -> None:
        """Abandon the sleep. The guest can still boot from its disk, which was flushed."""
        for task in (self._unused, self._waking, self._preparing):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait((task,))
        if self._preparing is not None and not self._preparing.cancelled():
            await self._discard()
        self._deps.image.delete()
        self._deps.stand_in.close()
        self._deps.stand_in.hang_up_clients()
        self.is_over.set()


def _is_lost(preparing: asyncio.Future[Machine]) -> bool:
    """Return True if QEMU failed to start, or exited while the guest waited for its permit."""
    if not preparing.done() or preparing.cancelled():
        return preparing.cancelled()
    return preparing.exception() is not None or not preparing.result().alive
