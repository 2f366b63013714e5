"""The link between the two machines of a move: what carries the bytes, and the one place that decides who goes on.

A target gets the order to run only after ``give`` has said yes, and a source is continued only after ``keep`` has.
Whichever is called first decides for ever, however often either is called.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from deploy.neonvm.qemu.machine import Machine

_ENDS: Final = "transfer"


@dataclass(frozen=True, slots=True)
class Route:
    """Address at which the target listens, and the arguments for the source's migrate command."""

    incoming: str
    outgoing: Mapping[str, object]


class Wire:
    """The connection that carries the bytes. This one is within one machine, and has no address to find or clean up."""

    async def open(self, source: Machine, target: Machine) -> Route:
        """Gives each process one end. Raises ``GuestError``."""
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


class Arbiter:
    """Decides which end goes on after a move. Raises ``GuestError`` if the decision is unknown.

    This one is for a process that owns both machines: they do not outlive it, so nothing else decides, and the guest is
    taken back from a target that would not run.
    """

    async def decided(self) -> Decided:
        """The decision; here each move begins and ends in this process."""
        return Decided.OPEN

    async def give(self) -> Decided:
        """Decides for the target, if nothing was decided before."""
        return Decided.GIVEN

    async def keep(self) -> Decided:
        """Decides for the source, if nothing was decided before."""
        return Decided.KEPT
