"""The guest's monitor over a real WebSocket on loopback, with every fault a guest can have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from websockets.asyncio.server import ServerConnection, serve

from agent.adapters.guest_monitor import GuestMonitor
from agent.core.events import Fault
from agent.ports import PortError
from protocol.guest.monitor_messages import LARGEST_MONITOR_MESSAGE, CheckHealth, NotUnderstood, UpscaleRequest
from protocol.units import Seconds
from tests.fake_clock import settle

DEADLINE = Seconds(5.0)
SHORT = Seconds(0.05)
MAX_PINGS = 16 * 1024 * 1024
"""Bytes of pings that a guest tries."""
Handler = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def monitor(handler: Handler) -> AsyncIterator[str]:
    """The address of a monitor that runs ``handler``."""
    async with serve(handler, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}/monitor"


@asynccontextmanager
async def tcp(handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """The address of a server that does not speak WebSocket."""
    ended = asyncio.Event()

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await handler(reader, writer)
        finally:
            writer.close()
            ended.set()

    server = await asyncio.start_server(closing, "127.0.0.1", 0)
    async with server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/monitor"
    await ended.wait()
    await settle()


def saying(*texts: str) -> Handler:
    """A monitor that reads the greeting, sends ``texts`` and then waits for the end."""

    async def handler(socket: ServerConnection) -> None:
        assert await socket.recv() == '{"min":1,"max":2}'
        for text in texts:
            await socket.send(text)
        await socket.wait_closed()

    return handler


async def failure(url: str, deadline: Seconds = DEADLINE) -> tuple[Fault, str]:
    """The error of a conversation while its first message is awaited."""
    with pytest.raises(PortError) as caught:
        async with GuestMonitor(url, deadline).connect() as connection:
            await connection.receive()
    return caught.value.fault, caught.value.reason.replace(url, "URL")


async def test_both_agree_on_a_version_and_speak() -> None:
    heard: list[str | bytes] = []

    async def handler(socket: ServerConnection) -> None:
        await saying_version(socket, 1)
        await socket.send('{"type":"UpscaleRequest","id":1}')
        heard.append(await socket.recv())

    async def saying_version(socket: ServerConnection, version: int) -> None:
        await socket.recv()
        await socket.send(f'{{"version":{version}}}')

    async with monitor(handler) as url, GuestMonitor(url, DEADLINE).connect() as connection:
        assert connection.version == 1
        assert await connection.receive() == UpscaleRequest(1)
        await connection.send(CheckHealth(), 2)
        with pytest.raises(PortError, match="the connection to the guest's monitor closed"):
            await connection.receive()
    assert heard == ['{"content":{},"type":"HealthCheck","id":2}']


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (['{"version":7}'], "malformed greeting from the guest's monitor: version: expected 1 to 2, got 7"),
        (
            ['{"error":"\\u001b[2J"}'],
            "malformed greeting from the guest's monitor: error: the monitor refuses: '\\x1b[2J'",
        ),
        (['{"version":2}', "[]"], "malformed message from the guest's monitor: document: expected object, got array"),
        (
            ['{"version":2}', "x" * (LARGEST_MONITOR_MESSAGE + 1)],
            "the connection to the guest's monitor closed (1009",
        ),
    ],
)
async def test_forbidden_message_ends_connection(texts: list[str], reason: str) -> None:
    async with monitor(saying(*texts)) as url:
        fault, said = await failure(url)
    assert (fault, said[: len(reason)]) == (Fault.GUEST, reason)


async def test_silent_monitor_times_out_in_greeting() -> None:
    async with monitor(saying()) as url:
        assert await failure(url, Seconds(0.1)) == (
            Fault.GUEST,
            "no greeting from the guest's monitor within 0.1 s",
        )


async def shout(url: str) -> None:
    async with GuestMonitor(url, Seconds(0.2)).connect() as connection:
        while True:
            await connection.send(NotUnderstood(1, "x" * 1024 * 1024), 1)


async def test_monitor_that_never_reads_times_out() -> None:
    is_over = asyncio.Event()

    async def deaf(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send('{"version":2}')
        socket.transport.pause_reading()
        await is_over.wait()
        socket.transport.abort()

    async with monitor(deaf) as url:
        with pytest.raises(PortError, match=r"timed out after 0\.2 s") as caught:
            await shout(url)
        is_over.set()
    assert caught.value.fault is Fault.GUEST


async def test_gives_up_guest_that_pings_without_reading() -> None:
    pings, sent = (b"\x89\x7d" + b"p" * 125) * 200, 0

    async def handler(socket: ServerConnection) -> None:
        assert await socket.recv() == '{"min":1,"max":2}'
        await socket.send('{"version":2}')
        socket.transport.pause_reading()
        nonlocal sent
        while not socket.transport.is_closing() and sent < MAX_PINGS:
            if not socket.transport.get_write_buffer_size():
                socket.transport.write(pings)
                sent += len(pings)
            await asyncio.sleep(0)

    async with monitor(handler) as url, GuestMonitor(url, DEADLINE).connect() as connection:
        with pytest.raises(PortError, match="closed"):
            await connection.receive()
    assert sent < MAX_PINGS


def sending(raw: bytes) -> Handler:
    """A monitor that sends its greeting and ``raw``, and ignores all input."""

    async def handler(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send('{"version":2}')
        socket.transport.write(raw)
        await socket.wait_closed()

    return handler


FLOODS = {"pongs": b"\x8a\x00", "pings whose answers are read": b"\x89\x00", "empty parts of a message": b"\x00\x00"}


@pytest.mark.parametrize("frame", FLOODS.values(), ids=FLOODS)
async def test_gives_up_guest_that_floods_control_frames(frame: bytes) -> None:
    begun = b"\x01\x00" if frame == FLOODS["empty parts of a message"] else b""
    async with monitor(sending(begun + frame * 4096)) as url:
        assert await failure(url) == (
            Fault.GUEST,
            "the connection to the guest's monitor closed (1008 too many frames)",
        )


async def test_some_hundred_pings_at_once_are_no_flood() -> None:
    said = b'{"type":"UpscaleRequest","id":1}'
    raw = b"\x89\x00" * 500 + bytes([0x81, len(said)]) + said
    async with monitor(sending(raw)) as url, GuestMonitor(url, DEADLINE).connect() as connection:
        assert await connection.receive() == UpscaleRequest(1)


async def test_where_nothing_listens_there_is_no_monitor() -> None:
    async with monitor(saying()) as url:
        pass
    fault, reason = await failure(url)
    assert (fault, reason) == (Fault.NETWORK, "the guest's monitor at URL cannot be reached: ConnectionRefusedError")


async def test_where_nothing_answers_there_is_no_monitor() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with tcp(silent) as url:
        fault, reason = await failure(url, SHORT)
    assert (fault, reason) == (Fault.NETWORK, "the guest's monitor at URL cannot be reached: TimeoutError")


async def test_a_redirection_is_not_followed() -> None:
    led_to: list[str] = []

    async def elsewhere(socket: ServerConnection) -> None:
        led_to.append("here")

    async with monitor(elsewhere) as other:

        async def redirects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 302 Found\r\nLocation: {other}\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()

        async with tcp(redirects) as url:
            fault, reason = await failure(url)
    assert (fault, led_to) == (Fault.GUEST, [])
    assert "302" in reason


async def test_what_speaks_no_http_is_the_guests_fault() -> None:
    async def noise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0" * 100_000)

    async with tcp(noise) as url:
        assert (await failure(url))[0] is Fault.GUEST
