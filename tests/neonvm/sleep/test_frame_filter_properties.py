"""Packets of a guest's neighbours, in any order."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.sleep.asleep_page import MAX_RESPONSE
from deploy.neonvm.sleep.connections import is_after
from deploy.neonvm.sleep.frame_filter import TERMINATE, Action, StandInState, filter_frame
from deploy.neonvm.sleep.frames import ACK, FIN, PSH, RST, SYN, ArpRequest, parse
from tests.neonvm.sleep.wire import GUEST, Client, answer, has_right_checksums, memory, segment

PORTS = st.sampled_from([5432, 6432, 9100, 22, 51000])
NUMBERS = st.integers(0, 2**32 - 1)
FLAGS = st.sampled_from([SYN, ACK, ACK | PSH, FIN | ACK, RST, RST | ACK, SYN | ACK, 0, 0xFF]) | st.integers(0, 255)
PAYLOADS = st.sampled_from([b"", b"\0", TERMINATE, b"Q\0\0\0\rselect 1\0", b"GET /metrics HTTP/1.1\r\n\r\n"])
TIMES = st.none() | st.tuples(NUMBERS, NUMBERS)
CLIENTS = st.builds(
    Client,
    address=st.sampled_from([bytes((10, 100, 0, last)) for last in (1, 2, 3)]),
    mac=st.just(bytes.fromhex("020000000001")),
    source_port=st.integers(1, 65535),
    port=PORTS,
    seq=NUMBERS,
    ack=NUMBERS,
    times=TIMES,
)
SEGMENTS = st.builds(lambda client, flags, payload: client.frame(flags, payload), CLIENTS, FLAGS, PAYLOADS)
QUESTIONS = st.builds(Client.question, CLIENTS)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    frame = bytearray(draw(SEGMENTS | QUESTIONS))
    for _ in range(draw(st.integers(1, 4))):
        frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
    return bytes(frame[: draw(st.integers(0, len(frame)))])


FRAMES = SEGMENTS | QUESTIONS | damaged() | st.binary(max_size=120)
TRAFFIC = st.lists(st.tuples(FRAMES, st.floats(0, 2)), max_size=30)


@given(TRAFFIC)
def test_answers_go_to_the_sender_alone(traffic: list[tuple[bytes, float]]) -> None:
    """At most one small frame for each, with right checksums; the page needs a handshake that these never complete."""
    remembered, now = memory(), 0.0
    for frame, pause in traffic:
        now += pause
        verdict = filter_frame(frame, GUEST, remembered, now)
        assert len(verdict.answers) <= 1
        for answered in verdict.answers:
            assert answered[:12] == frame[6:12] + GUEST.mac
            assert not answered[0] & 1
            # The shortest frame on a wire has 60 bytes.
            assert len(answered) <= max(60, len(frame))
            if isinstance(asked := parse(frame), ArpRequest):
                assert answered[38:42] == asked.address
            else:
                assert answered[30:34] == frame[26:30]
                assert has_right_checksums(answered)


@given(TRAFFIC)
def test_broadcasts_get_at_most_an_answer_to_arp(traffic: list[tuple[bytes, float]]) -> None:
    remembered = memory()
    for frame, now in traffic:
        verdict = filter_frame(b"\xff" * 6 + frame[6:], GUEST, remembered, now)
        assert verdict.action in {Action.DROP, Action.ANSWER}
        assert len(verdict.answers) <= (frame[12:14] == b"\x08\x06")


@given(TRAFFIC, CLIENTS, st.sampled_from([5432, 6432]), st.sampled_from([SYN, ACK | PSH]))
def test_session_that_needs_the_guest_always_reaches_it(
    traffic: list[tuple[bytes, float]], client: Client, port: int, flags: int
) -> None:
    """Whatever came before, its packet wakes the guest, or is queued if the guest is waking and there is room."""
    remembered = memory()
    for frame, now in traffic:
        filter_frame(frame, GUEST, remembered, now)
    was_woken = remembered.is_woken
    needs = replace(client, port=port).frame(flags, b"" if flags == SYN else b"Q\0\0\0\rselect 1\0")
    verdict = filter_frame(needs, GUEST, remembered, 100.0)
    assert verdict.action is (Action.QUEUE if was_woken else Action.WAKE)
    assert remembered.is_woken
    assert verdict.answers == ()


@given(TRAFFIC, CLIENTS, st.integers(1, 5))
def test_repeated_probe_is_always_answered(traffic: list[tuple[bytes, float]], client: Client, repeats: int) -> None:
    """Whatever came before and in between."""
    remembered, prober = memory(), replace(client, port=5432)
    for frame, now in traffic:
        filter_frame(frame, GUEST, remembered, now)
    filter_frame(prober.probe(), GUEST, remembered, 100.0)
    for repeat in range(1, repeats + 1):
        for frame, _ in traffic:
            # Another segment of the same session is a session with two next numbers, which no client is.
            if frame[26:38] != prober.probe()[26:38]:
                filter_frame(frame, GUEST, remembered, 100.0 + repeat)
        read = answer(filter_frame(prober.probe(), GUEST, remembered, 100.0 + repeat))
        assert (read.flags, read.seq, read.ack) == (ACK, prober.ack, prober.seq)


OWN = st.sampled_from(
    [Client().frame(ACK, back=back) for back in (0, 1)]
    + [Client().frame(FIN | ACK, payload, back=back) for payload in (b"", TERMINATE) for back in (0, 5)]
)


@given(st.lists(st.tuples(OWN, st.sampled_from([0.1, 0.7, 1.2])), min_size=3, max_size=8))
def test_acknowledged_end_is_queued(session: list[tuple[bytes, float]]) -> None:
    """Whatever a client sent before, in any order and at any pace: it never sends the end again."""
    remembered, now = memory(), 1.0
    for frame, pause in session:
        now += pause
        sent = segment(frame)
        for reply in filter_frame(frame, GUEST, remembered, now).answers:
            if sent.flags & FIN and not is_after(sent.end, segment(reply).ack):
                queued = [segment(other) for _, other in remembered.frames.all(0)]
                assert [other for other in queued if other.flags & FIN and other.end == sent.end]


FULL_PAGE = b"".join(
    b"%s_%d 0.5\n" % (family, number)
    for family in (b"autoscale", b"node_load", b"node_pressure")
    for number in range(45)
)


@pytest.mark.parametrize("flags", [FIN | ACK, RST, SYN])
def test_flood_takes_a_bounded_amount_of_memory(flags: int) -> None:
    """Of many sessions from many addresses at once, each of which is certain."""
    _flooded(flags, 200)  # what the first one takes for all that follow
    # The smallest, because tracemalloc counts what else the process allocates meanwhile. What else a sleeper takes is
    # in test_network_stand_in.py.
    assert min(_memory_of_flood(flags) for _ in range(3)) < 13 * 1024


def _memory_of_flood(flags: int) -> int:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        remembered = _flooded(flags, 600)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert MAX_RESPONSE - 400 < len(remembered.response) <= MAX_RESPONSE
    return taken


def _flooded(flags: int, sessions: int) -> StandInState:
    remembered = memory(FULL_PAGE)
    for number in range(sessions):
        client = Client(address=bytes((10, 100, 1, number % 100)), source_port=1 + number)
        for now, flag in ((1.0, ACK), (2.0, ACK), (3.0, flags)):
            filter_frame(client.frame(flag, back=1), GUEST, remembered, now)
    return remembered
