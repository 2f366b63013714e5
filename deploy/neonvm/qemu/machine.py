"""A running virtual machine, what makes one, and the link between the two of a move.

A target gets the order to run only after ``GIVEN`` was decided, and a source is continued only after ``KEPT`` was.
Whichever is asked for first holds for ever, however often either is asked for.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from deploy.neonvm.qemu.qemu_command import MEMORY_DEVICE
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Seconds

PLUGGED: Final = {"path": f"/machine/peripheral/{MEMORY_DEVICE}", "property": "size"}
"""QEMU's name for how much memory is plugged in."""
_MEMORY_SECONDS: Final = 3.0


class Machine(Protocol):
    """A running virtual machine."""

    @property
    def alive(self) -> bool:
        """True if its process runs and its guest can go on."""

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """One command of the monitor. Raises ``GuestError``."""

    async def give(self, name: str, end: socket.socket) -> None:
        """Passes a socket on; commands know it by ``name``. Raises ``GuestError``."""

    async def wait_for_event(self, seconds: float) -> None:
        """Returns when the machine stops, resumes or gets on with a migration, and after ``seconds`` at the latest."""

    def hearing(self, event: str, heard: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it ``heard``, which never raises, is called in the instant in which ``STOP`` or ``RESUME`` is read."""

    def event_time(self, event: str) -> float | None:
        """The time when ``STOP`` or ``RESUME`` last happened, in seconds since 1970; None if never."""

    async def failed(self) -> str:
        """Returns once its guest cannot go on or its process has ended, and says why in a few words."""

    def last_words(self) -> str:
        """The end of what its process has complained about."""

    async def kill(self) -> None:
        """Ends the process at once; returns when it is gone."""

    async def end(self) -> None:
        """Ends the process, politely first; returns when it is gone."""


async def plug_memory(machine: Machine, wanted: Bytes, clock: Clock, pause: Seconds) -> None:
    """Has the memory device provide ``wanted``, and waits up to three seconds for the guest to follow. Raises
    ``GuestError``.
    """
    await machine.call("qom-set", {**PLUGGED, "property": "requested-size", "value": wanted.value})
    deadline = clock.now() + _MEMORY_SECONDS
    # A guest gives back only what it can spare, so the wait has an end.
    while await machine.call("qom-get", PLUGGED) != wanted.value and clock.now() < deadline:
        await clock.sleep(pause)


class Hypervisor(Protocol):
    """Factory of machines and their disks."""

    async def make_disk(self, disk: Path, base: Path) -> None:
        """A new disk on top of ``base``, which stays as it is. Raises ``GuestError``."""

    async def launch(self, who: str, command: Callable[[int], Sequence[str]], log: Path) -> Machine:
        """Starts ``command`` with the number of its monitor's socket; errors go to ``log``. Raises ``GuestError``."""


_ENDS: Final = "transfer"


@dataclass(frozen=True, slots=True)
class Route:
    """Address at which the target listens, and the arguments for the source's migrate command."""

    incoming: str
    outgoing: Mapping[str, object]


OpenWire = Callable[[Machine, Machine], Awaitable[Route]]
"""Connects the source to the target. Raises ``GuestError``."""


async def socket_pair(source: Machine, target: Machine) -> Route:
    """An ``OpenWire`` within one machine: there is no address to find or clean up."""
    ours, theirs = socket.socketpair()
    # Each QEMU has a duplicate, so the ends of this process are closed.
    with ours, theirs:
        await target.give(_ENDS, theirs)
        await source.give(_ENDS, ours)
    return Route(f"fd:{_ENDS}", {"uri": f"fd:{_ENDS}"})


class Decided(StrEnum):
    """The end that goes on."""

    OPEN = "open"
    GIVEN = "given"
    KEPT = "kept"


Decide = Callable[[Decided], Awaitable[Decided]]
"""Decides if nothing was decided before, and returns what holds; ``OPEN`` only asks. Raises ``GuestError``."""


async def decided_here(wanted: Decided) -> Decided:
    """A ``Decide`` for a process that owns both machines: they do not outlive it, so nothing else decides, and the
    guest is taken back from a target that would not run.
    """
    return wanted
