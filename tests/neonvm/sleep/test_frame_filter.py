"""The verdict on each kind of frame for a sleeping guest."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network

import pytest

from deploy.neonvm.sleep.connections import MAX_CONNECTIONS, MAX_QUEUED
from deploy.neonvm.sleep.frame_filter import REFUSALS, TERMINATE, Action, StandInState
from deploy.neonvm.sleep.frames import ACK, FIN, PSH, RST, SYN
from deploy.neonvm.texts import sleep as texts
from tests.neonvm.sleep.wire import GUEST, Client, answer, memory, segment

DROP, ANSWER, QUEUE, WAKE = Action.DROP, Action.ANSWER, Action.QUEUE, Action.WAKE
CLIENT = Client()
QUIET = Client(to=replace(GUEST, quiet_networks=[IPv4Network("10.100.0.0/24")]))
SCRAPER = Client(port=9100, ack=0, times=None)


def kept(remembered: StandInState) -> list[bytes]:
    return [frame for _, frame in remembered.frames.all(0)]


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xff" * 60,
        b"\xff" * 6 + CLIENT.frame(SYN)[6:],
        b"\x01\x00\x5e\x00\x00\x01" + CLIENT.frame(SYN)[6:],
        b"\x52\x54\x00\x64\x80\x08" + CLIENT.frame(SYN)[6:],
        GUEST.mac + b"\x02\x00\x00\x00\x00\x01\x86\xdd" + bytes(60),
        Client(to=replace(GUEST, ip=bytes((10, 100, 128, 8)))).question(),
        Client(to=replace(GUEST, ip=bytes((10, 100, 128, 8)))).frame(SYN),
        Client(mac=GUEST.mac).frame(SYN),
        Client(address=GUEST.ip).frame(SYN),
    ],
)
def test_frame_for_others_is_dropped(frame: bytes) -> None:
    """Including frames that claim to come from the guest itself."""
    remembered = memory()
    verdict = CLIENT.judged(remembered, frame)
    assert (verdict.action, verdict.answers, kept(remembered)) == (DROP, (), [])


def test_question_for_the_mac_is_answered() -> None:
    verdict = CLIENT.judged(memory(), CLIENT.question())
    assert (verdict.action, [frame[:6] for frame in verdict.answers]) == (ANSWER, [CLIENT.mac])
    asked_again = GUEST.mac + CLIENT.question()[6:]
    assert CLIENT.judged(memory(), asked_again).action is ANSWER


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (CLIENT.frame(SYN), texts.NEW_SESSION),
        (CLIENT.frame(SYN, b"early data"), texts.NEW_SESSION),
        (Client(port=6432).frame(SYN), texts.NEW_SESSION),
        (CLIENT.frame(ACK | PSH, b"Q\0\0\0\rselect 1\0"), texts.SENT_DATA),
        (CLIENT.frame(ACK | PSH | FIN, b"Q\0\0\0\rselect 1\0"), texts.SENT_DATA),
        (CLIENT.frame(ACK, b"Q"), texts.SENT_DATA),
        (CLIENT.frame(ACK | PSH, b"\0"), texts.SENT_DATA),  # the rest of a query whose other part the guest has
        (CLIENT.frame(ACK, TERMINATE + b"x"), texts.SENT_DATA),
    ],
)
def test_session_that_needs_the_guest_wakes_it(frame: bytes, why: str) -> None:
    remembered = memory()
    verdict = CLIENT.judged(remembered, frame)
    assert (verdict.action, verdict.answers, verdict.why) == (WAKE, (), why)
    assert verdict.who == "10.100.0.1:40000"
    assert kept(remembered) == [frame]


@pytest.mark.parametrize("flags", [0, FIN, SYN | FIN, SYN | ACK, SYN | RST, FIN | PSH | 0x20, SYN | FIN | RST | ACK])
def test_flags_of_scanners_are_dropped(flags: int) -> None:
    verdict = CLIENT.judged(memory(), CLIENT.frame(flags, b"payload"))
    assert (verdict.action, verdict.why) == (DROP, texts.IMPOSSIBLE)


@pytest.mark.parametrize("payload", [b"", b"\0"])
def test_repeated_probe_is_answered(payload: bytes) -> None:
    """Of Linux, macOS and Go without a byte, of Windows with one. The client does not answer the question that follows
    the first.
    """
    remembered = memory()
    asked = answer(CLIENT.judged(remembered, CLIENT.probe(payload), 1.0))
    assert (asked.seq, asked.ack, asked.payload, asked.times) == (CLIENT.ack - 1, CLIENT.seq - 1, b"", (300, 700))
    verdict = CLIENT.judged(remembered, CLIENT.probe(payload), 2.0)
    read = answer(verdict)
    assert (verdict.action, read.seq, read.ack, read.flags, read.times) == (
        ANSWER,
        CLIENT.ack,
        CLIENT.seq,
        ACK,
        (300, 700),
    )
    assert CLIENT.judged(remembered, CLIENT.frame(ACK), 3.0).action is DROP
    assert not remembered.is_woken


def test_first_probe_waits_for_clients_number() -> None:
    """The client may send no second one. A plain ACK would have the same sequence number."""
    remembered = memory()
    CLIENT.judged(remembered, CLIENT.probe(), 1.0)
    read = answer(CLIENT.judged(remembered, CLIENT.frame(ACK), 1.001))
    assert (read.seq, read.ack, read.times) == (CLIENT.ack, CLIENT.seq, (300, 700))
    assert CLIENT.judged(remembered, CLIENT.frame(ACK), 1.002).action is DROP
    remembered = memory()
    asked = CLIENT.judged(remembered, CLIENT.frame(ACK), 1.0)
    assert (asked.action, asked.why) == (ANSWER, texts.FIRST_KEEPALIVE)
    assert CLIENT.judged(remembered, CLIENT.frame(ACK), 1.001).action is DROP


def test_byte_after_a_probe_wakes() -> None:
    """It is the next one, which a probe never shows."""
    remembered = memory()
    for now in (1.0, 2.0):
        CLIENT.judged(remembered, CLIENT.probe(), now)
    assert CLIENT.judged(remembered, CLIENT.frame(ACK, b"\0"), 3.0).action is WAKE


def is_kept_alive(remembered: StandInState, client: Client, now: float) -> bool:
    """A probe of the client, which answers a question about its number as kernels do."""
    asked = answer(client.judged(remembered, client.probe(), now))
    read = asked if asked.ack == client.seq else answer(client.judged(remembered, client.frame(ACK), now))
    return (read.seq, read.ack) == (client.ack, client.seq)


def test_scan_ends_no_session_of_a_pool() -> None:
    """A neighbour takes half of the table once, and the sessions of one address need more than the other half."""
    remembered = memory()
    pool = [Client(source_port=40_000 + number, seq=1_000 * number) for number in range(MAX_CONNECTIONS)]
    assert all(is_kept_alive(remembered, client, 1.0) for client in pool)
    for port in range(1, 300):
        scan = Client(address=bytes((10, 100, 9, 9)), source_port=port)
        assert is_kept_alive(remembered, scan, 2.0)
    assert all(is_kept_alive(remembered, client, 30.0) for client in pool)
    assert len(remembered.connections) == MAX_CONNECTIONS


def test_session_that_the_guest_opened_is_kept_alive() -> None:
    other, remembered = Client(port=51000, source_port=5432), memory()
    assert other.judged(remembered, other.probe(), 1.0).why == texts.FIRST_KEEPALIVE
    assert answer(other.judged(remembered, other.probe(), 2.0)).ack == other.seq
    assert other.judged(remembered, other.frame(ACK | PSH, b"data"), 3.0).action is DROP
    assert other.judged(remembered, other.frame(RST | ACK), 3.0).action is DROP


def test_end_that_follows_a_lost_segment_waits() -> None:
    """Acknowledging it would acknowledge the missing segment."""
    remembered = memory()
    for now in (1.0, 2.0):
        CLIENT.judged(remembered, CLIENT.probe(), now)
    verdict = CLIENT.judged(remembered, CLIENT.frame(FIN | ACK, back=-10), 3.0)
    assert (verdict.action, verdict.answers, kept(remembered)) == (DROP, (), [])


def test_first_end_of_unknown_client_waits() -> None:
    """A query before it may have been lost, and would never be repeated if the end were acknowledged. The guest
    receives the end in any case, even from a client that is gone.
    """
    remembered, end = memory(), CLIENT.frame(FIN | ACK)
    for now in (1.0, 1.02, 1.3, 1.7):  # probed for a lost tail, and repeated twice
        verdict = CLIENT.judged(remembered, end, now)
        assert (verdict.action, verdict.answers, verdict.why) == (QUEUE, (), texts.FIRST_END)
    verdict = CLIENT.judged(remembered, end, 2.5)
    assert (verdict.action, answer(verdict).ack, kept(remembered)) == (QUEUE, CLIENT.seq + 1, [end])
    assert not remembered.is_woken


def test_lost_query_before_an_end_wakes() -> None:
    remembered = memory()
    assert CLIENT.judged(remembered, CLIENT.frame(FIN | ACK, back=-10), 1.0).answers == ()
    lost = CLIENT.frame(ACK | PSH, b"0123456789")
    assert CLIENT.judged(remembered, lost, 1.3).action is WAKE
    assert kept(remembered) == [CLIENT.frame(FIN | ACK, back=-10), lost]


def test_end_after_a_lost_terminate_waits_for_it() -> None:
    remembered = memory()
    terminate, end = CLIENT.frame(ACK | PSH, TERMINATE), CLIENT.frame(FIN | ACK, back=-5)
    for now in (1.0, 1.2):
        assert CLIENT.judged(remembered, terminate, now).answers == ()
        assert CLIENT.judged(remembered, end, now + 0.01).answers == ()
    assert answer(CLIENT.judged(remembered, terminate, 2.1)).ack == CLIENT.seq + 5
    assert answer(CLIENT.judged(remembered, end, 2.11)).ack == CLIENT.seq + 6
    assert kept(remembered) == [terminate, end]


def test_end_repeated_in_one_segment_is_kept_once() -> None:
    """Linux merges a Terminate and the FIN after it when it retransmits them. A merged one is queued as it is."""
    remembered = memory()
    terminate, end = CLIENT.frame(ACK | PSH, TERMINATE), CLIENT.frame(FIN | ACK, back=-5)
    merged = CLIENT.frame(FIN | ACK | PSH, TERMINATE)
    for now, frame in ((1.0, terminate), (1.0, end), (1.2, merged)):
        CLIENT.judged(remembered, frame, now)
    assert answer(CLIENT.judged(remembered, merged, 2.0)).ack == CLIENT.seq + 6
    assert kept(remembered) == [terminate, end]
    remembered = memory()
    CLIENT.judged(remembered, merged, 1.0)
    assert answer(CLIENT.judged(remembered, merged, 2.0)).ack == CLIENT.seq + 6
    assert kept(remembered) == [merged]


def test_repeated_end_gets_few_answers() -> None:
    """Its sender's address may be forged."""
    remembered = memory()
    answers = [len(CLIENT.judged(remembered, CLIENT.frame(FIN | ACK), 1.0 + at / 100).answers) for at in range(300)]
    assert sum(answers) == 5
    assert not any(answers[:90])


def test_end_of_slow_client_reaches_guest() -> None:
    """Its ACK of our probe is so late that it looks like a keepalive probe, with a sequence number that is too high."""
    remembered, end = memory(), CLIENT.frame(FIN | ACK)
    for now in (1.0, 1.7):
        CLIENT.judged(remembered, CLIENT.frame(ACK), now)
    for now in (9.0, 10.0):
        verdict = CLIENT.judged(remembered, end, now)
        assert (verdict.action, answer(verdict).ack, kept(remembered)) == (QUEUE, CLIENT.seq + 1, [end])


def test_scan_with_ends_wakes_nobody() -> None:
    remembered = memory()
    scanners = [Client(source_port=port) for port in range(1, 500)]
    verdicts = [client.judged(remembered, client.frame(FIN | ACK)) for client in scanners]
    assert {verdict.action for verdict in verdicts} == {QUEUE, DROP}
    assert not any(verdict.answers for verdict in verdicts)
    assert not remembered.is_woken


def test_end_without_room_wakes() -> None:
    """An end that was acknowledged but not queued would leave a session in the guest forever."""
    remembered, leavers = memory(), [Client(source_port=port) for port in range(1, 150)]
    actions = [client.judged(remembered, client.frame(FIN | ACK), 1.0).action for client in leavers]
    first = actions.index(DROP)
    assert first > 2 * 28
    assert {client.judged(remembered, client.frame(FIN | ACK), 2.0).action for client in leavers[:first]} == {QUEUE}
    assert leavers[first].judged(remembered, leavers[first].frame(FIN | ACK), 2.0).action is WAKE
    assert len(kept(remembered)[first]) == len(leavers[0].frame(FIN | ACK))


def test_reset_without_room_is_dropped() -> None:
    """Its sender does not wait for a response, and a flood of resets does not wake the guest."""
    remembered = memory()
    clients = [Client(source_port=port) for port in range(1, 500)]
    actions = {client.judged(remembered, client.frame(RST)).action for client in clients}
    assert actions == {QUEUE, DROP}
    assert sum(map(len, kept(remembered))) <= MAX_QUEUED


def test_frames_after_the_wake_are_kept_unanswered() -> None:
    """The guest answers them soon; each is queued once."""
    remembered, other = memory(), Client(source_port=40001)
    CLIENT.judged(remembered, CLIENT.frame(SYN))
    frames = [CLIENT.frame(SYN), other.frame(ACK | PSH, b"query"), other.frame(FIN | ACK, back=-5), other.frame(RST)]
    verdicts = [CLIENT.judged(remembered, frame) for frame in (*frames, *frames)]
    assert {verdict.action for verdict in verdicts} == {QUEUE}
    assert not any(verdict.answers for verdict in verdicts)
    assert kept(remembered) == frames
    assert CLIENT.judged(remembered, CLIENT.probe(), 1.0).why == texts.FIRST_KEEPALIVE
    assert CLIENT.judged(remembered, CLIENT.probe(), 2.0).why == texts.KEEPALIVE
    flood = {CLIENT.judged(remembered, Client(source_port=port).frame(SYN)).why for port in range(1, 500)}
    assert flood == {texts.FOLLOWS_WAKE, texts.NO_ROOM}


def test_quiet_source_never_wakes() -> None:
    """Its new session is refused; frames of an old one are neither acknowledged nor followed by an end."""
    remembered = memory()
    refused = answer(QUIET.judged(remembered, QUIET.frame(SYN)))
    assert (refused.flags, refused.seq, refused.ack) == (RST | ACK, 0, QUIET.seq + 1)
    for frame in (QUIET.frame(ACK | PSH, b"query"), QUIET.frame(FIN | ACK, back=-5)):
        assert QUIET.judged(remembered, frame).action is DROP
    for port in range(1, 500):
        QUIET.judged(remembered, replace(QUIET, source_port=port).frame(FIN | ACK))
    assert not remembered.is_woken
    other = replace(QUIET, address=bytes((10, 100, 1, 1)))
    assert other.judged(remembered, other.frame(SYN)).action is WAKE


def test_quiet_source_may_end_its_session() -> None:
    remembered = memory()
    for now in (1.0, 2.0):
        assert QUIET.judged(remembered, QUIET.frame(ACK | PSH, TERMINATE), now).action is QUEUE
    assert answer(QUIET.judged(remembered, QUIET.frame(FIN | ACK, back=-5), 2.0)).ack == QUIET.seq + 6


def test_resets_of_closed_ports_are_bounded() -> None:
    remembered, scanner = memory(), [Client(port=port) for port in range(10_000, 10_500)]
    actions = [client.judged(remembered, client.frame(SYN), 7.5).action for client in scanner]
    assert actions == [ANSWER] * REFUSALS + [DROP] * (500 - REFUSALS)
    assert answer(CLIENT.judged(remembered, scanner[0].frame(SYN), 8.0)).flags == RST | ACK


def opened(remembered: StandInState, scraper: Client) -> Client:
    """The scraper after the handshake."""
    reply = answer(scraper.judged(remembered, scraper.frame(SYN)))
    assert (reply.flags, reply.ack) == (SYN | ACK, scraper.seq + 1)
    return replace(scraper, seq=scraper.seq + 1, ack=reply.seq + 1)


def test_scrape_is_answered_without_memory() -> None:
    """As often as the request comes, in segments that fit into the network's frames, the last of which ends it."""
    remembered = memory(b"".join(b"node_load%d 0.5\n" % number for number in range(120)))
    scraper = opened(remembered, replace(SCRAPER, to=replace(GUEST, mtu=576)))
    assert scraper.judged(remembered, scraper.frame(ACK)).action is DROP
    request = scraper.frame(ACK | PSH, b"GET /metrics HTTP/1.1\r\nHost: guest\r\n\r\n")
    verdict = scraper.judged(remembered, request)
    parts = [segment(frame) for frame in verdict.answers]
    assert b"".join(part.payload for part in parts) == remembered.response
    assert max(map(len, verdict.answers)) == 14 + 576
    assert [part.flags & FIN for part in parts] == [0] * (len(parts) - 1) + [FIN]
    assert [part.seq for part in parts[1:]] == [part.end for part in parts[:-1]]
    assert {part.ack for part in parts} == {segment(request).end}
    assert scraper.judged(remembered, request) == verdict
    end = scraper.frame(FIN | ACK, back=-40)
    assert answer(scraper.judged(remembered, end)).ack == segment(end).end
    assert scraper.judged(remembered, scraper.frame(RST)).action is DROP
    assert (len(remembered.connections), kept(remembered), remembered.is_woken) == (0, [], False)


def test_request_with_the_syn_is_repeated() -> None:
    """TCP Fast Open: the SYN cookie does not cover its data, so the client must send it again."""
    remembered, request = memory(), b"GET /metrics HTTP/1.1\r\n\r\n"
    reply = answer(SCRAPER.judged(remembered, SCRAPER.frame(SYN, request)))
    assert (reply.flags, reply.ack) == (SYN | ACK, SCRAPER.seq + 1)
    scraper = replace(SCRAPER, seq=SCRAPER.seq + 1, ack=reply.seq + 1)
    assert answer(scraper.judged(remembered, scraper.frame(ACK | PSH, request))).payload == remembered.response


def test_other_path_is_not_there() -> None:
    remembered = memory()
    scraper = opened(remembered, SCRAPER)
    reply = answer(scraper.judged(remembered, scraper.frame(ACK | PSH, b"GET /metricsx HTTP/1.1\r\n\r\n")))
    assert reply.payload.startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize("request_line", [b"GET /metrics HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n"])
def test_request_without_handshake_is_refused(request_line: bytes) -> None:
    """The page is larger than its request, so a sender with a forged address must not get it. A connection from before
    the sleep is refused too, and its client reconnects.
    """
    remembered = memory()
    reply = answer(SCRAPER.judged(remembered, SCRAPER.frame(ACK | PSH, request_line)))
    assert (reply.flags, reply.seq, reply.payload) == (RST | ACK, SCRAPER.ack, b"")
    if request_line.startswith(b"POST"):
        scraper = opened(remembered, SCRAPER)
        assert answer(scraper.judged(remembered, scraper.frame(ACK | PSH, request_line))).flags == RST | ACK
