"""The two ends of a move between pods: their addresses, and the state of their guests afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deploy.neonvm.ports import (
    Acceleration,
    GuestPhase,
    GuestState,
    TransferError,
    TransferFault,
)
from deploy.neonvm.qemu.transfer import Transfer
from deploy.neonvm.remote.remote_guest import RemoteGuest
from deploy.neonvm.remote.remote_machine import RemoteMachine
from deploy.neonvm.remote.runner_client import RunnerClient
from deploy.neonvm.runner.resizer import Resizer
from deploy.neonvm.texts import controller as texts
from deploy.neonvm.transfer_terms import TransferInfo


@dataclass(frozen=True, slots=True)
class MoveEnd:
    """One end. ``uid`` is its pod's; ``guest`` and ``resizer`` are there if the pod is followed."""

    uid: str
    runner: RunnerClient
    machine: Callable[[], RemoteMachine]
    guest: RemoteGuest | None = None
    resizer: Resizer | None = None

    @property
    def acceleration(self) -> Acceleration | None:
        """Speed class of its guest, if known."""
        return self.guest.acceleration if self.guest is not None else None

    def leave(self) -> None:
        """The guest runs elsewhere, or never will here."""
        if self.guest is not None and self.resizer is not None:
            self.guest.is_known = True
            self.resizer.leave()

    def arrive(self, source: MoveEnd) -> None:
        """The guest runs here, with the size that it had in ``source``, if that is known; it is looked at anyway."""
        if self.guest is None or self.resizer is None:
            return
        if source.guest is not None and source.resizer is not None and source.guest.is_known:
            # The size moves with the guest, so it is known before the first look.
            self.guest.is_known, had = True, source.resizer.state
            self.resizer.arrive(GuestState(GuestPhase.RUNNING, had.cpu, had.mem))
        self.resizer.look_again()


async def moved(
    transfer: Transfer, here: MoveEnd, there: MoveEnd, machines: tuple[RemoteMachine, RemoteMachine]
) -> TransferInfo:
    """Carries the move to its end; afterwards both ends know what has become of their guests.

    Raises ``TransferError``, and ``CancelledError`` if the move was left to another process.
    """
    try:
        async with machines[0], machines[1]:
            info = await transfer.run()
    except TransferError:
        there.leave()
        raise
    # First the arrival, which takes the size that the source had until now.
    there.arrive(here)
    here.leave()
    return info


def are_emulated(*ends: MoveEnd) -> bool:
    """Return True if guests are emulated there. Raises ``TransferError`` if the two ends cannot exchange a guest."""
    accelerations = [end.acceleration for end in ends]
    # The guest's CPU would differ. An end whose acceleration is unknown does not hinder the move.
    if len({acceleration.is_on for acceleration in accelerations if acceleration is not None}) > 1:
        raise TransferError(TransferFault.REFUSED, texts.OTHER_ACCELERATOR)
    # An end whose acceleration is unknown counts as emulated: one pass works for both kinds.
    return not all(acceleration is not None and acceleration.is_on for acceleration in accelerations)
