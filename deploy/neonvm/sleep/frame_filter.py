"""Verdicts on frames to a sleeping guest: drop, answer, queue or wake (pure).

- ARP requests and keepalive probes are answered, scrapes get the last metrics page, and other ports are closed.
- A FIN or RST is queued for the guest. A FIN is acknowledged once it is certain that nothing before it is lost: the
  acknowledgement would cover that, and the client would not repeat it. A SYN or data for a database port wakes the
  guest.
- A frame gets at most one answer, except a scrape, whose client has proven its address in the handshake.
- Memory is bounded, regardless of what the network sends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from deploy.neonvm.addressing import METRICS_PORT, flat_mac
from deploy.neonvm.sleep.asleep_page import NOT_FOUND
from deploy.neonvm.sleep.connections import Connections, EmptySegment, FrameQueue, is_after
from deploy.neonvm.sleep.frames import (
    ACK,
    ARP,
    BROADCAST,
    FIN,
    PSH,
    RST,
    SYN,
    ArpRequest,
    Reply,
    Segment,
    arp_reply,
    echoed_timestamps,
    parse,
    segment_size,
    tcp_frame,
)
from deploy.neonvm.texts import sleep as texts

TERMINATE: Final = b"X\0\0\0\4"
"""Postgres Terminate message."""
_WINDOWS_PROBE: Final = b"\0"
"""Payload of Windows keepalive probes. No postgres message or TLS record starts with it, but many end with it."""
_WINDOW: Final = 502
"""Unscaled window. The client knows the scale and we do not; 64 KB at Linux's default of 7."""
_SCRAPE_WINDOW: Final = 0xFFFF
REFUSALS: Final = 100
"""RSTs per second."""
_TCP_IP: Final = 40


class Action(Enum):
    """Verdict on a frame. ``QUEUE`` and ``WAKE`` queue it for the guest; ``QUEUE`` may also answer it."""

    DROP = "drop"
    ANSWER = "answer"
    QUEUE = "queue"
    WAKE = "wake"


@dataclass(frozen=True, slots=True)
class FrameVerdict:
    """Action on a frame, frames to send back, reason, and address and port of a sender that wakes the guest."""

    action: Action
    answers: tuple[bytes, ...] = ()
    why: str = ""
    who: str = ""


@dataclass(frozen=True, slots=True)
class SleeperAddress:
    """A sleeping guest's IPv4 address and MAC in wire format, its database ports, and the network's MTU in bytes (at
    least 68). Packets from ``quiet_networks`` never wake it.
    """

    ip: bytes
    mac: bytes
    ports: frozenset[int]
    mtu: int = 1500
    quiet_networks: Sequence[IPv4Network] = ()

    @classmethod
    def of(cls, address: str, ports: Iterable[int], mtu: int = 1500) -> SleeperAddress:
        """Address of the VM with this flat-network address.

        >>> SleeperAddress.of("10.100.128.7", [5432]).mac.hex(":")
        '52:54:00:64:80:07'
        """
        mac = bytes.fromhex(flat_mac(address).replace(":", ""))
        return cls(IPv4Address(address).packed, mac, frozenset(ports), mtu)

    def is_quiet(self, sender: bytes) -> bool:
        """Return True if packets from the IPv4 address ``sender`` never wake the guest."""
        source = int.from_bytes(sender, "big")
        return any(source & int(net.netmask) == int(net.network_address) for net in self.quiet_networks)


@dataclass(slots=True)
class StandInState:
    """State of a stand-in during one sleep. ``response`` answers scrapes. ``key`` is the secret of the SYN cookies."""

    response: bytes
    key: bytes
    connections: Connections = field(default_factory=Connections)
    frames: FrameQueue = field(default_factory=FrameQueue)
    is_woken: bool = False
    _second: int = 0
    _refusals: int = 0

    def may_refuse(self, now: float) -> bool:
        """Count a RST; return False above ``REFUSALS`` per second."""
        if int(now) != self._second:
            self._second, self._refusals = int(now), 0
        self._refusals += 1
        return self._refusals <= REFUSALS

    def cookie(self, segment: Segment, seq: int) -> int:
        """SYN cookie: our initial sequence number for a client whose SYN had ``seq``."""
        text = segment.connection + seq.to_bytes(4, "big")
        return int.from_bytes(blake2b(text, digest_size=4, key=self.key).digest(), "big")


_NOT_FOR_US: Final = FrameVerdict(Action.DROP, why=texts.NOT_FOR_US)
_MALFORMED: Final = FrameVerdict(Action.DROP, why=texts.NOT_UNDERSTOOD)
_NO_ROOM: Final = FrameVerdict(Action.DROP, why=texts.NO_ROOM)
_INVALID_FLAGS: Final = FrameVerdict(Action.DROP, why=texts.IMPOSSIBLE)
_PLAIN_ACK: Final = FrameVerdict(Action.DROP, why=texts.ACKNOWLEDGEMENT)
_IGNORED_SENDER: Final = FrameVerdict(Action.DROP, why=texts.DOES_NOT_WAKE)
_OUT_OF_ORDER: Final = FrameVerdict(Action.DROP, why=texts.END_OUT_OF_ORDER)
_END_SOON: Final = FrameVerdict(Action.DROP, why=texts.END_AGAIN)
_CLOSED: Final = FrameVerdict(Action.DROP, why=texts.CLOSED_PORT)
_RATE_LIMITED: Final = FrameVerdict(Action.DROP, why=texts.TOO_MANY_REFUSALS)


def filter_frame(
    frame: bytes, sleeper: SleeperAddress, state: StandInState, now: float, header: bytes = b""
) -> FrameVerdict:
    """Return the verdict on a frame with its offload header at ``now`` (seconds). Updates ``state``; never raises."""
    to = frame[:6]
    # The common case on a flat network: a frame for another guest.
    if to != sleeper.mac and not (to == BROADCAST and frame[12:14] == ARP):
        return _NOT_FOR_US
    packet = parse(frame)
    if packet is None or packet.mac == sleeper.mac:
        return _MALFORMED
    if isinstance(packet, ArpRequest):
        if packet.target != sleeper.ip:
            return _NOT_FOR_US
        return FrameVerdict(Action.ANSWER, (arp_reply(packet, sleeper.mac),), texts.ASKED_FOR_MAC)
    if packet.destination != sleeper.ip or packet.source == sleeper.ip:
        return _NOT_FOR_US
    return _SegmentFilter(frame, header, packet, sleeper, state, now).verdict()


@dataclass(frozen=True, slots=True)
class _SegmentFilter:
    """Verdict on one TCP segment to the guest."""

    frame: bytes
    header: bytes
    segment: Segment
    sleeper: SleeperAddress
    state: StandInState
    now: float

    def verdict(self) -> FrameVerdict:
        if not _is_valid(self.segment.flags):
            return _INVALID_FLAGS
        if self.segment.port in self.sleeper.ports:
            return self._to_database()
        if self.segment.port == METRICS_PORT:
            return self._to_metrics()
        if self.segment.flags & SYN:
            return self._reset(0, self.segment.end)
        # The guest may have outbound connections, whose peers probe them.
        return self._acknowledgement() if self._may_be_probe() else _CLOSED

    def _to_database(self) -> FrameVerdict:
        segment = self.segment
        if self.state.is_woken:
            return self._while_waking()
        if segment.flags & RST:
            return FrameVerdict(Action.QUEUE, why=texts.SESSION_RESET) if self._queue() else _NO_ROOM
        if segment.flags & SYN:
            return self._wake(texts.NEW_SESSION)
        if segment.payload == TERMINATE or (segment.flags & FIN and not segment.payload):
            return self._close_session()
        return self._acknowledgement() if self._may_be_probe() else self._wake(texts.SENT_DATA)

    def _may_be_probe(self) -> bool:
        """Return True if the segment may be a keepalive probe."""
        segment = self.segment
        if segment.flags & (SYN | FIN | RST):
            return False
        # The last byte of a query may come alone, but with PSH; a probe has no PSH.
        if segment.payload and (segment.payload != _WINDOWS_PROBE or segment.flags & PSH):
            return False
        # A probe repeats the last byte; a new byte is data.
        return not (segment.payload and self.state.connections.next_of(segment.connection) == segment.seq)

    def _while_waking(self) -> FrameVerdict:
        """Answer keepalives and queue the rest; the guest resumes soon."""
        if self._may_be_probe():
            return self._acknowledgement()
        return FrameVerdict(Action.QUEUE, why=texts.FOLLOWS_WAKE) if self._queue() else _NO_ROOM

    def _wake(self, why: str) -> FrameVerdict:
        segment = self.segment
        if self.sleeper.is_quiet(segment.source):
            if segment.flags & SYN:
                return self._reset(0, segment.end)
            # The client retransmits until the guest is awake. A later FIN must not be acknowledged before this data.
            self.state.connections.expect(segment.connection, segment.seq, self.now)
            return _IGNORED_SENDER
        self.state.is_woken = True
        self.state.frames.push(segment.identity, self.header, self.frame, is_needed=True)
        return FrameVerdict(Action.WAKE, why=why, who=segment.sender)

    def _close_session(self) -> FrameVerdict:
        segment, connections = self.segment, self.state.connections
        following = connections.next_of(segment.connection)
        if following is None and not connections.is_repeated(segment.connection, segment.seq, self.now):
            return FrameVerdict(Action.QUEUE, why=texts.FIRST_END) if self._queue_end() else _NO_ROOM
        next_seq = segment.end if following is None else following
        is_again = following is not None and not is_after(segment.end, next_seq)
        # A host that repeats an end all the time, maybe in the name of another, gets few answers.
        if is_again and not connections.may_answer(segment.connection, self.now):
            return _END_SOON
        if is_after(segment.seq, next_seq):
            return _OUT_OF_ORDER
        # Even if it seems to be a repetition: the number of a slow client may be too high.
        if not self._queue_end():
            return self._wake(texts.TOO_MANY_ENDS)
        if is_again:
            return FrameVerdict(Action.QUEUE, (self._acknowledged(next_seq),), texts.END_AGAIN)
        connections.expect(segment.connection, segment.end, self.now)
        return FrameVerdict(Action.QUEUE, (self._acknowledged(segment.end),), texts.SESSION_END)

    def _acknowledgement(self) -> FrameVerdict:
        segment, connections = self.segment, self.state.connections
        kind = connections.classify(segment.connection, segment.seq, self.now)
        if kind is EmptySegment.UNSURE:
            # Send a probe of our own; the client's ACK shows its next sequence number. Acknowledging this segment
            # could acknowledge a lost byte, and a client with tcp_user_timeout may not probe twice.
            probe = Reply(ACK, segment.ack - 1, segment.seq, _WINDOW, echoed_timestamps(segment))
            return FrameVerdict(Action.ANSWER, (tcp_frame(segment, self.sleeper.mac, probe),), texts.FIRST_KEEPALIVE)
        following = connections.next_of(segment.connection)
        if kind is EmptySegment.PLAIN or following is None:
            return _PLAIN_ACK
        return FrameVerdict(Action.ANSWER, (self._acknowledged(following),), texts.KEEPALIVE)

    def _to_metrics(self) -> FrameVerdict:
        """Serve scrapes statelessly."""
        segment, state = self.segment, self.state
        if segment.flags & SYN:
            seq, options = state.cookie(segment, segment.seq), segment_size(self.sleeper.mtu - _TCP_IP)
            # Data in the SYN is not acknowledged: nothing is stored of it.
            return self._answer(texts.SCRAPE, Reply(SYN | ACK, seq, segment.seq + 1, _SCRAPE_WINDOW, options))
        if segment.flags & RST:
            return _CLOSED
        if segment.payload:
            # The request is the client's first segment with data, so it acknowledges our cookie + 1.
            first = (state.cookie(segment, (segment.seq - 1) & 0xFFFFFFFF) + 1) & 0xFFFFFFFF
            is_request = segment.ack == first and segment.payload.startswith(b"GET ")
            # A reset makes the client reconnect, also if its connection predates the sleep.
            return self._scraped() if is_request else self._reset(segment.ack, segment.end)
        if segment.flags & FIN:
            return self._answer(texts.SCRAPE, Reply(ACK, segment.ack, segment.end))
        return _PLAIN_ACK

    def _scraped(self) -> FrameVerdict:
        segment = self.segment
        is_page = segment.payload.startswith((b"GET /metrics ", b"GET /metrics?"))
        response = self.state.response if is_page else NOT_FOUND
        size = self.sleeper.mtu - _TCP_IP
        parts = [response[start : start + size] for start in range(0, len(response), size)]
        replies, seq = list[Reply](), segment.ack
        for number, part in enumerate(parts, 1):
            end = FIN if number == len(parts) else 0
            replies.append(Reply(ACK | PSH | end, seq, segment.end, _SCRAPE_WINDOW, data=part))
            seq += len(part)
        return self._answer(texts.SCRAPE, *replies)

    def _reset(self, seq: int, ack: int) -> FrameVerdict:
        if not self.state.may_refuse(self.now):
            return _RATE_LIMITED
        return self._answer(texts.CLOSED_PORT, Reply(RST | ACK, seq, ack))

    def _answer(self, why: str, *replies: Reply) -> FrameVerdict:
        answers = tuple(tcp_frame(self.segment, self.sleeper.mac, reply) for reply in replies)
        return FrameVerdict(Action.ANSWER, answers, why)

    def _acknowledged(self, ack: int) -> bytes:
        segment, times = self.segment, echoed_timestamps(self.segment)
        return tcp_frame(segment, self.sleeper.mac, Reply(ACK, segment.ack, ack, _WINDOW, times))

    def _queue_end(self) -> bool:
        """Queue the end of a session, unless it is queued already. Return False if there is no room."""
        segment, frames = self.segment, self.state.frames
        if segment.payload and segment.flags & FIN:
            # Linux repeats in one segment what it has sent in two.
            end = replace(segment, seq=(segment.end - 1) & 0xFFFFFFFF, flags=FIN | ACK, payload=b"")
            if frames.has(end.identity) and frames.has(replace(segment, flags=segment.flags & ~FIN).identity):
                return True
        return self._queue() or frames.has(segment.identity)

    def _queue(self) -> bool:
        return self.state.frames.push(self.segment.identity, self.header, self.frame)


def _is_valid(flags: int) -> bool:
    """Return True for flags that a TCP stack sends; scanners send others."""
    kind = flags & (SYN | FIN | RST | ACK)
    return kind in {SYN, ACK, FIN | ACK, RST, RST | ACK}
