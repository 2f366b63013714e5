"""Sends echoes to a VM of a local cluster, one after the other, whether or not earlier ones are answered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scripts.bench.echoes import Echoes, answered_number, request

PERIOD: Final = Seconds(0.01)
_LONGEST: Final = 2048


@asynccontextmanager
async def echoing(raw: socket.socket, address: str, clock: Clock) -> AsyncIterator[Echoes]:
    """Send ICMP echoes to ``address`` through ``raw`` while the block lasts; ``raw`` is closed at its end."""
    echoes, loop = Echoes(), asyncio.get_running_loop()
    identity = raw.fileno()

    def hear() -> None:
        with suppress(OSError):
            number = answered_number(raw.recv(_LONGEST), identity)
            if number is not None:
                # A frame may arrive twice; the first counts.
                echoes.answered.setdefault(number, clock.now())

    async def ask() -> None:
        while True:
            due = Instant(clock.now() + PERIOD)
            echoes.sent.append(clock.now())
            with suppress(OSError):  # a frame that cannot be sent is one that is not answered
                await loop.sock_sendto(raw, request(identity, len(echoes.sent) - 1), (address, 0))
            await clock.sleep(Seconds(max(0.0, due - clock.now())))

    with raw:
        loop.add_reader(raw, hear)
        asking = asyncio.ensure_future(ask())
        try:
            yield echoes
        finally:
            asking.cancel()
            await asyncio.wait((asking,))
            loop.remove_reader(raw)
