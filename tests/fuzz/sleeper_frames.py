"""Frames for a guest that sleeps: recorded ones, damaged, in any order and at any pace."""

from __future__ import annotations

from random import Random
from typing import Final

from deploy.neonvm.qemu.streams import FrameStream, encode_redirected, encode_stream
from deploy.neonvm.sleep.connections import MAX_CONNECTIONS, MAX_QUEUED
from deploy.neonvm.sleep.frame_filter import filter_frame
from tests.fuzz.mutations import damaged_text
from tests.neonvm.sleep.test_recorded import recording
from tests.neonvm.sleep.wire import GUEST, memory, words_sum

_FRAMES: Final = [entry.frame for session in recording().values() for entry in session if entry.is_to_guest]
STREAMS: Final = (
    b"r" + b"".join(encode_redirected(b"\0" * 10, frame) for frame in _FRAMES[:3]),
    b"c" + b"".join(map(encode_stream, _FRAMES[:3])),
)


def traffic(random: Random) -> list[tuple[bytes, float]]:
    """Frames, and the seconds before each."""
    return [(_frame(random), random.choice((0.0, 0.001, 1.0, 5.0))) for _ in range(random.randrange(1, 30))]


def _frame(random: Random) -> bytes:
    frame = bytearray(random.choice(_FRAMES))
    if random.random() < 0.1:
        return damaged_text(bytes(frame), random)
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        # Headers decide, so they are damaged most.
        frame[random.randrange(min(len(frame), random.choice((74, 2000))))] = random.choice(
            (0, 1, 255, random.randrange(256))
        )
    # With a wrong checksum nothing else would be looked at.
    if random.random() < 0.8:
        frame[24:26] = bytes(2)
        frame[24:26] = (words_sum(bytes(frame[14:34])) ^ 0xFFFF).to_bytes(2, "big")
    return bytes(frame)


def judged(frames: list[tuple[bytes, float]]) -> None:
    """As a sleeper does. Raises ``AssertionError`` if an answer goes astray, or memory grows too far."""
    remembered, now = memory(), 0.0
    for frame, pause in frames:
        now += pause
        verdict = filter_frame(frame, GUEST, remembered, now, b"\x01" * 12)
        if any(answer[:12] != frame[6:12] + GUEST.mac for answer in verdict.answers) or len(verdict.answers) > 1:
            raise AssertionError("an answer goes to the sender of the frame alone")
    longest = max(len(frame) for frame, _ in frames)
    stored = sum(len(frame) for _, frame in remembered.frames.all(12))
    if len(remembered.connections) > MAX_CONNECTIONS or stored > MAX_QUEUED + longest:
        raise AssertionError("memory is bounded")


def streamed(stream: bytes) -> object:
    """The frames of a stream, whose kind is its first byte."""
    return FrameStream(has_headers=stream[:1] != b"c").read(stream[1:])
