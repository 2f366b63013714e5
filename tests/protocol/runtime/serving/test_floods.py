"""Memory that strangers can take with few bytes: requests sent ahead, short headers, connections that have ended."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import uvloop
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from protocol.runtime.serving.bounded_protocol import (
    LONGEST_HEAD,
    MAX_HEADERS,
    MAX_WAITING,
    SMALL_BODY,
    BoundedProtocol,
    authenticate,
)
from protocol.runtime.serving.limits import Limits, Peers
from protocol.runtime.serving.listeners import Listener, serve
from protocol.units import Seconds
from tests.protocol.runtime.serving.test_limits import Client, Placed
from tests.protocol.runtime.serving.test_listeners import free_address, listening

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LATER = b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n"
STREAM = b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"
PROOF = b"GET /proof HTTP/1.1\r\nHost: x\r\n\r\n"
HEADER = b"a: b\r\n"


class Held:
    """A listener with an answer that waits, and one without an end."""

    def __init__(self) -> None:
        self.address = free_address()
        self.go_on, self.has_left = asyncio.Event(), asyncio.Event()
        self.asked = 0
        self._clients: list[Client] = []

    async def client(self, said: bytes) -> Client:
        client = Client(*await asyncio.open_connection(*self.address.split(":")))
        client.say(said)
        self._clients.append(client)
        return client

    def leave(self) -> None:
        for client in self._clients:
            client.leave()

    def app(self) -> FastAPI:
        async def now(_: Request) -> Response:
            self.asked += 1
            return Response()

        async def later(_: Request) -> Response:
            await self.go_on.wait()
            return Response()

        async def stream(_: Request) -> Response:
            return StreamingResponse(self._endless())

        async def prove(request: Request) -> Response:
            authenticate(request)
            return Response()

        async def drain(request: Request) -> Response:
            await request.body()
            return Response()

        app = FastAPI()
        app.add_route("/", now)
        app.add_route("/later", later)
        app.add_route("/stream", stream)
        app.add_route("/proof", prove)
        app.add_route("/drain", drain, methods=["POST"])
        return app

    async def _endless(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0.01)
        finally:
            self.has_left.set()


@asynccontextmanager
async def held(limits: Limits | None = None) -> AsyncIterator[Held]:
    found, stop = Held(), asyncio.Event()
    listener = Listener("agents", found.app(), found.address, limits=limits or Limits(request=Seconds(5.0)))
    task = asyncio.create_task(serve([listener], stop))
    try:
        await listening(found.address)
        yield found
    finally:
        found.leave()
        stop.set()
        await task


@contextmanager
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_few_requests_may_wait_for_an_answer() -> None:
    async with held() as listener:
        client = await listener.client(LATER + GET * MAX_WAITING)
        listener.go_on.set()
        assert [await client.status() for _ in range(MAX_WAITING + 1)] == ["200 OK"] * (MAX_WAITING + 1)


async def test_many_waiting_requests_end_the_connection() -> None:
    async with held() as listener:
        client = await listener.client(LATER + GET * (MAX_WAITING + 1))
        await client.displaced()
        listener.go_on.set()
        await asyncio.sleep(0.05)
        assert listener.asked == 0


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n" + HEADER * (MAX_HEADERS + 1),
        b"GET /?" + b"x" * LONGEST_HEAD + b" HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + HEADER * (MAX_HEADERS + 1),
    ],
    ids=["headers", "address", "trailers"],
)
async def test_costly_head_is_refused(head: bytes) -> None:
    async with held() as listener:
        client = await listener.client(head + b"\r\n")
        async with asyncio.timeout(5):
            assert await client.status() in {"400 Bad Request", ""}
            assert await client.ended()


@pytest.mark.parametrize(
    "start", [b"0\r\nX: ", b"0\r\n", b"1\r\nx\r\n1;", b"0" * 9], ids=["trailer", "name", "extension", "size"]
)
async def test_endless_line_after_head_is_refused(start: bytes) -> None:
    """The parser keeps an unfinished header, of any length."""
    async with held() as listener:
        client = await listener.client(b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + start)
        assert await client.status() == "200 OK"
        for _ in range(2 * LONGEST_HEAD // 1024):
            client.say(b"0" * 1024)
        async with asyncio.timeout(2):
            await client.displaced()


async def test_long_body_in_chunks_is_read() -> None:
    body = b"400\r\n" + b"x" * 1024 + b"\r\n"
    async with held() as listener:
        client = await listener.client(b"POST /drain HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, 100 * len(body), 7):
            client.say((body * 100)[at : at + 7])
        client.say(b"0\r\n\r\n")
        assert await client.status() == "200 OK"


async def test_usual_number_of_headers_is_served() -> None:
    async with held() as listener:
        client = await listener.client(b"GET / HTTP/1.1\r\n" + HEADER * MAX_HEADERS + b"\r\n")
        assert await client.status() == "200 OK"


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_ended_connection_is_freed_without_a_collection(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Programs collect garbage seldom: what an ended connection leaves to the collector is as good as lost."""

    async def visit() -> None:
        async with held() as listener:
            with no_collection():
                for said in (GET, GET + b"GET / HT", GET.replace(b"/ ", b"/missing "), LATER + GET * 3):
                    client = await listener.client(said)
                    if said.startswith(GET):
                        assert await client.status() == "200 OK"
                    await asyncio.sleep(0.02)
                    client.leave()
                listener.go_on.set()
                await asyncio.sleep(0.1)
                assert [each for each in gc.get_objects() if isinstance(each, BoundedProtocol)] == []

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(visit())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_answer_ends_with_its_client_though_others_wait(
    loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        async with held() as listener:
            client = await listener.client(STREAM + GET * 3)
            assert await client.status() == "200 OK"
            client.leave()
            async with asyncio.timeout(5):
                await listener.has_left.wait()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(leave())
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_greediest_peer_pays_for_large_bodies() -> None:
    peers = Peers(Limits(bodies=100))
    modest, *greedy = (Placed() for _ in range(4))
    peers.hold(modest, "a", 30)
    for connection in greedy:
        peers.hold(connection, "b", 35)
    assert [each.is_displaced for each in (modest, *greedy)] == [False, True, False, False]
    peers.hold(modest, "a", 0)
    peers.leave(greedy[1], "b")
    peers.hold(Placed(), "c", 60)
    assert [each.is_displaced for each in greedy] == [True, False, False]


async def test_unfinished_bodies_share_a_limit() -> None:
    limits = Limits(request=Seconds(5.0), bodies=3 * SMALL_BODY)
    head = b"POST /drain HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (2 * SMALL_BODY)
    async with held(limits) as listener:
        clients = [await listener.client(head + b"x" * (2 * SMALL_BODY - 1)) for _ in range(2)]
        await clients[0].displaced()
        clients[1].say(b"x")
        assert await clients[1].status() == "200 OK"
        # What was answered does not count any more.
        clients[1].say(head + b"x" * (2 * SMALL_BODY))
        assert await clients[1].status() == "200 OK"


async def test_small_bodies_of_strangers_count_too() -> None:
    head = b"POST /drain HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    async with held(Limits(request=Seconds(5.0), bodies=1500)) as listener:
        agents = [await listener.client(PROOF) for _ in range(3)]
        assert [await client.status() for client in agents] == ["200 OK"] * 3
        for client in agents:
            client.say(head + b"x" * 999)
        strangers = [await listener.client(head + b"x" * 999) for _ in range(2)]
        await strangers[0].displaced()
        for client in (*agents, strangers[1]):
            client.say(b"x")
            assert await client.status() == "200 OK"


async def test_bodies_of_requests_sent_ahead_count_too() -> None:
    """Also once the request before them has been answered."""
    ahead = GET + b"POST /drain HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + b"x" * 999
    async with held(Limits(request=Seconds(5.0), bodies=1500)) as listener:
        clients = [await listener.client(ahead), await listener.client(ahead)]
        await clients[0].displaced()
        assert await clients[1].status() == "200 OK"
        clients[1].say(b"x")
        assert await clients[1].status() == "200 OK"
        # Both have been answered.
        clients[1].say(ahead)
        assert await clients[1].status() == "200 OK"


async def test_late_request_does_not_take_earlier_answer() -> None:
    """Its client would take the refusal for the answer to the first, which may have been carried out."""
    async with held(Limits(request=Seconds(0.2))) as listener:
        client = await listener.client(LATER + b"GET / HT")
        said = await client.status()
        listener.go_on.set()
        assert said == ""
