"""The link between the two machines of a move: what carries the bytes, and the one place that decides who goes on.

A target gets the order to run only after ``give`` has said yes, and a source is continued only after ``keep`` has.
Whichever is called first decides for ever, however often either is called.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from deploy.neonvm.qemu.machine import Machine

_ENDS: Final = "transfer"


@dataclass(frozen=True, slots=True)
class Route:
    """Address at which the target listens, and the arguments for the source's migrate command."""

    incoming: str
    outgoing: Mapping[str, object]


class Wire(Protocol):
    """The connection that carries the bytes."""

    async def open(self, source: Machine, target: Machine) -> Route:
        """Prepares both ends. Raises ``GuestError``."""


class Decided(StrEnum):
    """The end that goes on."""

    OPEN = "open"
    GIVEN = "given"
    KEPT = "kept"


class Arbiter(Protocol):
    """Arbiter of which end goes on after a move. Raises ``GuestError`` if the decision is unknown."""

    async def decided(self) -> Decided:
        """The decision."""

    async def give(self) -> Decided:
        """Decides for the target, if nothing was decided before."""

    async def keep(self) -> Decided:
        """Decides for the source, if nothing was decided before."""


class SocketPair:
    """A ``Wire`` within one machine: there is no address to find or to clean up."""

    async def open(self, source: Machine, target: Machine) -> Route:
        """Gives each process one end. Raises ``GuestError``."""
        ours, theirs = socket.socketpair()
        # Each QEMU has a duplicate, so the ends of this process are closed.
        with ours, theirs:
            await target.give(_ENDS, theirs)
            await source.give(_ENDS, ours)
        return Route(f"fd:{_ENDS}", {"uri": f"fd:{_ENDS}"})


class OwnDecision:
    """An ``Arbiter`` for one process that owns both machines: they do not outlive it, so nothing else decides, and the
    guest is taken back from a target that would not run.
    """

    async def decided(self) -> Decided:
        """Nothing: each move begins and ends in this process."""
        return Decided.OPEN

    async def give(self) -> Decided:
        """The target may run."""
        return Decided.GIVEN

    async def keep(self) -> Decided:
        """The source may go on."""
        return Decided.KEPT
