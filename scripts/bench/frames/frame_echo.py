"""A client that has a VM answer a single frame every 10 ms, and notes which were not answered.

- In namespaces it is an ICMP echo, which the guest's kernel answers.
- A hub's gateway passes no ICMP on. There it knocks at a port at which the guest does not listen: each knock is one
  frame, which is refused with another. One that is lost is sent again by the gateway, seconds later. The gateway lets
  two knocks wait at its own door, and on a busy machine more come at once: time runs from when it has let one in.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Final

from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scripts.bench.frames.echoes import Echoes, answered_number, request

PERIOD: Final = Seconds(0.01)
CLOSED_PORT: Final = 9
_LONGEST: Final = 2048


@asynccontextmanager
async def _asking(
    found: Echoes, ask: Callable[[int], Coroutine[object, object, None]], clock: Clock
) -> AsyncIterator[None]:
    """Call ``ask`` every ``PERIOD`` while the block lasts, whether or not earlier ones are answered."""

    async def go_on() -> None:
        async with asyncio.TaskGroup() as requests:
            while True:
                due = Instant(clock.now() + PERIOD)
                found.sent.append(clock.now())
                requests.create_task(ask(len(found.sent) - 1))
                await clock.sleep(Seconds(max(0.0, due - clock.now())))

    going = asyncio.ensure_future(go_on())
    try:
        yield
    finally:
        going.cancel()
        await asyncio.wait((going,))


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

    async def ask(number: int) -> None:
        with suppress(OSError):  # a frame that cannot be sent is one that is not answered
            await loop.sock_sendto(raw, request(identity, number), (address, 0))

    with raw:
        loop.add_reader(raw, hear)
        try:
            async with _asking(echoes, ask, clock):
                yield echoes
        finally:
            loop.remove_reader(raw)


@asynccontextmanager
async def knocking(host: str, port: int, clock: Clock) -> AsyncIterator[Echoes]:
    """Open connections to a port while the block lasts; it leads to a port at which the guest refuses them."""
    echoes = Echoes()

    async def ask(number: int) -> None:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            # Time runs from when the gateway has let the knock in.
            echoes.sent[number] = clock.now()
            with suppress(OSError):
                # The gateway accepts first and closes when the guest refuses: that ends the read.
                await reader.read(1)
            writer.close()
            echoes.answered[number] = clock.now()

    async with _asking(echoes, ask, clock):
        yield echoes
