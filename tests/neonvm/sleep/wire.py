"""Clients of a sleeping guest on the wire, and checks of its answers that share no code with it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from deploy.neonvm.sleep.asleep_page import asleep_response
from deploy.neonvm.sleep.frame_filter import FrameVerdict, SleeperAddress, StandInState, filter_frame
from deploy.neonvm.sleep.frames import ACK, Segment, parse

GUEST = SleeperAddress.of("10.100.128.7", [5432, 6432])
PAGE = b"# HELP node_load1 1m load average.\n# TYPE node_load1 gauge\nnode_load1 0.5\n"
FROZEN_AT = 1000.0


def memory(page: bytes = PAGE) -> StandInState:
    return StandInState(asleep_response(page), b"k" * 16)


@dataclass
class Client:
    """One end of a TCP connection, and the machine it is on."""

    address: bytes = bytes((10, 100, 0, 1))
    mac: bytes = bytes.fromhex("020000000001")
    source_port: int = 40000
    port: int = 5432
    seq: int = 1_000_000
    ack: int = 5_000_000
    times: tuple[int, int] | None = (700, 300)
    to: SleeperAddress = field(default_factory=lambda: GUEST)

    def frame(self, flags: int, payload: bytes = b"", *, back: int = 0, ip_options: bytes = b"") -> bytes:
        """A segment that begins ``back`` bytes before the next one."""
        options = b"" if self.times is None else b"\x01\x01\x08\x0a" + struct.pack("!II", *self.times)
        offset = (20 + len(options)) // 4 << 4
        numbers = ((self.seq - back) % 2**32, self.ack % 2**32, offset, flags, 502, 0, 0)
        tcp = struct.pack("!HHIIBBHHH", self.source_port, self.port, *numbers) + options + payload
        pseudo = self.address + self.to.ip + struct.pack("!BBH", 0, 6, len(tcp))
        tcp = tcp[:16] + struct.pack("!H", words_sum(pseudo + tcp) ^ 0xFFFF) + tcp[18:]
        words = 5 + len(ip_options) // 4
        head = struct.pack("!BBHHHBBH", 0x40 | words, 0, words * 4 + len(tcp), 7, 0x4000, 64, 6, 0)
        ip = head + self.address + self.to.ip + ip_options
        ip = ip[:10] + struct.pack("!H", words_sum(ip) ^ 0xFFFF) + ip[12:]
        return self.to.mac + self.mac + b"\x08\x00" + ip + tcp

    def probe(self, payload: bytes = b"") -> bytes:
        """A keepalive probe."""
        return self.frame(ACK, payload, back=1)

    def question(self) -> bytes:
        """An ARP request for the guest's MAC."""
        body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + self.mac + self.address + bytes(6) + self.to.ip
        return b"\xff" * 6 + self.mac + b"\x08\x06" + body

    def judged(self, remembered: StandInState, frame: bytes, now: float = FROZEN_AT) -> FrameVerdict:
        return filter_frame(frame, self.to, remembered, now)


def words_sum(data: bytes) -> int:
    """The one's complement sum of RFC 1071, word by word."""
    total = 0
    for at in range(0, len(data), 2):
        total += data[at] << 8 | (data[at + 1] if at + 1 < len(data) else 0)
        total = (total & 0xFFFF) + (total >> 16)
    return total


def has_right_checksums(frame: bytes) -> bool:
    """Sums over the header and over the segment, each with its checksum, are all ones."""
    ip, tcp = frame[14:34], frame[34 : 14 + int.from_bytes(frame[16:18], "big")]
    pseudo = frame[26:34] + struct.pack("!BBH", 0, 6, len(tcp))
    return words_sum(ip) == 0xFFFF and words_sum(pseudo + tcp) == 0xFFFF


def segment(frame: bytes) -> Segment:
    parsed = parse(frame)
    assert isinstance(parsed, Segment)
    return parsed


def answer(verdict: FrameVerdict) -> Segment:
    """The one segment that answers, with its checksums checked."""
    (frame,) = verdict.answers
    assert has_right_checksums(frame)
    return segment(frame)
