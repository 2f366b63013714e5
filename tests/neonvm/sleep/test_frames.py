"""Frames are parsed as they are on the wire, and malformed ones are rejected."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.sleep.frames import (
    ACK,
    FIN,
    PSH,
    SYN,
    ArpRequest,
    Reply,
    Segment,
    arp_reply,
    echoed_timestamps,
    parse,
    tcp_frame,
)
from tests.neonvm.sleep.wire import GUEST, Client, has_right_checksums, segment, words_sum

CLIENT = Client()
NUMBERS = st.integers(0, 2**32 - 1)


def changed(frame: bytes, at: int, replacement: bytes) -> bytes:
    """With another part, and a header checksum that fits."""
    frame = frame[:at] + replacement + frame[at + len(replacement) :]
    ip = frame[14:24] + bytes(2) + frame[26:34]
    return frame[:24] + struct.pack("!H", words_sum(ip) ^ 0xFFFF) + frame[26:]


def test_segment_is_read_with_all_its_fields() -> None:
    read = segment(CLIENT.frame(ACK | PSH, b"query"))
    assert (read.source_port, read.port, read.seq, read.ack) == (40000, 5432, 1_000_000, 5_000_000)
    assert (read.flags, read.times, read.payload) == (ACK | PSH, (700, 300), b"query")
    assert (read.end, read.sender, read.mac) == (1_000_005, "10.100.0.1:40000", CLIENT.mac)


def test_ends_of_syn_and_fin_count() -> None:
    assert segment(CLIENT.frame(SYN)).end == 1_000_001
    assert segment(Client(seq=2**32 - 1).frame(FIN | ACK, b"x")).end == 1


def test_padding_and_ip_options_are_skipped() -> None:
    """Short frames are padded to 60 bytes, and what follows an IP header may move."""
    frame = CLIENT.frame(ACK, b"abc", ip_options=b"\x07\x04\x04\x00")
    assert segment(frame + bytes(20)).payload == b"abc"


def test_first_fragment_is_read() -> None:
    """A router has split a query: no other fragment shows its connection."""
    assert segment(changed(CLIENT.frame(ACK, b"query"), 20, b"\x20\x00")).payload == b"query"


def test_question_is_read_and_answered() -> None:
    question = parse(CLIENT.question())
    assert question == ArpRequest(CLIENT.mac, CLIENT.address, GUEST.ip)
    answered = arp_reply(question, GUEST.mac)
    assert answered[:14] == CLIENT.mac + GUEST.mac + b"\x08\x06"
    assert (
        answered[14:] == struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2) + GUEST.mac + GUEST.ip + CLIENT.mac + CLIENT.address
    )


@pytest.mark.parametrize(
    ("at", "part"),
    [
        (6, b"\x01"),  # the source is a group
        (6, bytes(6)),
        (12, b"\x86\xdd"),  # IPv6
        (12, b"\x81\x00"),  # a VLAN's tag
        (14, b"\x65"),
        (14, b"\x44"),  # a header below its least size
        (14, b"\x4f"),  # a header beyond the frame
        (16, b"\x00\x14"),  # no room for TCP
        (16, b"\xff\xff"),
        (20, b"\x20\x01"),  # one between others
        (20, b"\x00\x01"),  # a later fragment
        (23, b"\x11"),  # UDP
        (26, bytes(4)),
        (26, b"\x7f\x00\x00\x01"),
        (26, b"\xe0\x00\x00\x01"),
        (26, b"\xff\xff\xff\xff"),
        (46, b"\x40"),  # a TCP header below its least size
        (46, b"\xf0"),  # one beyond the frame
    ],
)
def test_malformed_segment_is_not_read(at: int, part: bytes) -> None:
    assert parse(changed(CLIENT.frame(ACK, b"abc"), at, part)) is None


def test_wrong_header_checksum_is_not_read() -> None:
    frame = bytearray(CLIENT.frame(ACK))
    frame[24] ^= 1
    assert parse(bytes(frame)) is None


@pytest.mark.parametrize(
    ("at", "part"), [(14, b"\x00\x06"), (19, b"\x08"), (20, b"\x00\x02"), (22, b"\x06"), (6, b"\x04")]
)
def test_odd_question_is_not_read(at: int, part: bytes) -> None:
    """Another network, another operation, or a sender that differs from the frame's."""
    frame = CLIENT.question()
    assert parse(frame[:at] + part + frame[at + len(part) :]) is None


@pytest.mark.parametrize(
    ("options", "times"),
    [
        (b"\x01\x01\x08\x0a" + struct.pack("!II", 5, 6), (5, 6)),
        (b"\x02\x04\x05\xb4\x08\x0a" + struct.pack("!II", 5, 6) + b"\x00\x00", (5, 6)),
        (b"\x00\x01\x08\x0a" + struct.pack("!II", 5, 6), None),
        (b"\x08\x00\x00\x00", None),
        (b"\x05\x01\x01\x01", None),
        (b"\x08\x0a\x01\x01", None),
        (b"\x01\x01\x01\x08", None),
        (b"\x08\x04\x01\x01", None),
    ],
)
def test_timestamps_are_read_among_other_options(options: bytes, times: tuple[int, int] | None) -> None:
    bare = Client(times=None).frame(ACK)
    frame = bare[:46] + bytes(((20 + len(options)) << 2,)) + bare[47:54] + options
    frame = changed(frame, 16, struct.pack("!H", len(frame) - 14))
    assert segment(frame).times == times


REPLIES = st.builds(
    Reply, st.integers(0, 255), NUMBERS, NUMBERS, st.integers(0, 65535), st.just(b""), st.binary(max_size=300)
)


@given(REPLIES, NUMBERS, NUMBERS)
def test_answers_have_right_checksums(reply: Reply, value: int, echo: int) -> None:
    """Every answer is a frame that its receiver parses as intended."""
    asked = segment(Client(times=(value, echo)).frame(ACK))
    frame = tcp_frame(asked, GUEST.mac, replace(reply, options=echoed_timestamps(asked)))
    assert has_right_checksums(frame)
    read = segment(frame)
    assert (read.seq, read.ack, read.flags, read.payload) == (reply.seq, reply.ack, reply.flags, reply.data)
    assert (read.times, read.destination, read.port, frame[:6]) == ((echo, value), CLIENT.address, 40000, CLIENT.mac)


@given(st.binary(max_size=200))
def test_noise_is_never_an_error(frame: bytes) -> None:
    parse(frame)


@given(st.data())
def test_damaged_frames_are_never_an_error(data: st.DataObject) -> None:
    """Everything that is still parsed lies within the frame."""
    frame = bytearray(data.draw(st.sampled_from([CLIENT.frame(ACK | PSH, b"query"), CLIENT.question()])))
    for _ in range(data.draw(st.integers(1, 6))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(frame[: data.draw(st.integers(0, len(frame)))])
    read = parse(data.draw(st.sampled_from([bytes(frame), cut])))
    if isinstance(read, Segment):
        assert len(read.payload) <= len(frame) - 54
        assert read.source[0] not in {0, 127}
