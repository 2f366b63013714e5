"""ICMP echo requests to a VM at a fixed rate, and their round trip times."""

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
"""A reply later than this counts as lost."""

_HEADER: Final = struct.Struct("!BBHHH")
_NUMBER: Final = struct.Struct("!Q")
_REQUEST: Final = 8


@dataclass(slots=True)
class Echoes:
    """Times of each request and its reply."""

    sent: list[Instant] = field(default_factory=list)
    answered: dict[int, Instant] = field(default_factory=dict)

    def waits(self, since: Instant, until: Instant) -> list[Seconds | None]:
        """Round trip time of each echo sent in the span; None if it was lost."""
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
    """The number of the echo that an IP packet replies to; None if it is not a reply to us."""
    # A raw socket delivers the IP header, whose length is in words of 4 bytes.
    start = (packet[0] & 0xF) * 4
    head, body = packet[start : start + _HEADER.size], packet[start + _HEADER.size :]
    if len(head) < _HEADER.size or len(body) < _NUMBER.size:
        return None
    kind, _, _, whose, _ = _HEADER.unpack(head)
    # The number is in the body: ICMP's sequence number has only 16 bits.
    number: int = _NUMBER.unpack_from(body)[0]
    # 0 is an echo reply. Raw sockets also receive replies to other programs.
    return number if (kind, whose) == (0, identity) else None


def checksum(data: bytes) -> int:
    """Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


PERIOD: Final = Seconds(0.01)
_LONGEST: Final = 2048


@asynccontextmanager
async def echoing(raw: socket.socket, address: str, clock: Clock) -> AsyncIterator[Echoes]:
    """Send echo requests to ``address`` through ``raw`` while the context is open; close ``raw`` afterwards."""
    echoes, loop = Echoes(), asyncio.get_running_loop()
    identity = raw.fileno()

    def receive() -> None:
        with suppress(OSError):
            number = answered_number(raw.recv(_LONGEST), identity)
            if number is not None:
                # The first of duplicates counts.
                echoes.answered.setdefault(number, clock.now())

    async def send() -> None:
        while True:
            due = Instant(clock.now() + PERIOD)
            echoes.sent.append(clock.now())
            with suppress(OSError):  # counts as lost
                await loop.sock_sendto(raw, request(identity, len(echoes.sent) - 1), (address, 0))
            await clock.sleep(Seconds(max(0.0, due - clock.now())))

    with raw:
        loop.add_reader(raw, receive)
        sending = asyncio.ensure_future(send())
        try:
            yield echoes
        finally:
            sending.cancel()
            await asyncio.wait((sending,))
            loop.remove_reader(raw)
