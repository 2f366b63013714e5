"""Echoes that a VM is to answer one by one, whether or not earlier ones are answered."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

LOST_AFTER: Final = Seconds(1.0)
"""No machine is so busy that it answers an echo later than that."""

_HEADER: Final = struct.Struct("!BBHHH")
_NUMBER: Final = struct.Struct("!Q")
_REQUEST: Final = 8


@dataclass(slots=True)
class Echoes:
    """Times at which each echo was sent and answered."""

    sent: list[Instant] = field(default_factory=list)
    answered: dict[int, Instant] = field(default_factory=dict)

    def waits(self, since: Instant, until: Instant) -> list[Seconds | None]:
        """Round trip of each echo sent in the span; None for those that are lost."""
        return [self._wait(number, at) for number, at in enumerate(self.sent) if since <= at <= until]

    def _wait(self, number: int, sent: Instant) -> Seconds | None:
        answered = self.answered.get(number)
        return Seconds(answered - sent) if answered is not None and answered - sent < LOST_AFTER else None


def request(identity: int, number: int) -> bytes:
    """An ICMP echo request."""
    body = _NUMBER.pack(number)
    plain = _HEADER.pack(_REQUEST, 0, 0, identity, number & 0xFFFF) + body
    return _HEADER.pack(_REQUEST, 0, checksum(plain), identity, number & 0xFFFF) + body


def answered_number(packet: bytes, identity: int) -> int | None:
    """The number of the echo that an IP packet answers; None if it answers none of ours."""
    # A raw socket delivers the IP header, too; its length is given in words of 4 bytes.
    start = (packet[0] & 0xF) * 4
    head, body = packet[start : start + _HEADER.size], packet[start + _HEADER.size :]
    if len(head) < _HEADER.size or len(body) < _NUMBER.size:
        return None
    kind, _, _, whose, _ = _HEADER.unpack(head)
    # The whole number is in the body: ICMP's own field has only 16 bits.
    number: int = _NUMBER.unpack_from(body)[0]
    # 0 is an echo reply. Raw sockets hear those of other programs as well.
    return number if (kind, whose) == (0, identity) else None


def checksum(data: bytes) -> int:
    """Checksum of IP and ICMP, for an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    # The ones' complement sum of RFC 1071: what is carried out of 16 bits is added again.
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


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
