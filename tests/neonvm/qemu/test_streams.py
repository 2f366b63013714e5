"""Frames come out of QEMU's streams as they went in, however the stream is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.qemu.streams import LONGEST, BrokenStreamError, FrameStream, encode_redirected, encode_stream

CUTS = st.integers(1, 40)
BYTES = st.binary(max_size=60)


def parts(stream: bytes, size: int) -> list[bytes]:
    return [stream[at : at + size] for at in range(0, len(stream), size)]


@given(st.lists(st.tuples(BYTES, BYTES), max_size=8), CUTS)
def test_redirected_frames_are_read_in_any_parts(frames: list[tuple[bytes, bytes]], size: int) -> None:
    stream = FrameStream()
    written = b"".join(encode_redirected(header, frame) for header, frame in frames)
    assert [frame for part in parts(written, size) for frame in stream.read(part)] == frames


@given(st.lists(BYTES, max_size=8), CUTS)
def test_cabled_frames_are_read_in_any_parts(frames: list[bytes], size: int) -> None:
    stream = FrameStream(has_headers=False)
    written = b"".join(map(encode_stream, frames))
    assert [frame for part in parts(written, size) for frame in stream.read(part)] == [(b"", frame) for frame in frames]


def test_absurd_length_breaks_the_stream() -> None:
    """A stream of a broken QEMU must not fill our memory."""
    for length, header in ((LONGEST + 1, 0), (0, 1), (1000, 256)):
        with pytest.raises(BrokenStreamError):
            FrameStream().read(length.to_bytes(4, "big") + header.to_bytes(4, "big"))
    with pytest.raises(BrokenStreamError):
        FrameStream(has_headers=False).read((LONGEST + 1).to_bytes(4, "big"))
