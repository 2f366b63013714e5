"""Requests that wait for days: they take no slots of others and little memory, and only their pod answers them."""

from __future__ import annotations

import asyncio
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.neonvm.access.authenticated_listener import AuthenticatedListener
from deploy.neonvm.access.connections import ImpostorError, RunnerConnections, RunnerEndpoint, RunnerHttpResponse
from deploy.neonvm.access.keys import PodIdentity
from deploy.neonvm.network.sockets import listening, tcp_socket
from protocol.runtime.serving.tcp_listener import TcpListener
from tests.neonvm.access.secured_pod import Reviews, SecuredPod, connections, pem, showing
from tests.neonvm.runner.fake_sleeper import FRAME

LIMIT = 30.0
"""Seconds for what takes milliseconds, unless the machine is overloaded."""

Serve = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def own_runner(serve: Serve) -> AsyncIterator[tuple[RunnerConnections, RunnerEndpoint]]:
    """A pod whose runner responds as a test specifies, once it has authenticated; and a controller that knows it."""

    async def introduced(who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"/introduce" in await reader.readuntil(b"\r\n\r\n"):
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n{"token":"token-1"}')
            await reader.readuntil(b"\r\n\r\n")
        await serve(who, reader, writer)

    door = AuthenticatedListener(
        listening(tcp_socket(), "127.0.0.1", 0), introduced, PodIdentity("db-x", pem(), Path()).context
    )
    try:
        yield connections(Reviews()), RunnerEndpoint("default/db-x", "uid-1", "127.0.0.1", door.port, 1)
    finally:
        await door.close()


async def slept(pod: SecuredPod, known: RunnerConnections) -> None:
    assert (await known.long_poll(pod.place, "PUT", "/sleep", b"")).status == 200


async def woken(pod: SecuredPod, known: RunnerConnections) -> asyncio.Task[RunnerHttpResponse]:
    """A request that waits."""
    waiting = asyncio.create_task(known.long_poll(pod.place, "GET", "/woken", b""))
    # Each request that begins to wait ends the one before it.
    await asyncio.wait_for(pod.pod.runner.sleep._superseded.wait(), LIMIT)
    return waiting


async def test_answer_comes_once_there_is_one(pod: SecuredPod) -> None:
    reviews = Reviews()
    known = connections(reviews)
    await slept(pod, known)
    waiting = await woken(pod, known)
    assert not waiting.done()
    pod.pod.sleeper.frame.set()
    answer = await waiting
    assert (answer.status, answer.body.decode(), reviews.asked) == (200, FRAME + "\n", 1)


async def test_waiting_takes_no_place(pod: SecuredPod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.neonvm.access.connections._MAX_REQUESTS", 1)
    known = connections(Reviews())
    await slept(pod, known)
    waiting = await woken(pod, known)
    async with asyncio.timeout(LIMIT):
        assert (await known.ask(pod.place, "GET", "/status", b"")).status == 200
    waiting.cancel()
    await asyncio.wait((waiting,))


async def test_newer_waits_make_room(pod: SecuredPod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times as many as one name may have: each one ends the previous one."""
    monkeypatch.setattr("deploy.neonvm.access.authenticated_listener.MAX_AUTHENTICATED", 4)
    known = connections(Reviews())
    await slept(pod, known)
    waiting = [await woken(pod, known) for _ in range(20)]
    assert (await known.ask(pod.place, "GET", "/status", b"")).status == 200
    pod.pod.sleeper.frame.set()
    assert [(await task).status for task in waiting] == [503] * 19 + [200]


async def test_unreachable_pods_delay_no_others(pod: SecuredPod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.neonvm.access.connections._MAX_HANDSHAKES", 1)
    monkeypatch.setattr("deploy.neonvm.access.connections._MAX_RETRIED_HANDSHAKES", 1)
    monkeypatch.setattr("deploy.neonvm.access.connections.CONNECT_SECONDS", 0.2)
    known = connections(Reviews())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    silent = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], serve)
    place = RunnerEndpoint("default/db-y", "uid-2", "127.0.0.1", silent.port, 1)
    with pytest.raises(OSError, match="timed out"):
        await known.long_poll(place, "GET", "/woken", b"")
    monkeypatch.setattr("deploy.neonvm.access.connections.CONNECT_SECONDS", 60.0)
    again = [asyncio.create_task(known.long_poll(place, "GET", "/woken", b"")) for _ in range(5)]
    await asyncio.sleep(0)
    await slept(pod, known)
    assert [task.done() for task in again] == [False] * 5
    for task in again:
        task.cancel()
    await asyncio.wait(again)
    await silent.close()


async def test_cancelled_wait_hangs_up(pod: SecuredPod) -> None:
    known = connections(Reviews())
    await slept(pod, known)
    waiting = await woken(pod, known)
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    pod.pod.sleeper.frame.set()
    assert (await known.long_poll(pod.place, "GET", "/woken", b"")).status == 200


async def test_lost_runner_ends_the_wait(pod: SecuredPod) -> None:
    known = connections(Reviews())
    await slept(pod, known)
    waiting = await woken(pod, known)
    await pod.api.close()
    with pytest.raises(OSError, match="invalid response to"):
        await waiting
    with pytest.raises(OSError):  # noqa: PT011 - as the kernel says it
        await known.long_poll(pod.place, "GET", "/woken", b"")


async def test_another_key_gets_no_request(pod: SecuredPod) -> None:
    """Another program has the pod's address now."""
    known, asked = connections(Reviews()), list[bytes]()
    await known.ask(pod.place, "GET", "/status", b"")

    async def serve(_: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(1000))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with own_runner(serve) as (_, place):
        with pytest.raises(ImpostorError):
            await known.long_poll(place, "GET", "/woken", b"")
    assert [each for each in asked if each] == []


async def test_new_authorities_are_introduced_first(pod: SecuredPod) -> None:
    known = connections(Reviews())
    await slept(pod, known)
    known._identity = lambda: showing(trusted=pem() + pem("theirs"))
    waiting = await woken(pod, known)
    theirs = connections(Reviews(), showing(by="theirs", trusted=pem() + pem("theirs")))
    assert (await theirs.ask(pod.place, "GET", "/status", b"")).status == 200
    waiting.cancel()
    await asyncio.wait((waiting,))


@pytest.mark.parametrize("part", [b"x" * 10_000, b"HTTP/1.0 200 OK\r\n\r\n" + b"y" * 10_000])
async def test_endless_answer_is_cut(part: bytes) -> None:
    async def serve(_: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(part)
            await writer.drain()

    async with own_runner(serve) as (known, place), asyncio.timeout(LIMIT):
        tracemalloc.start()
        with pytest.raises(OSError, match="invalid response to"):
            await known.long_poll(place, "GET", "/woken", b"")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 8 * 1024**2


async def test_silent_handshake_ends_in_time(pod: SecuredPod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.neonvm.access.connections.CONNECT_SECONDS", 0.1)
    known = connections(Reviews())
    await known.ask(pod.place, "GET", "/status", b"")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    silent = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], serve)
    place = RunnerEndpoint("default/db-x", "uid-1", "127.0.0.1", silent.port, 1)
    with pytest.raises(OSError, match="timed out"):
        await known.long_poll(place, "GET", "/woken", b"")
    await silent.close()


async def test_plain_answer_is_no_handshake(pod: SecuredPod) -> None:
    known = connections(Reviews())
    await known.ask(pod.place, "GET", "/status", b"")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")

    plain = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], serve)
    place = RunnerEndpoint("default/db-x", "uid-1", "127.0.0.1", plain.port, 1)
    with pytest.raises(ssl.SSLError):
        await known.long_poll(place, "GET", "/woken", b"")
    await plain.close()
