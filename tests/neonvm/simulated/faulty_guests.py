"""Guests that fail on command: when they are created, when they are sent, or at any other moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from deploy.neonvm.ports import (
    Guest,
    GuestError,
    Guests,
    GuestSpec,
    GuestState,
    TransferError,
    TransferFault,
)
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.messages import ObjectName
from protocol.units import Bytes, MilliCpu


@dataclass
class FaultyGuests:
    """Wraps a maker of guests.

    ``made`` has the last guest of every pod: ``await guests.made[pod].stop()`` is how its process dies. The next
    ``receive`` or ``send`` of any guest takes the first fault of ``on_receive`` or ``on_send``, if there is one.
    """

    inner: Guests
    made: dict[ObjectName, FaultyGuest] = field(default_factory=dict)
    on_receive: list[GuestError] = field(default_factory=list)
    on_send: list[tuple[TransferError, bool]] = field(default_factory=list)

    def create(self, spec: GuestSpec) -> Guest:
        guest = FaultyGuest(self.inner.create(spec), self, spec)
        self.made[spec.pod] = guest
        return guest

    def fail_send(self, fault: TransferFault, *, source_too: bool = False) -> None:
        """The next move fails like this; its source is lost ``source_too``."""
        self.on_send.append((TransferError(fault, f"injected: {fault}"), source_too))


@dataclass
class FaultyGuest:
    """One guest, and the migration calls that it received. ``spec`` is the spec that it was created with."""

    inner: Guest
    guests: FaultyGuests
    spec: GuestSpec
    received: int = 0
    sent: list[TransferLimits] = field(default_factory=list)

    async def start(self) -> None:
        await self.inner.start()

    async def ended(self) -> str:
        return await self.inner.ended()

    async def receive(self) -> None:
        self.received += 1
        if self.guests.on_receive:
            raise self.guests.on_receive.pop(0)
        await self.inner.receive()

    async def send(
        self, target: Guest, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        self.sent.append(limits)
        assert isinstance(target, FaultyGuest)
        if not self.guests.on_send:
            return await self.inner.send(target.inner, limits, progress)
        error, is_source_lost = self.guests.on_send.pop(0)
        await target.stop()
        if is_source_lost:
            await self.stop()
        raise error

    async def state(self) -> GuestState:
        return await self.inner.state()

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        return await self.inner.set_cpu(use)

    async def set_memory(self, use: Bytes) -> None:
        await self.inner.set_memory(use)

    async def stop(self) -> None:
        await self.inner.stop()
