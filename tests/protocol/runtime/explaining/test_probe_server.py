"""A kubelet's probe is answered despite a crowd of strangers: real sockets, opened while the server is busy."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest

from protocol.runtime.explaining.explain_access import Caller
from protocol.runtime.explaining.probe_server import LARGEST_HEAD, MAX_CONNECTIONS, PER_PEER, listening
from protocol.runtime.serving.http_requests import HttpResponse

PROBE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
KUBELET, STRANGER = "127.0.0.1", "127.0.0.2"
CROWD = 90
"""Fewer than the kernel keeps waiting for one listener."""


@pytest.fixture
def open_sockets() -> Iterator[ExitStack]:
    """Closes what a test has opened."""
    with ExitStack() as opened:
        yield opened


@asynccontextmanager
async def probed() -> AsyncIterator[int]:
    async with listening("0.0.0.0", 0, {"/healthz": lambda _: HttpResponse(b"ok\n")}) as port:
        yield port


def connected(opened: ExitStack, port: int, source: str, said: bytes = b"") -> socket.socket:
    """A connection whose first bytes wait for the server, which has had no turn yet."""
    made = opened.enter_context(socket.create_connection((KUBELET, port), 5, (source, 0)))
    made.sendall(said)
    made.setblocking(False)
    return made


async def answer(connection: socket.socket) -> bytes:
    """The server's response; empty if it closes the connection."""
    try:
        async with asyncio.timeout(5):
            return await asyncio.get_running_loop().sock_recv(connection, 100)
    except ConnectionResetError:
        return b""


async def test_guard_learns_who_asks(open_sockets: ExitStack) -> None:
    callers: list[Caller] = []

    async def guard(_: str, __: str, caller: Caller) -> HttpResponse | None:
        callers.append(caller)
        return None

    async with listening("0.0.0.0", 0, {"/explain": lambda _: HttpResponse(b"{}\n")}, guard) as port:
        head = b"GET /explain HTTP/1.1\r\nHost: site.example\r\nAuthorization: Bearer a\r\n\r\n"
        assert (await answer(connected(open_sockets, port, STRANGER, head))).startswith(b"HTTP/1.1 200")
    assert callers == [Caller("Bearer a", STRANGER, KUBELET, "site.example")]


@pytest.mark.parametrize("source", [STRANGER, KUBELET], ids=["another address", "the kubelet's address"])
async def test_probe_outlasts_a_crowd(open_sockets: ExitStack, source: str) -> None:
    """All clients connect before the server runs. The probe has been sent, so it is answered before it is displaced."""
    async with probed() as port:
        probe = connected(open_sockets, port, KUBELET, PROBE)
        for _ in range(CROWD):
            connected(open_sockets, port, source)
        assert (await answer(probe)).startswith(b"HTTP/1.1 200")


async def test_slow_probe_outlasts_a_crowd_elsewhere(open_sockets: ExitStack) -> None:
    """A kubelet on a busy node is slow to send; strangers at one address displace each other."""
    async with probed() as port:
        probe = connected(open_sockets, port, KUBELET)
        for _ in range(2 * MAX_CONNECTIONS):
            connected(open_sockets, port, STRANGER)
            await asyncio.sleep(0.001)
        probe.sendall(PROBE)
        assert (await answer(probe)).startswith(b"HTTP/1.1 200")


async def test_slow_probe_outlasts_many_addresses(open_sockets: ExitStack) -> None:
    """At the limit, the address with the most connections loses its oldest."""
    async with probed() as port:
        probe = connected(open_sockets, port, KUBELET)
        for number in range(MAX_CONNECTIONS):
            connected(open_sockets, port, f"127.0.0.{2 + number // 2}")
            await asyncio.sleep(0.001)
        probe.sendall(PROBE)
        assert (await answer(probe)).startswith(b"HTTP/1.1 200")


async def test_newest_of_an_address_have_its_places(open_sockets: ExitStack) -> None:
    async with probed() as port:
        crowd = [connected(open_sockets, port, STRANGER) for _ in range(PER_PEER + 1)]
        assert await answer(crowd[0]) == b""
        crowd[1].sendall(PROBE)
        assert (await answer(crowd[1])).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /healthz HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"hello\r\n\r\n", b"400 Bad Request"),
        (b"GET /healthz?deep=1 HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"x" * (2 * LARGEST_HEAD), b""),
    ],
)
async def test_only_what_it_serves_is_answered(open_sockets: ExitStack, sent: bytes, status: bytes) -> None:
    async with probed() as port:
        said = await answer(connected(open_sockets, port, KUBELET, sent))
    assert said.partition(b"\r\n")[0].removeprefix(b"HTTP/1.1 ") == status
