"""A port of a runner pod in a flood: the cost of one address, and the clients that a silent crowd locks out."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.neonvm.access import authenticated_listener as listener_module
from deploy.neonvm.access.authenticated_listener import (
    HANDSHAKE_BURST,
    HANDSHAKE_RATE,
    MAX_UNAUTHENTICATED,
    PER_ADDRESS,
    AuthenticatedListener,
)
from deploy.neonvm.network.sockets import listening, tcp_socket
from tests.neonvm.access.secured_pod import Streams, secured_pod, stranger

STRANGER, KUBELET = "127.0.0.2", "127.0.0.99"


@dataclass
class CountingListener:
    """A listener that counts the handshakes it begins, each of which fails at once."""

    begun: int = 0
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    listener: AuthenticatedListener = field(init=False)

    def __post_init__(self) -> None:
        self.listener = AuthenticatedListener(listening(tcp_socket(), "0.0.0.0", 0), _unserved, self.tls)

    def tls(self) -> ssl.SSLContext:
        self.begun += 1
        self.has_begun.set()
        raise ssl.SSLError("it fails")

    async def called_from(self, source: str) -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection("127.0.0.1", self.listener.port, local_addr=(source, 0))
        return writer

    async def serves(self, source: str) -> bool:
        """True if a caller from that address soon gets its handshake."""
        self.has_begun.clear()
        caller = await self.called_from(source)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await self.has_begun.wait()
        caller.close()
        return self.has_begun.is_set()


async def _unserved(_: str, __: asyncio.StreamReader, ___: asyncio.StreamWriter) -> None:
    """Never called."""


@pytest.fixture
async def counting() -> AsyncIterator[CountingListener]:
    made = CountingListener()
    yield made
    await made.listener.close()


async def test_flood_of_one_address_costs_few_handshakes(counting: CountingListener) -> None:
    """During the flood other addresses, such as a kubelet's, are served; afterwards the flooding one is served too."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while loop.time() < began + 1.0:
        (await counting.called_from(STRANGER)).close()
    assert counting.begun <= HANDSHAKE_BURST + HANDSHAKE_RATE * (loop.time() - began) + 1
    assert await counting.serves(KUBELET)
    await asyncio.sleep((PER_ADDRESS + 1) / HANDSHAKE_RATE)
    assert await counting.serves(STRANGER)


async def test_addresses_of_the_past_are_forgotten(counting: CountingListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "_MAX_BUDGETS", 3)
    for number in range(2, 12):
        assert await counting.serves(f"127.0.0.{number}")
        await asyncio.sleep(2 / HANDSHAKE_RATE)
    assert len(counting.listener._full_at) <= 3


async def test_silent_crowd_of_many_addresses_displaces_itself(tmp_path: Path) -> None:
    """A slow caller keeps its slot: the oldest connection of the address with the most is closed."""
    async with secured_pod(tmp_path) as pod:

        async def called_from(source: str) -> Streams:
            return Streams(*await asyncio.open_connection("127.0.0.1", pod.api.port, local_addr=(source, 0)))

        slow = await called_from(KUBELET)
        count = MAX_UNAUTHENTICATED + PER_ADDRESS
        crowd = [await called_from(f"127.0.0.{2 + number // PER_ADDRESS}") for number in range(count)]
        async with asyncio.timeout(5):
            await slow.writer.start_tls(stranger())
            assert (await slow.ask("GET", "/healthz", b"")).status == 200
        for each in (slow, *crowd):
            each.close()
