"""The conversation with the daemon in the guest, and what counts as no answer."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path
from typing import cast

import pytest

from deploy.neonvm.network.sockets import connected, listening, tcp_socket
from deploy.neonvm.ports import GuestError, PodSockets
from deploy.neonvm.qemu.daemon import Body, DaemonResponse, GuestDaemon, ask
from protocol.runtime.serving.tcp_listener import Serve, TcpListener
from protocol.units import Seconds
from tests.fake_clock import FakeClock
from tests.neonvm.qemu.fakes import spec_in

ROOTFS = Path(__file__).parents[3] / "vm_image" / "rootfs"


async def conversation(serve: Serve, seconds: float = 5.0) -> DaemonResponse:
    serving = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], serve)

    async def dial() -> socket.socket:
        return await connected(tcp_socket(), "127.0.0.1", serving.port)

    try:
        return await ask(dial, "PUT", "/cpu", "250", seconds)
    finally:
        await serving.close()


async def test_request_has_length_answer_ends_with_connection() -> None:
    heard: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heard.append((head + await reader.readexactly(3)).decode())
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()
        writer.write(b"250\n")

    assert await conversation(serve) == DaemonResponse(200, "250")
    assert heard == ["PUT /cpu HTTP/1.1\r\nHost: guest\r\nContent-Length: 3\r\nConnection: close\r\n\r\n250"]


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b"HTTP/1.1",
        b"SSH-2.0-OpenSSH 200 OK",
        b"HTTP/1.1 fine\r\n\r\n",
        "HTTP/1.1 ² OK\r\n\r\n".encode(),
        "HTTP/1.1 ²⁰⁰ OK\r\n\r\n".encode(),
        b"HTTP/1.1 " + b"9" * 5000 + b" OK\r\n\r\n",
    ],
    ids=["nothing", "no status", "another protocol", "a word", "a superscript", "three of them", "thousands of digits"],
)
async def test_non_http_answer_blames_guest(nonsense: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"250")
        writer.write(nonsense)

    with pytest.raises(GuestError, match="invalid response from the guest daemon"):
        await conversation(serve)


async def test_an_endless_answer_is_cut_short() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"250")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"1" * 5000)
        await reader.read()

    assert (await conversation(serve)).status == 200


async def test_silence_ends_with_the_time_out() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    with pytest.raises(GuestError, match=r"no response from the guest to PUT /cpu within 0\.01 s"):
        await conversation(serve, seconds=0.01)


async def test_unreachable_guest_is_reported() -> None:
    async def dial() -> socket.socket:
        raise ConnectionRefusedError("connection refused")

    with pytest.raises(GuestError, match="cannot connect to the guest for GET /ready: connection refused"):
        await ask(dial, "GET", "/ready", "", 1.0)


class WakingDaemon(GuestDaemon):
    """Of a guest that takes 3 s to accept a connection and half a second to answer with ``status``."""

    def __init__(self, clock: FakeClock, status: int) -> None:
        super().__init__(spec_in(Path()), cast("PodSockets", None))
        self._clock, self._status = clock, status
        self.asked: list[str] = []

    async def ask(self, method: str, path: str, body: Body = "", seconds: float = 5.0, port: int = 0) -> DaemonResponse:
        await self._clock.advance(3.0)
        assert not isinstance(body, str)
        self.asked.append(f"{method} {path} {body()}")
        await self._clock.advance(0.5)
        return DaemonResponse(self._status, "")


@pytest.mark.parametrize(("status", "late"), [(200, Seconds(0.5)), (500, None)])
async def test_guest_gets_time_of_open_connection(status: int, late: Seconds | None) -> None:
    """Not that of the attempt to connect, which a guest that has just been woken may not answer for a second."""
    clock = FakeClock()
    daemon = WakingDaemon(clock, status)
    connected_at = clock.wall() + 3.0
    assert await daemon.thaw(clock) == late
    assert await daemon.set_clock(clock) == late
    assert daemon.asked == [f"PUT /thaw {connected_at:.9f}", f"PUT /clock {connected_at + 3.5:.9f}"]


async def test_guest_that_did_not_stop_gets_no_time() -> None:
    clock = FakeClock()
    daemon = WakingDaemon(clock, 200)
    assert await daemon.thaw(clock, has_stopped=False) == Seconds(0.5)
    assert daemon.asked == ["PUT /thaw "]


async def test_text_is_made_once_connected() -> None:
    """And not at all if the guest cannot be reached."""
    made: list[str] = []

    async def dial() -> socket.socket:
        made.append("connection refused")
        raise ConnectionRefusedError(made[0])

    def text() -> str:
        made.append("text")
        return ""

    with pytest.raises(GuestError):
        await ask(dial, "PUT", "/thaw", text, 1.0)
    assert made == ["connection refused"]


class NotingDaemon(GuestDaemon):
    """Notes how long it would wait for each answer."""

    def __init__(self) -> None:
        super().__init__(spec_in(Path()), cast("PodSockets", None))
        self.waits: dict[str, float] = {}

    async def ask(self, method: str, path: str, body: Body = "", seconds: float = 5.0, port: int = 0) -> DaemonResponse:
        self.waits[path] = seconds
        return DaemonResponse(200, "")


async def test_guest_gives_up_password_before_host() -> None:
    """Otherwise attempts overlap, and a guest that lacks CPU never becomes ready."""
    daemon = NotingDaemon()
    daemon.password = "secret"
    assert await daemon.is_ready()
    script = "".join((ROOTFS / name).read_text() for name in ("daemon.sh", "password.sh"))
    limits = re.findall(r"PGCONNECT_TIMEOUT=(\d+)|statement_timeout = '(\d+)s'", script)
    assert len(limits) == 2
    assert sum(int(connect or statement) for connect, statement in limits) < daemon.waits["/password"]
