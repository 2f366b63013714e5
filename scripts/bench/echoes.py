"""Frames that a VM is to answer one by one: their bytes, and the answers to them (pure)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

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
