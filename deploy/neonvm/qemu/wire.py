"""The link between the two machines of a move: what carries the bytes, and the one place that decides who goes on.

A target gets the order to run only after ``GIVEN`` was decided, and a source is continued only after ``KEPT`` was.
Whichever is asked for first holds for ever, however often either is asked for.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
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
