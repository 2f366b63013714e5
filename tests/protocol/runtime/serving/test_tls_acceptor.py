"""Clients that open connections without TLS take no places of a listener: with real sockets."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from protocol.runtime.serving import tls_acceptor
from protocol.runtime.serving.limits import Limits
from protocol.runtime.serving.listeners import Listener, serve
from protocol.runtime.tls_files import server_tls
from protocol.units import Seconds
from tests.protocol.runtime.serving.test_listeners import free_address, hello, listening
from tests.scheduler_plugin.certificates import files

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
TWO_PEERS = ("127.0.0.2", "127.0.0.3") * 2


def on(loop: str, story: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(story, 20))


@asynccontextmanager
async def served(
    folder: Path, limits: Limits | None = None
) -> AsyncIterator[Callable[..., Coroutine[None, None, str]]]:
    """A listener with TLS; yields what asks it and returns the status, empty if the connection ends before."""
    certificate, key = files(folder, "server")
    address, stop = free_address(), asyncio.Event()
    host, port = address.split(":")
    tls = server_tls("agents", certificate, key)
    task = asyncio.create_task(serve([Listener("agents", hello(), address, tls, limits or Limits())], stop))
    trusting = ssl.create_default_context(cafile=str(certificate))

    async def ask(peer: str = "127.0.0.1", *, silent: bool = False) -> str:
        context = None if silent else trusting
        try:
            reader, writer = await asyncio.open_connection(
                host, port, ssl=context, local_addr=(peer, 0), server_hostname=None if silent else "127.0.0.1"
            )
            try:
                if not silent:
                    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                return (await reader.readline()).decode().strip().partition(" ")[2]
            finally:
                writer.close()
        except OSError:
            return ""

    try:
        await listening(address)
        await asyncio.sleep(0.2)  # the connection with which that was tried is over
        yield ask
    finally:
        stop.set()
        await task


@asynccontextmanager
async def silent_from(
    ask: Callable[..., Coroutine[None, None, str]], peers: Iterable[str], settle: float = 0.3
) -> AsyncIterator[list[asyncio.Task[str]]]:
    """Within the context, connections from ``peers`` that begin no TLS; it closes those that are still open."""
    silent = [asyncio.create_task(ask(peer, silent=True)) for peer in peers]
    await asyncio.sleep(settle)
    try:
        yield silent
    finally:
        for each in silent:
            each.cancel()
        await asyncio.wait(silent)


@pytest.mark.parametrize("loop", LOOPS)
def test_silent_peer_does_not_keep_others_out(loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_acceptor, "MAX_PER_PEER", 4)

    async def story() -> None:
        async with served(tmp_path, Limits(handshake=Seconds(5.0))) as ask:
            async with silent_from(ask, ["127.0.0.2"] * 4, 0.1) as silent:
                assert await ask("127.0.0.2", silent=True) == "", "it has no more places"
                assert await ask() == "200 OK"
                assert not any(each.done() for each in silent)
            await asyncio.sleep(0.1)
            assert await ask("127.0.0.2") == "200 OK", "the places are free again"

    on(loop, story())
    gc.collect()


@pytest.mark.parametrize("loop", LOOPS)
def test_handshake_that_has_had_its_time_gives_way(loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_acceptor, "MAX_HANDSHAKES", 4)
    monkeypatch.setattr(tls_acceptor, "DISPLACED_AFTER", 100.0)

    async def story() -> None:
        peers = [f"127.0.0.{number}" for number in range(2, 6)]
        async with served(tmp_path, Limits(handshake=Seconds(5.0))) as ask, silent_from(ask, peers) as silent:
            assert await ask() == "", "all places are taken by fresh ones"
            monkeypatch.setattr(tls_acceptor, "DISPLACED_AFTER", 0.0)
            assert await ask() == "200 OK"
            await asyncio.wait(silent, return_when=asyncio.FIRST_COMPLETED)
            assert sum(each.done() for each in silent) == 1

    on(loop, story())


@pytest.mark.parametrize("loop", LOOPS)
def test_few_peers_do_not_keep_others_out(loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take all places and begin again before one has had its time."""
    monkeypatch.setattr(tls_acceptor, "MAX_HANDSHAKES", 4)
    monkeypatch.setattr(tls_acceptor, "DISPLACED_AFTER", 100.0)

    async def story() -> None:
        async with served(tmp_path, Limits(handshake=Seconds(5.0))) as ask, silent_from(ask, TWO_PEERS) as silent:
            assert await ask() == "200 OK"
            await asyncio.wait(silent, return_when=asyncio.FIRST_COMPLETED)
            assert sum(each.done() for each in silent) == 1

    on(loop, story())


@pytest.mark.parametrize("loop", LOOPS)
def test_burst_takes_no_more_places(loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that wait are accepted in one go, before the handshake that gives way to the first has ended."""
    monkeypatch.setattr(tls_acceptor, "MAX_HANDSHAKES", 4)
    monkeypatch.setattr(tls_acceptor, "DISPLACED_AFTER", 100.0)

    async def story() -> None:
        async with served(tmp_path, Limits(handshake=Seconds(5.0))) as ask:
            others = [f"127.0.1.{number}" for number in range(1, 5)]
            async with silent_from(ask, TWO_PEERS) as before, silent_from(ask, others) as after:
                assert [each.done() for each in (*before, *after)].count(False) == 4

    on(loop, story())


@pytest.mark.parametrize("loop", LOOPS)
def test_listener_ends_while_handshakes_are_under_way(loop: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with served(tmp_path) as ask:
            silent = asyncio.create_task(ask(silent=True))
            await asyncio.sleep(0.1)
        assert await silent == ""

    on(loop, story())


async def test_files_that_are_used_up_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, failures = asyncio.get_running_loop(), [OSError(24, "Too many open files")]
    accept = loop.sock_accept

    async def failing(sock: socket.socket) -> object:
        if failures:
            raise failures.pop()
        return await accept(sock)

    monkeypatch.setattr(loop, "sock_accept", failing)
    async with served(tmp_path) as ask:
        assert await ask() == "200 OK"
    assert failures == []
