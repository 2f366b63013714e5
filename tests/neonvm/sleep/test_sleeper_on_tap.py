"""A stand-in in place of a guest's QEMU: real kernels and clients at the other end of its tap (needs root)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.neonvm.network.netns import call_in, frames_in
from deploy.neonvm.sleep.frame_filter import TERMINATE
from deploy.neonvm.sleep.frame_sources import Tap
from deploy.neonvm.sleep.frames import Segment, parse
from deploy.neonvm.sleep.network_stand_in import NetworkStandIn
from protocol.runtime.clock import SystemClock
from tests.neonvm.sleep.wire import GUEST, PAGE

pytestmark = pytest.mark.root
NAMESPACE = f"filter_frame-{os.getpid()}"
ADDRESS = "10.100.128.7"
# From linux/tcp.h.
TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ, TCP_REPAIR_OPTIONS, TCP_REPAIR_WINDOW = 19, 20, 21, 22, 29
OFF_WITHOUT_PROBE = -1
UNANSWERED = 3
"""Longer than a busy machine lets this process stand still."""
RECEIVES, SENDS = 1, 2
ESTABLISHED, FIN_WAIT_2 = 1, 5
COUNTS = "/sys/class/net/t0/statistics/tx_dropped"


def opened_tap() -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    # A tap whose frames have an offload header and no other.
    fcntl.ioctl(descriptor, 0x400454CA, struct.pack("16sH14x", b"t0", 0x0002 | 0x1000 | 0x4000))
    return descriptor


@dataclass
class World:
    """A sleeper on the tap, and programs in its namespace."""

    tap: int
    sleeper: NetworkStandIn

    async def output(self, *command: str) -> str:
        inside = ("ip", "netns", "exec", NAMESPACE, *command)
        process = await asyncio.create_subprocess_exec(*inside, stdout=asyncio.subprocess.PIPE)
        printed, _ = await asyncio.wait_for(process.communicate(), 20)
        return printed.decode()

    def session(self, port: int = 5432) -> socket.socket:
        """A connection that was open before the guest fell asleep; its keepalives begin after a second, and it gives up
        ``UNANSWERED`` seconds after each of two.
        """
        client = call_in(NAMESPACE, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        for queue, seq in ((RECEIVES, 5000), (SENDS, 9000)):
            client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)
            client.setsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ, seq)
        client.connect((ADDRESS, port))
        client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_OPTIONS, struct.pack("II", 8, 0))
        window = struct.pack("IIIII", 5000, 65535, 65535, 65535, 5000)
        client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_WINDOW, window)
        client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, OFF_WITHOUT_PROBE)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, UNANSWERED), (socket.TCP_KEEPCNT, 2)):
            client.setsockopt(socket.IPPROTO_TCP, option, value)
        return client


def ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True)


@pytest.fixture
def tap() -> Iterator[int]:
    """The guest's end of a tap, whose other end has an address in a separate namespace."""
    ip("netns", "add", NAMESPACE)
    try:
        descriptor = call_in(NAMESPACE, opened_tap)
        for command in ("addr add 10.100.0.1/16 dev t0", "link set t0 up", "link set lo up"):
            ip("-n", NAMESPACE, *command.split())
        yield descriptor
        os.close(descriptor)
    finally:
        ip("netns", "del", NAMESPACE)


@pytest.fixture
async def world(tap: int) -> AsyncIterator[World]:
    sleeper = NetworkStandIn(GUEST, PAGE, SystemClock(), Tap(tap, GUEST.ip, GUEST.mac))
    sleeper.read_network()
    yield World(tap, sleeper)
    sleeper.close()


def state(client: socket.socket) -> int:
    """As the kernel numbers the states of TCP."""
    return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


async def test_scrapers_get_the_page(world: World) -> None:
    url = f"http://{ADDRESS}:9100/metrics"
    printed = await world.output("curl", "--silent", "--fail", "--max-time", "5", url)
    families = {family.name: family.samples[0].value for family in text_string_to_metric_families(printed)}
    assert families == {"autoscale_asleep": 1.0, "node_load1": 0.5}
    script = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=5).read())"
    assert await world.output(sys.executable, "-c", script) == f"{printed.encode()!r}\n"
    status = await world.output(
        "curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", url[:-8] + "/"
    )
    assert status == "404"
    assert not world.sleeper.woken.is_set()


async def test_closed_port_is_refused_at_once(world: World) -> None:
    script = f"import socket; print(socket.socket().connect_ex(({ADDRESS!r}, 22)))"
    assert await world.output(sys.executable, "-c", script) == "111\n"


async def test_kernels_keepalives_are_answered(world: World) -> None:
    """A session that gives up after two probes survives; without answers it dies."""
    with world.session() as client:
        await asyncio.sleep(2.5 + 2 * UNANSWERED)
        assert state(client) == ESTABLISHED
        assert not world.sleeper.woken.is_set()
        world.sleeper.close()
        async with asyncio.timeout(20):
            while state(client) == ESTABLISHED:  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("option", "value"), [(socket.TCP_KEEPCNT, 1), (socket.TCP_USER_TIMEOUT, 500)], ids=["one probe", "time-out"]
)
async def test_first_keepalive_is_answered(world: World, option: int, value: int) -> None:
    """These clients give up before they send a second one."""
    with world.session() as client:
        client.setsockopt(socket.IPPROTO_TCP, option, value)
        await asyncio.sleep(2.5 + UNANSWERED)
        assert state(client) == ESTABLISHED
        assert not world.sleeper.woken.is_set()


async def test_end_of_session_satisfies_the_kernel(world: World) -> None:
    with world.session() as client:
        client.send(TERMINATE)
        client.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(10):
            while state(client) != FIN_WAIT_2:  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(0.02)
    frames = [parse(frame) for _, frame in world.sleeper.queued_frames()]
    assert [segment.payload for segment in frames if isinstance(segment, Segment)] == [TERMINATE, b""]
    assert {len(header) for header, _ in world.sleeper.queued_frames()} == {10}
    assert not world.sleeper.woken.is_set()


async def test_query_wakes(world: World) -> None:
    with world.session() as client:
        client.send(b"Q\0\0\0\rselect 1\0")
        assert await asyncio.wait_for(world.sleeper.wait_for_wake(), 5) == (
            f"10.100.0.1:{client.getsockname()[1]} sent data"
        )


async def test_broadcasts_are_left_to_the_kernel(world: World) -> None:
    """They reach no sleeper; the next reader of the tap receives them again."""
    with frames_in(NAMESPACE, "t0") as neighbour:
        storm = [b"\xff" * 6 + b"\x02\0\0\0\0\x09\x08\x06" + bytes(46)] * 50
        before = await world.output("cat", COUNTS)
        for frame in storm:
            neighbour.send(frame)
        # The namespace's own kernel may ask something of everybody meanwhile.
        assert 50 <= int(await world.output("cat", COUNTS)) - int(before) < 60
        world.sleeper.close()
        with suppress(BlockingIOError):
            while True:
                os.read(world.tap, 4096)
        neighbour.send(storm[0])
        while os.read(world.tap, 4096)[10:] != storm[0]:
            pass  # what the namespace's own kernel asks; without the frame nothing is left to read


async def test_tap_that_is_gone_costs_nothing(world: World) -> None:
    """The sleeper checks for it at intervals."""
    await world.output("ip", "link", "del", "t0")
    began = time.process_time()
    await asyncio.sleep(1)
    assert time.process_time() - began < 0.1
    assert not world.sleeper.woken.is_set()
