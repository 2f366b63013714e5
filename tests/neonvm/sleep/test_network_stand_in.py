"""A stand-in reads the frames that QEMU diverts and then the network itself, and loses none in between."""

from __future__ import annotations

import asyncio
import gc
import socket
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.neonvm.qemu.streams import LONGEST, FrameStream, encode_redirected, encode_stream
from deploy.neonvm.sleep.frame_sources import FrameSource, HubConnection, HubSocket, SourceClosedError
from deploy.neonvm.sleep.frames import ACK, FIN, PSH, SYN
from deploy.neonvm.sleep.network_stand_in import NetworkStandIn
from protocol.runtime.clock import SystemClock
from protocol.units import Instant
from tests.fake_clock import FakeClock, settle
from tests.neonvm.sleep.wire import GUEST, PAGE, Client

CLIENT = Client()
LEAVING = CLIENT.frame(FIN | ACK)
OTHER = Client(source_port=40001).frame(SYN)


class Place:
    """A guest's attachment whose frames the test sends; each opening is a new cable."""

    def __init__(self) -> None:
        self.opened = list[socket.socket]()
        self.written = list[bytes]()
        self.fails = False

    def open(self) -> FrameSource:
        if self.fails:
            raise ConnectionRefusedError
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.opened.append(theirs)
        return HubConnection(ours)

    def write(self, frame: bytes) -> None:
        self.written.append(frame)

    def header_size(self) -> int:
        return 12


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    for end in made.opened:
        end.close()


@pytest.fixture
async def sleeper(place: Place) -> NetworkStandIn:
    return NetworkStandIn(GUEST, PAGE, SystemClock(), place)


async def answers(end: socket.socket, count: int) -> list[bytes]:
    """The frames sent through a cable."""
    stream, frames = FrameStream(has_headers=False), list[bytes]()
    async with asyncio.timeout(5):
        while len(frames) < count:
            part = await asyncio.get_running_loop().sock_recv(end, 65536)
            frames += [frame for _, frame in stream.read(part)]
    return frames


async def test_call_says_who_wakes_the_guest(sleeper: NetworkStandIn, place: Place) -> None:
    sleeper.read_network()
    (network,) = place.opened
    network.send(encode_stream(CLIENT.question()) + encode_stream(CLIENT.frame(SYN)))
    assert await sleeper.wait_for_wake() == "10.100.0.1:40000 opened a connection"
    assert sleeper.woken.is_set()
    assert (await answers(network, 1))[0][:12] == CLIENT.mac + GUEST.mac
    assert sleeper.queued_frames() == [(bytes(12), CLIENT.frame(SYN))]
    sleeper.close()


async def test_answers_to_diverted_frames_go_to_the_place(sleeper: NetworkStandIn, place: Place) -> None:
    """QEMU's stream has one direction, and QEMU has the guest's place."""
    ours, theirs = socket.socketpair()
    sleeper.read_diverted(ours)
    theirs.send(encode_redirected(b"\x01" * 10, CLIENT.question()) + encode_redirected(b"\x01" * 10, LEAVING))
    theirs.close()
    await sleeper.drain()
    assert [frame[:6] for frame in place.written] == [CLIENT.mac]
    assert sleeper.queued_frames() == [(b"\x01" * 10 + bytes(2), LEAVING)]
    sleeper.close()


async def test_unread_frames_of_the_old_end_come_first(sleeper: NetworkStandIn, place: Place) -> None:
    """QEMU has ended, and its last diverted frames are still unread when frames of the network arrive."""
    ours, theirs = socket.socketpair()
    sleeper.read_diverted(ours)
    theirs.send(encode_redirected(b"", CLIENT.question()) + encode_redirected(b"", LEAVING))
    sleeper.read_network()
    place.opened[0].send(encode_stream(OTHER))
    theirs.close()
    await sleeper.wait_for_wake()
    assert [frame for _, frame in sleeper.queued_frames()] == [LEAVING, OTHER]
    assert place.written[0][:6] == CLIENT.mac
    await sleeper.drain()
    sleeper.close()


async def test_long_frame_of_old_end_is_complete(sleeper: NetworkStandIn) -> None:
    """With segmentation offload a frame may take several reads."""
    ours, theirs = socket.socketpair()
    sleeper.read_diverted(ours)
    query = CLIENT.frame(ACK | PSH, b"Q" * 60_000)
    theirs.send(encode_redirected(b"", query) + encode_redirected(b"", LEAVING))
    theirs.close()
    sleeper.close()
    assert [frame for _, frame in sleeper.queued_frames()] == [query, LEAVING]
    sleeper.close()


async def test_sleeper_reads_again_after_it_stopped(sleeper: NetworkStandIn, place: Place) -> None:
    """A QEMU that could not be started gives the place back."""
    sleeper.read_network()
    place.opened[0].send(encode_stream(CLIENT.question()) + encode_stream(LEAVING))
    sleeper.close()
    assert place.opened[0].recv(100) != b""
    sleeper.read_network()
    place.opened[1].send(encode_stream(OTHER))
    await sleeper.wait_for_wake()
    assert [frame for _, frame in sleeper.queued_frames()] == [LEAVING, OTHER]
    sleeper.close()
    sleeper.close()


async def test_lost_network_is_tried_again(sleeper: NetworkStandIn, place: Place) -> None:
    """At first it cannot be reached; later its cable is pulled, or delivers garbage."""
    place.fails = True
    sleeper.read_network()
    place.fails = False
    await until(lambda: len(place.opened) == 1)
    place.opened[0].close()
    await until(lambda: len(place.opened) == 2)
    place.opened[1].send((LONGEST + 1).to_bytes(4, "big"))
    await until(lambda: len(place.opened) == 3)
    place.opened[2].send(encode_stream(OTHER))
    await sleeper.wait_for_wake()
    sleeper.close()


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_closed_sleeper_tries_nothing_more(sleeper: NetworkStandIn, place: Place) -> None:
    place.fails = True
    sleeper.read_network()
    sleeper.close()
    place.fails = False
    await asyncio.sleep(0.3)
    assert place.opened == []


async def test_silent_diversion_is_waited_for_a_second(place: Place) -> None:
    clock = FakeClock()
    sleeper = NetworkStandIn(GUEST, PAGE, clock, place)
    await sleeper.drain()
    ours, theirs = socket.socketpair()
    sleeper.read_diverted(ours)
    waiting = asyncio.ensure_future(sleeper.drain())
    await settle()
    assert not waiting.done()
    await clock.advance(1.0)
    await waiting
    sleeper.close()
    theirs.close()


class SlowClock(FakeClock):
    """Each reading takes a tenth of a second."""

    def now(self) -> Instant:
        self.jump(0.1)
        return super().now()


async def test_end_behind_a_flood_is_kept(place: Place) -> None:
    """The guest gets its frames back while the stand-in pauses: a FIN that it acknowledged later would be lost."""
    clock = SlowClock()
    sleeper = NetworkStandIn(GUEST, PAGE, clock, place)
    ours, theirs = socket.socketpair()
    sleeper.read_diverted(ours)
    flood = [Client(source_port=port).frame(ACK) for port in range(1, 1 + 300)]
    theirs.send(b"".join(encode_redirected(b"", frame) for frame in [*flood, LEAVING]))
    theirs.close()
    await settle()
    assert sleeper.queued_frames() == []
    waiting = asyncio.ensure_future(sleeper.drain())
    await clock.advance(1.1)
    await waiting
    assert [frame for _, frame in sleeper.queued_frames()] == [LEAVING]
    sleeper.close()


async def test_flood_leaves_the_loop_to_others(sleeper: NetworkStandIn, place: Place) -> None:
    """The stand-in pauses between its turns, and still reads frames after the flood."""
    sleeper.read_network()
    (network,) = place.opened
    flood = b"".join(encode_stream(Client(source_port=port).frame(ACK)) for port in range(1, 1000))
    sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(network, flood + encode_stream(OTHER)))
    turns = 0
    while not sleeper.woken.is_set():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10
    await sending
    sleeper.close()


def test_cut_off_answer_ends_the_cable() -> None:
    """The hub reads slowly. Linux accepts small frames whole or not at all, so this one is large."""
    ours, theirs = socket.socketpair()
    with theirs:
        cable = HubConnection(ours)
        cable.write(b"small")
        with pytest.raises(BlockingIOError):
            cable.read()
        cable.write(bytes(1_000_000))
        with pytest.raises(SourceClosedError):
            cable.read()
        cable.write(b"later")
        cable.close()


async def test_cable_is_plugged_into_the_hub(place: Place) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as hub:
        path = Path(folder) / "c1"
        with pytest.raises(FileNotFoundError):
            HubSocket(path).open()
        hub.bind(str(path))
        hub.listen()
        sleeper = NetworkStandIn(GUEST, PAGE, SystemClock(), HubSocket(path))
        sleeper.read_network()
        port, _ = hub.accept()
        with port:
            port.send(encode_stream(CLIENT.frame(ACK | PSH, b"query")))
            assert await sleeper.wait_for_wake() == "10.100.0.1:40000 sent data"
            assert sleeper.queued_frames() == [(b"", CLIENT.frame(ACK | PSH, b"query"))]
            sleeper.close()
            assert port.recv(1) == b""


async def test_sleeper_takes_little_memory(place: Place) -> None:
    """With what a flood fills (test_frame_filter_properties.py), less than 16 KiB."""
    count = 50
    clock = SystemClock()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        sleepers = [NetworkStandIn(GUEST, b"", clock, place) for _ in range(count)]
        gc.collect()
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert len(sleepers) == count
    assert each < 3 * 1024
