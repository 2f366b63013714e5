"""Frames that a guest left unread on its source go back to the network once it receives them on its target."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.addressing import RETURNED_MAC, flat_mac
from deploy.neonvm.network.announcement import announcement
from deploy.neonvm.qemu.streams import FrameStream
from deploy.neonvm.runner.flat_tap import FlatTap
from deploy.neonvm.runner.frame_return import FrameReturn
from deploy.neonvm.runner.returned_frames import ReturnedFrames
from protocol.units import Seconds
from tests.neonvm.qemu.test_frame_handover import Filtering

VM = "10.100.128.7"
MAC = bytes.fromhex(flat_mac(VM).replace(":", ""))
CLIENT = bytes.fromhex("020000000001")
NOBODY = bytes.fromhex(RETURNED_MAC.replace(":", ""))
HEADER = bytes(12)


def frame(number: int, to: bytes = MAC, sender: bytes = CLIENT) -> bytes:
    return to + sender + b"\x08\x00" + bytes([number]) * 46


def written(*frames: bytes) -> bytes:
    """As QEMU writes them."""
    return b"".join(struct.pack("!II", len(HEADER + each), len(HEADER)) + HEADER + each for each in frames)


def returned(*numbers: int) -> list[bytes]:
    return [HEADER + frame(number, sender=NOBODY) for number in numbers]


def test_frames_are_held_until_announcement() -> None:
    frames = ReturnedFrames(VM)
    assert [frames.take(HEADER, frame(number)) for number in (1, 2)] == [[], []]
    assert frames.take(HEADER, announcement(flat_mac(VM))) == returned(1, 2)
    assert frames.take(HEADER, frame(3)) == returned(3)
    assert frames.take(HEADER, announcement(flat_mac(VM))) == []


def test_broadcast_and_foreign_frames_are_not_repeated() -> None:
    frames = ReturnedFrames(VM)
    for other in (frame(1, to=b"\xff" * 6), frame(2, to=CLIENT), announcement(flat_mac("10.100.128.8")), b""):
        assert frames.take(HEADER, other) == []
    assert frames.take(HEADER, announcement(flat_mac(VM))) == []


def test_held_frames_are_bounded() -> None:
    frames = ReturnedFrames(VM)
    for _ in range(5000):
        frames.take(b"", frame(1))
    assert len(frames.take(b"", announcement(flat_mac(VM)))) == 4096


@given(st.lists(st.binary(max_size=80), max_size=6), st.data())
def test_frames_survive_any_stream_split(frames: list[bytes], data: st.DataObject) -> None:
    said, stream = written(*frames), FrameStream()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(said)), max_size=5)))
    parts = [said[start:end] for start, end in zip([0, *cuts], [*cuts, len(said)], strict=True)]
    assert [each for part in parts for each in stream.read(part)] == [(HEADER, each) for each in frames]


@dataclass
class Leaving(Filtering):
    """A QEMU that gives the test its end of the channel."""

    listeners: dict[str, Callable[[], None]] = field(default_factory=dict)
    way: socket.socket | None = None

    async def pass_socket(self, name: str, end: socket.socket) -> None:
        self.way = end.dup()

    @contextmanager
    def on_event(self, event: str, heard: Callable[[], None]) -> Iterator[None]:
        self.listeners[event] = heard
        yield
        del self.listeners[event]

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        answer = await super().call(command, arguments)
        if command == "chardev-remove" and self.way is not None:
            self.way.close()
        return answer


@dataclass
class Pod:
    """A pod's place on the network; what is written to its tap can be read from ``network``."""

    qemu: Leaving
    place: FrameReturn
    network: socket.socket

    async def came(self) -> list[bytes]:
        """Frames from the pod's tap."""
        for _ in range(5):
            await asyncio.sleep(0)
        found = list[bytes]()
        while True:
            try:
                found.append(self.network.recv(4096))
            except BlockingIOError:
                return found


@pytest.fixture
async def pod() -> AsyncIterator[Pod]:
    tap, network = socket.socketpair(type=socket.SOCK_DGRAM)
    network.setblocking(False)
    with tap, network:
        made = Pod(Leaving(), FrameReturn(FlatTap(tap.fileno(), VM, 1400), Seconds(0.001)), network)
        yield made
        made.place.close()
        if made.qemu.way is not None:
            made.qemu.way.close()


async def test_unread_frames_return_after_switch(pod: Pod) -> None:
    await pod.place.prepare(pod.qemu)
    assert pod.qemu.filters == {"hold": "on", "hand": "off"}
    pod.qemu.listeners["STOP"]()
    assert (await pod.came(), pod.qemu.filters) == ([], {"hand": "on"})
    assert pod.qemu.way is not None
    pod.qemu.way.send(written(frame(1), frame(2)))
    assert await pod.came() == []
    pod.qemu.way.send(written(announcement(flat_mac(VM)), frame(3)))
    assert await pod.came() == returned(1, 2, 3)


async def test_frames_of_sleeper_return_after_switch(pod: Pod) -> None:
    """Its tap is not read meanwhile; the queued frames come first."""
    os.set_blocking(pod.place._tap.descriptor, False)
    pod.place.return_frames([(b"", frame(1))])
    pod.network.send(frame(2))
    assert await pod.came() == []
    pod.network.send(announcement(flat_mac(VM)))
    assert await pod.came() == [each[len(HEADER) :] for each in returned(1, 2)]


@pytest.mark.parametrize("how", ["it goes on", "a controller keeps it"])
async def test_a_guest_that_stays_reads_its_frames_itself(pod: Pod, how: str) -> None:
    await pod.place.prepare(pod.qemu)
    pod.qemu.listeners["STOP"]()
    if how == "it goes on":
        pod.qemu.listeners["RESUME"]()
    else:
        pod.place.keep()
    assert (await pod.came(), pod.qemu.filters, pod.qemu.listeners) == ([], {}, {})
    pod.place.keep()


async def test_unsupported_qemu_migrates_without_frames(pod: Pod) -> None:
    pod.qemu.refuses.add("object-add")
    await pod.place.prepare(pod.qemu)
    assert (pod.qemu.filters, pod.qemu.listeners) == ({}, {})
    pod.place.keep()


async def test_second_move_starts_after_abandoned_one(pod: Pod) -> None:
    for _ in range(2):
        await pod.place.prepare(pod.qemu)
    assert pod.qemu.filters == {"hold": "on", "hand": "off"}


async def test_rejected_frame_is_dropped(pod: Pod) -> None:
    await pod.place.prepare(pod.qemu)
    assert pod.qemu.way is not None
    pod.network.close()
    pod.qemu.way.send(written(announcement(flat_mac(VM)), frame(3)))
    for _ in range(5):
        await asyncio.sleep(0)
    pod.qemu.way.shutdown(socket.SHUT_WR)
    await asyncio.sleep(0)
    assert os.fstat(pod.qemu.way.fileno())
