"""Sends ICMP echo requests to a VM at a fixed rate and measures round-trip times."""

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
"""An echo without a reply within this time counts as lost."""

_HEADER: Final = struct.Struct("!BBHHH")
_NUMBER: Final = struct.Struct("!Q")
_ECHO_REQUEST: Final = 8


@dataclass(slots=True)
class Echoes:
    """Send times of echo requests, and receive times of replies by request number."""

    sent: list[Instant] = field(default_factory=list)
    replied_at: dict[int, Instant] = field(default_factory=dict)

    def round_trips(self, since: Instant, until: Instant) -> list[Seconds | None]:
        """Round-trip time of each echo sent from ``since`` to ``until``; None if it was lost."""
        return [self._round_trip(number, at) for number, at in enumerate(self.sent) if since <= at <= until]

    def _round_trip(self, number: int, sent: Instant) -> Seconds | None:
        replied = self.replied_at.get(number)
        return Seconds(replied - sent) if replied is not None and replied - sent < LOST_AFTER else None


def request(identity: int, number: int) -> bytes:
    """An ICMP echo request with ``number`` as its payload."""
    body = _NUMBER.pack(number)
    zero_checksum = _HEADER.pack(_ECHO_REQUEST, 0, 0, identity, number & 0xFFFF) + body
    return _HEADER.pack(_ECHO_REQUEST, 0, checksum(zero_checksum), identity, number & 0xFFFF) + body


def reply_number(packet: bytes, identity: int) -> int | None:
    """Number of the echo request that an IP packet answers; None if it answers none of ours."""
    # Raw sockets deliver the IP header; its length field counts 4-byte words.
    start = (packet[0] & 0xF) * 4
    head, body = packet[start : start + _HEADER.size], packet[start + _HEADER.size :]
    if len(head) < _HEADER.size or len(body) < _NUMBER.size:
        return None
    kind, _, _, sender, _ = _HEADER.unpack(head)
    # In the payload, because ICMP sequence numbers have only 16 bits.
    number: int = _NUMBER.unpack_from(body)[0]
    # Type 0 is an echo reply. Raw sockets also receive replies to other programs.
    return number if (kind, sender) == (0, identity) else None


def checksum(data: bytes) -> int:
    """Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


PERIOD: Final = Seconds(0.01)
_MAX_PACKET: Final = 2048


@asynccontextmanager
async def echoing(raw: socket.socket, address: str, clock: Clock) -> AsyncIterator[Echoes]:
    """Send an echo request every ``PERIOD`` through ``raw`` while the context is open; close ``raw`` on exit."""
    echoes, loop = Echoes(), asyncio.get_running_loop()
    # Unique among the open sockets of this process.
    identity = raw.fileno()

    def receive() -> None:
        with suppress(OSError):
            number = reply_number(raw.recv(_MAX_PACKET), identity)
            if number is not None:
                # Ignore duplicates.
                echoes.replied_at.setdefault(number, clock.now())

    async def send() -> None:
        while True:
            due = Instant(clock.now() + PERIOD)
            echoes.sent.append(clock.now())
            with suppress(OSError):  # the echo counts as lost
                await loop.sock_sendto(raw, request(identity, len(echoes.sent) - 1), (address, 0))
            await clock.sleep(Seconds(max(0.0, due - clock.now())))

    with raw:
        loop.add_reader(raw, receive)
        sending = asyncio.ensure_future(send())
        try:
            yield echoes
        finally:
            sending.cancel()
            # Unlike `await sending`, it does not raise the cancellation.
            await asyncio.wait((sending,))
            loop.remove_reader(raw)
