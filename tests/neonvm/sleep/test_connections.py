"""Many sessions need little memory, and a flood takes none from other sessions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.sleep.connections import (
    MAX_CONNECTIONS,
    MAX_QUEUED,
    Connections,
    EmptySegment,
    FrameQueue,
    is_after,
)

PLAIN, PROBE, UNSURE = EmptySegment.PLAIN, EmptySegment.PROBE, EmptySegment.UNSURE
NUMBERS = st.integers(0, 2**32 - 1)


def connection(source: int, port: int) -> bytes:
    return bytes((10, 100, source >> 8, source & 255)) + port.to_bytes(2, "big") + (5432).to_bytes(2, "big")


ONE = connection(1, 40000)


@given(NUMBERS, st.integers(1, 2**31 - 1))
def test_order_of_numbers_wraps(number: int, step: int) -> None:
    assert is_after((number + step) % 2**32, number)
    assert not is_after(number, (number + step) % 2**32)
    assert not is_after(number, number)


@given(NUMBERS, st.floats(0, 1e9), st.floats(0.6, 1e6))
def test_repeat_after_a_pause_is_a_probe(seq: int, now: float, pause: float) -> None:
    table = Connections()
    assert table.classify(ONE, seq, now) is UNSURE
    assert table.next_of(ONE) is None
    assert table.classify(ONE, seq, now + pause) is PROBE
    assert table.next_of(ONE) == (seq + 1) % 2**32
    assert table.classify(ONE, seq, now + 2 * pause) is PROBE


@given(NUMBERS, st.floats(0, 1e9), st.floats(0, 1e6))
def test_next_sequence_number_reveals_probe(seq: int, now: float, pause: float) -> None:
    """The client was asked, and acknowledges that with its next number: at once, and never again."""
    table, following = Connections(), (seq + 1) % 2**32
    assert table.classify(ONE, seq, now) is UNSURE
    assert table.classify(ONE, following, now + pause) is PROBE
    assert table.next_of(ONE) == following
    assert table.classify(ONE, following, now + pause) is PLAIN
    assert table.classify(ONE, seq, now + pause + 1) is PROBE


def test_immediate_repeat_is_no_probe() -> None:
    """A duplicate, or the reply of a client with other sequence numbers: answering each would never end."""
    table = Connections()
    assert table.classify(ONE, 7, 1.0) is UNSURE
    assert table.classify(ONE, 7, 1.2) is PLAIN
    assert table.classify(ONE, 9, 1.3) is PLAIN
    assert table.classify(ONE, 7, 2.0) is UNSURE
    assert table.classify(ONE, 7, 2.6) is PROBE
    assert table.classify(ONE, 7, 2.7) is PLAIN


def test_plain_acknowledgement_is_no_probe() -> None:
    """It shows the number after that of a probe, and does not undo what probes have shown."""
    table = Connections()
    assert table.classify(ONE, 8, 1.0) is UNSURE
    assert table.classify(ONE, 7, 2.0) is UNSURE
    assert table.classify(ONE, 7, 3.0) is PROBE
    assert table.classify(ONE, 8, 4.0) is PLAIN
    assert table.classify(ONE, 7, 5.0) is PROBE
    assert table.classify(ONE, 50, 6.0) is UNSURE
    assert table.next_of(ONE) is None


def test_bytes_across_two_fields_are_no_connection() -> None:
    table = Connections()
    table.expect(bytes(8), 0, 0.0)
    table.expect(bytes(7) + b"\x01", 5, 0.0)
    assert table.next_of(bytes(7) + b"\x01") == 5
    assert table.next_of(b"\x00" * 4 + b"\x01" * 4) is None


def test_scan_takes_no_room_from_others() -> None:
    table = Connections()
    others = [connection(source, 40000) for source in range(2, 12)]
    for other in others:
        assert table.classify(other, 7, 1.0) is UNSURE
    for port in range(3 * MAX_CONNECTIONS):
        table.classify(connection(1, port), 7, 1.5)
    assert len(table) == MAX_CONNECTIONS
    assert {table.classify(other, 7, 2.0) for other in others} == {PROBE}


def test_largest_source_makes_room_for_others() -> None:
    """Even if all of its sessions are confirmed: each source gets its fair share."""
    table = Connections()
    for port in range(MAX_CONNECTIONS):
        table.expect(connection(1, port), 7, 1.0)
    other = connection(2, 1)
    table.expect(other, 9, 1.0)
    assert (table.next_of(other), table.next_of(connection(1, 0)), len(table)) == (9, None, MAX_CONNECTIONS)
    table.expect(other, 10, 1.0)
    assert table.next_of(other) == 10


def test_largest_source_makes_room_for_itself() -> None:
    """Its oldest session is dropped, so that a new one has time to confirm its sequence number."""
    table = Connections()
    for port in range(MAX_CONNECTIONS):
        table.expect(connection(1, port), 7, 1.0)
    assert table.classify(ONE, 6, 1.0) is UNSURE
    assert table.classify(connection(1, 50000), 6, 1.0) is UNSURE
    assert table.classify(ONE, 7, 1.0) is PROBE
    assert (table.next_of(ONE), table.next_of(connection(1, 0)), len(table)) == (7, None, MAX_CONNECTIONS)


def test_frames_are_kept_in_order_and_once() -> None:
    frames = FrameQueue()
    assert frames.push(b"a", b"\x01\x02\x00", b"first")
    assert frames.push(b"b", b"", b"second")
    assert frames.push(b"a", b"\x01\x02\x00", b"first, again")
    assert frames.all(4) == [(b"\x01\x02\x00\x00", b"first"), (b"\x00" * 4, b"second")]
    assert frames.all(1) == [(b"\x01", b"first"), (b"\x00", b"second")]


@given(st.lists(st.integers(0, 2000), max_size=40), st.integers(0, 70_000))
def test_kept_frames_are_bounded(lengths: list[int], needed: int) -> None:
    """But for the one that is needed, which never takes the room of others."""
    frames = FrameQueue()
    stored = [length for number, length in enumerate(lengths) if frames.push(str(number).encode(), b"", bytes(length))]
    assert sum(stored) <= MAX_QUEUED
    assert frames.push(b"needed", b"", bytes(needed), is_needed=True)
    assert [len(frame) for _, frame in frames.all(0)] == [*stored, needed]
    room = frames.push(b"later", b"", bytes(2000))
    assert room == (sum(length + 9 for length in stored) + 2009 <= MAX_QUEUED)
