"""Recorded clients meet a sleeping guest instead of the kernel that had answered them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from deploy.neonvm.sleep.connections import END_APART
from deploy.neonvm.sleep.frame_filter import TERMINATE, Action, FrameVerdict, StandInState, filter_frame
from deploy.neonvm.sleep.frames import FIN, Segment, parse
from deploy.neonvm.texts import sleep as texts
from tests.neonvm.sleep.wire import GUEST, has_right_checksums, memory

DROP, ANSWER, QUEUE, WAKE = Action.DROP, Action.ANSWER, Action.QUEUE, Action.WAKE
IDLE_CLIENTS = ("libpq", "pgbouncer", "go", "jdbc")


@dataclass(frozen=True)
class Recorded:
    seconds: float
    is_to_guest: bool
    frame: bytes

    @property
    def segment(self) -> Segment:
        parsed = parse(self.frame)
        assert isinstance(parsed, Segment)
        return parsed


@cache
def recording() -> dict[str, list[Recorded]]:
    sessions: dict[str, list[Recorded]] = {}
    for line in (Path(__file__).parent / "recorded.txt").read_text().splitlines():
        if not line.startswith("#"):
            session, seconds, way, frame = line.split()
            sessions.setdefault(session, []).append(Recorded(float(seconds), way == ">", bytes.fromhex(frame)))
    return sessions


def segments(session: str) -> list[Recorded]:
    return [entry for entry in recording()[session] if isinstance(parse(entry.frame), Segment)]


def from_first_probe(session: str) -> list[Recorded]:
    """The guest fell asleep in the pause of this client."""
    following = 0
    for at, entry in enumerate(all_segments := segments(session)):
        if entry.is_to_guest and not entry.segment.payload and entry.segment.seq + 1 == following:
            return all_segments[at:]
        following = entry.segment.end if entry.is_to_guest else following
    raise AssertionError(session)


def from_end(session: str) -> list[Recorded]:
    """The guest fell asleep before the client left."""
    every = segments(session)
    ends = (at for at, entry in enumerate(every) if entry.segment.payload == TERMINATE or entry.segment.flags & FIN)
    return every[next(ends) :]


def verdicts(entries: Iterable[Recorded], remembered: StandInState) -> list[FrameVerdict]:
    """Those on the client's frames."""
    reached = [entry for entry in entries if entry.is_to_guest]
    return [filter_frame(entry.frame, GUEST, remembered, entry.seconds) for entry in reached]


@pytest.mark.parametrize("session", IDLE_CLIENTS)
def test_keepalives_are_answered_as_by_the_kernel(session: str) -> None:
    """The first probe may be a plain acknowledgement, so its client is asked; the others get the numbers of the real
    answer.
    """
    idle, remembered = from_first_probe(session), memory()
    probes, real_answers = idle[0:6:2], idle[1:6:2]
    first, *others = verdicts(probes, remembered)
    assert first.why == texts.FIRST_KEEPALIVE
    for verdict, real in zip(others, real_answers[1:], strict=True):
        (frame,) = verdict.answers
        ours = parse(frame)
        assert verdict.action is ANSWER
        assert isinstance(ours, Segment)
        assert has_right_checksums(frame)
        assert frame[:14] == real.frame[:14]
        assert (ours.destination, ours.seq, ours.ack) == (real.segment.destination, real.segment.seq, real.segment.ack)
        assert ours.flags == real.segment.flags
        assert ours.times is not None


@pytest.mark.parametrize("session", ["libpq", "go", "jdbc"])
def test_query_after_a_pause_wakes(session: str) -> None:
    """It comes once, with its sender, and everything after it is kept for the guest."""
    remembered = memory()
    judged = verdicts(from_first_probe(session), remembered)
    assert [verdict.action for verdict in judged].count(WAKE) == 1
    (woken,) = [verdict for verdict in judged if verdict.action is WAKE]
    assert woken.who.startswith("10.100.0.1:")
    kept = [frame for _, frame in remembered.frames.all(0)]
    # The client's own end repeats its FIN, and it is kept once.
    sent = {entry.segment.identity: entry.frame for entry in reversed(from_first_probe(session)) if has_weight(entry)}
    assert kept == [frame for frame in reversed(sent.values()) if frame[:6] == GUEST.mac]


def has_weight(entry: Recorded) -> bool:
    return bool(entry.segment.payload) or bool(entry.segment.flags & FIN)


@pytest.mark.parametrize("session", ["psql", "libpq", "libpq-killed", "pgbouncer", "go", "jdbc"])
def test_end_of_session_is_acknowledged_and_kept(session: str) -> None:
    """Not immediately, because a segment before it may be lost. When its client repeats it, the guest still gets
    one.
    """
    # The acknowledgements of the guest's own end do not come while it sleeps.
    leaving = [entry for entry in from_end(session) if not entry.is_to_guest or has_weight(entry)]
    remembered = memory()
    first = verdicts([entry for entry in leaving if entry.seconds < leaving[0].seconds + END_APART], remembered)
    assert not any(verdict.answers for verdict in first)
    repetition = [replace(entry, seconds=entry.seconds + 60.0) for entry in leaving]
    judged = verdicts(repetition, remembered)
    kept = [frame for _, frame in remembered.frames.all(0)]
    weighty = [entry for entry in leaving if entry.is_to_guest and has_weight(entry)]
    repeated = len(weighty) - len({entry.segment.identity for entry in weighty})
    assert len(kept) == len(weighty) - repeated
    actions = [verdict.action for verdict in judged if verdict.answers]
    assert actions == [QUEUE] * len(kept) + [ANSWER] * (len(actions) - len(kept))
    last = parse([verdict for verdict in judged if verdict.answers][-1].answers[0])
    real = [entry.segment.ack for entry in leaving if not entry.is_to_guest][-1]
    assert isinstance(last, Segment)
    assert last.ack == real
    assert not remembered.is_woken


def test_reset_is_kept() -> None:
    remembered = memory()
    (verdict,) = verdicts(segments("libpq-reset")[-1:], remembered)
    assert (verdict.action, verdict.answers) == (QUEUE, ())
    assert len(remembered.frames.all(0)) == 1


@pytest.mark.parametrize("session", ["psql", "psql-tls", "libpq", "pgbouncer", "go", "jdbc"])
def test_new_session_wakes_with_its_first_segment(session: str) -> None:
    remembered = memory()
    judged = verdicts(recording()[session], remembered)
    assert [verdict.action for verdict in judged[:2]] == [ANSWER, WAKE]
    assert WAKE not in [verdict.action for verdict in judged[2:]]


@pytest.mark.parametrize("session", ["psql", "scan"])
def test_answers_to_arp_and_scans_equal_the_kernels(session: str) -> None:
    every = recording()[session]
    question, real = every[:2]
    (verdict,) = verdicts([question], memory())
    assert real.frame.startswith(verdict.answers[0])
    for asked, kernel in zip(every[2::2], every[3::2], strict=True) if session == "scan" else ():
        (refused,) = verdicts([asked], memory())
        (frame,) = refused.answers
        # All but the identification, which the kernel takes at random, and the checksum over it.
        assert (frame[:18], frame[26:]) == (kernel.frame[:18], kernel.frame[26:54])
