"""Parses and builds the Ethernet frames that a stand-in handles: ARP, and TCP over IPv4 (pure).

Input is untrusted. Malformed frames, later fragments and other protocols parse as None; nothing here raises. TCP
checksums are not verified, because senders on the same host leave them to checksum offload.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

FIN: Final = 0x01
SYN: Final = 0x02
RST: Final = 0x04
PSH: Final = 0x08
ACK: Final = 0x10

BROADCAST: Final = b"\xff" * 6
ARP: Final = b"\x08\x06"
_IPV4: Final = b"\x08\x00"
_ETHERNET: Final = 14
# Hardware type Ethernet, protocol type IPv4, address lengths 6 and 4; the operation follows.
_ARP_HEAD: Final = b"\x00\x01\x08\x00\x06\x04"
_ARP_FRAME: Final = 42
_ASKS, _ANSWERS = b"\x00\x01", b"\x00\x02"
_IP: Final = struct.Struct("!BBHHHBBH4s4s")
_TCP: Final = struct.Struct("!HHIIBBHHH")
_TIMES: Final = struct.Struct("!II")
_IDENTITY: Final = struct.Struct("!4sHHIBH")
# A fragment with an offset has no ports. Its sender retransmits the whole segment.
_FRAGMENT: Final = 0x1FFF
_DO_NOT_FRAGMENT: Final = 0x4000
_TCP_PROTOCOL: Final = 6
_HOPS: Final = 64
_ENDS, _PADS, _SEGMENT_SIZE, _TIMESTAMPS = 0, 1, 2, 8
_WRAP: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class ArpRequest:
    """An ARP request for the MAC of ``target``. Addresses are wire format."""

    mac: bytes
    address: bytes
    target: bytes


@dataclass(frozen=True, slots=True)
class Segment:
    """A TCP segment. ``mac`` is the frame's source; ``times`` are TSval and TSecr, None without timestamps."""

    mac: bytes
    source: bytes
    source_port: int
    destination: bytes
    port: int
    seq: int
    ack: int
    flags: int
    times: tuple[int, int] | None
    payload: bytes

    @property
    def end(self) -> int:
        """Sequence number after this segment."""
        return (self.seq + len(self.payload) + bool(self.flags & SYN) + bool(self.flags & FIN)) & _WRAP

    @property
    def connection(self) -> bytes:
        """Eight bytes that identify the connection: source address and port, destination port."""
        return self.source + self.source_port.to_bytes(2, "big") + self.port.to_bytes(2, "big")

    @property
    def identity(self) -> bytes:
        """Fifteen bytes that are the same in a retransmission."""
        length = len(self.payload) & 0xFFFF
        return _IDENTITY.pack(self.source, self.source_port, self.port, self.seq, self.flags, length)

    @property
    def sender(self) -> str:
        """``ADDRESS:PORT`` of the sender."""
        return f"{'.'.join(map(str, self.source))}:{self.source_port}"


def parse(frame: bytes) -> ArpRequest | Segment | None:
    """Parse a frame; None if malformed or of another protocol. Never raises.

    >>> parse(b"x" * 60) is None
    True
    """
    # Drop multicast source addresses: an answer would reach everyone.
    if len(frame) < _ARP_FRAME or frame[6] & 1 or frame[6:12] == bytes(6):
        return None
    protocol = frame[12:14]
    if protocol == _IPV4:
        return _segment(frame)
    return _arp_request(frame) if protocol == ARP else None


def _arp_request(frame: bytes) -> ArpRequest | None:
    mac = frame[22:28]
    # Drop a sender MAC that differs from the frame's: the reply would go to another machine.
    if frame[14:20] != _ARP_HEAD or frame[20:22] != _ASKS or mac != frame[6:12]:
        return None
    return ArpRequest(mac, frame[28:32], frame[38:42])


def _segment(frame: bytes) -> Segment | None:
    ip = _ip_header(frame)
    if ip is None:
        return None
    start, end = ip
    source_port, port, seq, ack, offset, flags, *_ = _TCP.unpack_from(frame, start)
    data = start + (offset >> 4) * 4
    if data < start + _TCP.size or data > end:
        return None
    times = _times(frame[start + _TCP.size : data])
    payload = frame[data:end]
    return Segment(frame[6:12], frame[26:30], source_port, frame[30:34], port, seq, ack, flags, times, payload)


def _ip_header(frame: bytes) -> tuple[int, int] | None:
    """Start and end of the TCP segment in an IPv4 frame; None if there is none. The frame may be padded."""
    if len(frame) < _ETHERNET + _IP.size + _TCP.size:
        return None
    version, _, length, _, fragment, _, protocol, _, source, _ = _IP.unpack_from(frame, _ETHERNET)
    start, end = _ETHERNET + (version & 15) * 4, _ETHERNET + length
    if version >> 4 != 4 or start < _ETHERNET + _IP.size or start + _TCP.size > end or end > len(frame):
        return None
    if fragment & _FRAGMENT or protocol != _TCP_PROTOCOL or not _is_host(source):
        return None
    # A header with a valid checksum is a multiple of 0xFFFF.
    return (start, end) if int.from_bytes(frame[_ETHERNET:start], "big") % 0xFFFF == 0 else None


def _is_host(address: bytes) -> bool:
    """Return True for a unicast address: not "this network", loopback, multicast or broadcast."""
    return address[0] not in {0, 127} and address[0] < 224


def _times(options: bytes) -> tuple[int, int] | None:
    at = 0
    while at < len(options) and options[at] != _ENDS:
        if options[at] == _PADS:
            at += 1
            continue
        length = options[at + 1] if at + 1 < len(options) else 0
        # A length below 2 would loop forever.
        if length < 2 or at + length > len(options):
            return None
        if options[at] == _TIMESTAMPS and length == 10:
            value, echo = _TIMES.unpack_from(options, at + 2)
            return value, echo
        at += length
    return None


def arp_reply(request: ArpRequest, mac: bytes) -> bytes:
    """ARP reply that the target of ``request`` is at ``mac``."""
    head = request.mac + mac + ARP + _ARP_HEAD + _ANSWERS
    return head + mac + request.target + request.mac + request.address


def echoed_timestamps(segment: Segment) -> bytes:
    """TCP options for an answer, with timestamps derived from the segment's; empty if it has none."""
    if segment.times is None:
        return b""
    value, echo = segment.times
    # The guest's clock is stopped, so its last TSval, which the client echoes, is still current.
    return bytes((_PADS, _PADS, _TIMESTAMPS, 10)) + _TIMES.pack(echo, value)


def segment_size(size: int) -> bytes:
    """TCP option MSS of ``size`` bytes."""
    return bytes((_SEGMENT_SIZE, 4)) + size.to_bytes(2, "big")


@dataclass(frozen=True, slots=True)
class Reply:
    """TCP fields of an answer. Sequence numbers wrap; ``options`` are a multiple of 4 bytes."""

    flags: int
    seq: int
    ack: int
    window: int = 0
    options: bytes = b""
    data: bytes = b""


def tcp_frame(to: Segment, mac: bytes, reply: Reply) -> bytes:
    """Ethernet frame with ``reply`` from ``mac`` to the sender of ``to``."""
    offset = (_TCP.size + len(reply.options)) << 2
    numbers = (reply.seq & _WRAP, reply.ack & _WRAP, offset, reply.flags, reply.window, 0, 0)
    tcp = _TCP.pack(to.port, to.source_port, *numbers) + reply.options + reply.data
    pseudo = to.destination + to.source + struct.pack("!HH", _TCP_PROTOCOL, len(tcp))
    tcp = tcp[:16] + _checksum(pseudo + tcp) + tcp[18:]
    length = _IP.size + len(tcp)
    fields = (0x45, 0, length, 0, _DO_NOT_FRAGMENT, _HOPS, _TCP_PROTOCOL)
    bare = _IP.pack(*fields, 0, to.destination, to.source)
    ip = bare[:10] + _checksum(bare) + bare[12:]
    return to.mac + mac + _IPV4 + ip + tcp


def _checksum(data: bytes) -> bytes:
    """The Internet checksum (RFC 1071)."""
    padded = data if len(data) % 2 == 0 else data + b"\0"
    # The one's complement sum of 16-bit words is the whole number modulo 0xFFFF.
    return (0xFFFF - int.from_bytes(padded, "big") % 0xFFFF).to_bytes(2, "big")
