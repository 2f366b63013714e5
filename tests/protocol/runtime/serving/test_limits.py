"""One client can neither hold all connections of a listener nor keep it waiting: real sockets, short limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from operator import itemgetter
from types import SimpleNamespace
from typing import cast

import pytest
import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from protocol.runtime.serving.bounded_protocol import LONGEST_HEAD, BoundedProtocol, authenticate
from protocol.runtime.serving.limits import Limits, Peers
from protocol.runtime.serving.listeners import Listener, serve
from protocol.units import Seconds
from scheduler_plugin.web.hot_paths import BodyError, read_body
from tests.protocol.runtime.serving.test_listeners import free_address, listening

SHORT = Limits(connections=4, per_peer=3, request=Seconds(0.05), idle=Seconds(1.0))
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
PROOF = b"GET /proof HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 8 * 1024**2
"""Bytes."""
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def say(self, content: bytes) -> None:
        self._writer.write(content)

    async def status(self) -> str:
        """The status of the next answer, without its body; empty if the connection ends without one."""
        async with asyncio.timeout(5):
            head = await self._reader.readline()
            while (await self._reader.readline()).strip():
                pass
        return head.decode().strip().partition(" ")[2]

    async def ended(self) -> bool:
        """Returns once the other side has closed."""
        async with asyncio.timeout(5):
            return not (await self._reader.read()).startswith(b"HTTP")

    async def displaced(self) -> None:
        """Returns once the other side has aborted the connection."""
        with suppress(ConnectionResetError):
            await self.ended()

    def leave(self) -> None:
        self._writer.close()


class Served:
    """A listener with short limits."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.bodies: list[int] = []
        self._clients: list[Client] = []

    async def client(self, said: bytes = b"", address: str = "127.0.0.1") -> Client:
        client = Client(*await asyncio.open_connection(*self.address.split(":"), local_addr=(address, 0)))
        client.say(said)
        self._clients.append(client)
        return client

    def leave(self) -> None:
        for client in self._clients:
            client.leave()

    def app(self) -> FastAPI:
        async def answer(request: Request) -> Response:
            try:
                self.bodies.append(len(await read_body(request, 5000)))
            except BodyError as error:
                return PlainTextResponse(str(error), error.status)
            return Response()

        async def prove(request: Request) -> Response:
            authenticate(request)
            return Response()

        async def refuse(request: Request) -> Response:
            return Response(status_code=404 if request.url.path == "/unknown" else 401)

        app = FastAPI()
        app.add_route("/", answer, methods=["GET", "POST"])
        app.add_route("/proof", prove)
        app.add_route("/refused", refuse)
        app.add_route("/unknown", refuse)
        return app


@asynccontextmanager
async def served(limits: Limits = SHORT) -> AsyncIterator[Served]:
    found, stop = Served(free_address()), asyncio.Event()
    listener = Listener("agents", found.app(), found.address, limits=limits)
    task = asyncio.create_task(serve([listener], stop))
    try:
        await listening(found.address)
        yield found
    finally:
        found.leave()
        stop.set()
        await task


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: ", HEAD, HEAD + b"x" * 999])
async def test_incomplete_request_times_out(said: bytes) -> None:
    async with served() as listener:
        client = await listener.client(said)
        assert await client.status() == "408 Request Timeout"
        assert await client.ended()
        assert listener.bodies == []


async def test_trickled_request_gains_no_time() -> None:
    async with served() as listener:
        client = await listener.client()
        answer = asyncio.create_task(client.status())
        for byte in GET[:-1]:
            client.say(bytes([byte]))
            await asyncio.sleep(0.005)
            if answer.done():
                break
        assert await answer == "408 Request Timeout"


async def test_timely_slow_request_is_served() -> None:
    async with served(Limits(request=Seconds(0.2))) as listener:
        client = await listener.client(HEAD)
        client.say(b"x" * 500)
        await asyncio.sleep(0)
        client.say(b"x" * 500)
        assert await client.status() == "200 OK"
        await asyncio.sleep(0.25)
        client.say(GET)
        assert await client.status() == "200 OK"
        assert listener.bodies == [1000, 0]


class Wire(asyncio.Transport):
    """A transport whose client takes what a test says."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.left, self.is_aborted, self.closings = LARGE, False, 0

    def get_write_buffer_size(self) -> int:
        return self.left

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.closings += 1


def written_to(wire: Wire) -> BoundedProtocol:
    """A connection whose client has not taken all that was written; each turn of the loop is a ``stall``."""
    config = uvicorn.Config(FastAPI(), lifespan="off", log_config=None)
    limits = Limits(request=Seconds(60.0), stall=Seconds(0.0))
    protocol = BoundedProtocol(Peers(limits), config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(wire)
    protocol.pause_writing()
    return protocol


async def turns(wire: Wire, taken: int) -> bool:
    """True if the connection is cut although its client reads this much at each turn."""
    for _ in range(10):
        wire.left -= taken
        await asyncio.sleep(0)
    return wire.is_aborted


async def test_stalled_reader_is_cut_off_slow_is_not() -> None:
    for taken, is_cut_off in ((0, True), (1, False)):
        wire = Wire()
        protocol = written_to(wire)
        assert await turns(wire, taken) == is_cut_off
        protocol.connection_lost(None)


async def test_caught_up_client_gets_no_frames() -> None:
    wire = Wire()
    protocol = written_to(wire)
    protocol.resume_writing()
    assert not await turns(wire, 0)
    protocol.connection_lost(None)


@dataclass
class Timers:
    """The part of an event loop that a connection's timers need."""

    now: float = 0.0
    due: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
        timer = self.now + seconds, partial(call, *arguments)
        self.due.append(timer)
        return cast("asyncio.TimerHandle", SimpleNamespace(cancel=partial(self.due.remove, timer)))

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self.due and min(self.due, key=itemgetter(0))[0] <= until:
            timer = min(self.due, key=itemgetter(0))
            self.due.remove(timer)
            self.now = timer[0]
            timer[1]()
        self.now = until


def idling(timers: Timers, wire: Wire, state: ServerState) -> BoundedProtocol:
    """A connection that may be idle for 10 s."""
    protocol = BoundedProtocol(
        Peers(Limits(request=Seconds(1000.0), idle=Seconds(10.0), idle_unauthenticated=Seconds(10.0))),
        config=uvicorn.Config(FastAPI(), lifespan="off", log_config=None),
        server_state=state,
        app_state={},
        _loop=cast("asyncio.AbstractEventLoop", timers),
    )
    protocol.connection_made(wire)
    return protocol


def test_early_answered_connection_becomes_idle() -> None:
    timers, wire = Timers(), Wire()
    protocol = idling(timers, wire, ServerState())
    protocol.on_response_complete()
    protocol.data_received(b"")
    answered = SimpleNamespace(response_complete=True, message_event=asyncio.Event())
    protocol.cycle = cast("RequestResponseCycle", answered)
    timers.advance(20)
    protocol.on_message_complete()
    timers.advance(9.9)
    assert wire.closings == 0
    timers.advance(0.2)
    assert wire.closings == 1


def test_one_idle_timer_per_connection() -> None:
    timers, wire = Timers(), Wire()
    state = ServerState()
    protocol = idling(timers, wire, state)
    for _ in range(5):
        protocol.on_response_complete()
        timers.advance(7)
        protocol.data_received(b"")
        timers.advance(12)
        assert wire.closings == 0, "a request is under way"
    assert state.total_requests == 5
    protocol.on_response_complete()
    assert len(timers.due) == 2, "for the request, and for being idle"
    timers.advance(9.9)
    assert wire.closings == 0
    timers.advance(0.2)
    assert wire.closings == 1
    protocol.connection_lost(None)
    assert timers.due == []


async def test_newest_connection_displaces_oldest_of_its_peer() -> None:
    async with served(Limits(connections=9, per_peer=2, request=Seconds(5.0))) as listener:
        other = await listener.client(GET, "127.0.0.2")
        clients = [await listener.client(GET) for _ in range(2)]
        assert [await client.status() for client in [other, *clients]] == ["200 OK"] * 3
        newest = await listener.client(GET)
        assert await newest.status() == "200 OK"
        await clients[0].displaced()
        for client in (other, clients[1]):
            client.say(GET)
            assert await client.status() == "200 OK"


async def test_many_strangers_do_not_block_listener() -> None:
    """Nine addresses fill the listener and stay; agents still get in, and one that has shown who it is stays."""
    async with served(Limits(connections=9, per_peer=9, request=Seconds(5.0))) as listener:
        agent = await listener.client(PROOF)
        assert await agent.status() == "200 OK"
        strangers = [await listener.client(GET, f"127.0.0.{number}") for number in range(2, 11)]
        assert [await stranger.status() for stranger in strangers[1:]] == ["200 OK"] * 8
        await strangers[0].displaced()
        late_agent = await listener.client(PROOF)
        assert await late_agent.status() == "200 OK"
        await strangers[1].displaced()
        agent.say(GET)
        assert await agent.status() == "200 OK"


async def test_listener_full_of_authenticated_connections_refuses() -> None:
    async with served(Limits(connections=2, per_peer=9, request=Seconds(5.0))) as listener:
        for _ in range(2):
            assert await (await listener.client(PROOF)).status() == "200 OK"
        refused = await listener.client(GET)
        assert await refused.status() == "503 Service Unavailable"
        assert await refused.ended()


async def test_place_that_is_left_is_free_again() -> None:
    async with served(Limits(connections=9, per_peer=1, request=Seconds(5.0))) as listener:
        first = await listener.client(PROOF)
        assert await first.status() == "200 OK"
        first.leave()
        for _ in range(100):
            await asyncio.sleep(0.01)
            if await (await listener.client(PROOF)).status() == "200 OK":
                return
        pytest.fail("the place was not given back")


@pytest.mark.parametrize("path", ["/missing", "/refused"])
async def test_stranger_is_closed_by_its_first_refusal(path: str) -> None:
    """Nine addresses without a token once held all connections of the agents' port, after one 400 each."""
    async with served(Limits(request=Seconds(5.0))) as listener:
        client = await listener.client(GET.replace(b"/ ", f"{path} ".encode()))
        assert (await client.status()).startswith("4")
        assert await client.ended()


async def test_authenticated_connection_survives_a_refusal() -> None:
    """Of an agent's VMs one may be unknown; only a token that is refused ends the connection."""
    async with served(Limits(request=Seconds(5.0))) as listener:
        client = await listener.client(PROOF + GET.replace(b"/ ", b"/unknown ") + GET)
        assert [await client.status() for _ in range(3)] == ["200 OK", "404 Not Found", "200 OK"]
        client.say(GET.replace(b"/ ", b"/refused "))
        assert await client.status() == "401 Unauthorized"
        assert await client.ended()


async def test_stranger_idle_time_is_short() -> None:
    short = Limits(request=Seconds(5.0), idle=Seconds(60.0), idle_unauthenticated=Seconds(0.05))
    async with served(short) as listener:
        stranger, agent = await listener.client(GET), await listener.client(PROOF)
        assert [await client.status() for client in (stranger, agent)] == ["200 OK"] * 2
        assert await stranger.ended()
        agent.say(GET)
        assert await agent.status() == "200 OK"


async def test_a_head_that_is_too_long_is_refused() -> None:
    async with served() as listener:
        client = await listener.client(b"GET / HTTP/1.1\r\nX: " + b"x" * (LONGEST_HEAD + 1))
        assert await client.status() == "400 Bad Request"


async def test_oversized_body_is_refused_by_length() -> None:
    async with served() as listener:
        client = await listener.client(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n")
        assert await client.status() == f"413 {HTTPStatus(413).phrase}"
        assert listener.bodies == []


@dataclass(eq=False)
class Placed:
    """A connection that notes that it has lost its place."""

    is_displaced: bool = False

    def displace(self) -> None:
        self.is_displaced = True


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_sent_probe_survives_a_flood_from_its_address(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """A node port masquerades, so strangers may come from the kubelet's address: all have connected before a turn."""

    async def story() -> None:
        async with served(Limits(connections=256, per_peer=64)) as listener:
            host, _, port = listener.address.partition(":")
            with ExitStack() as opened:
                crowd = [opened.enter_context(socket.create_connection((host, int(port)), 5)) for _ in range(90)]
                for each in (crowd[0], crowd[-1]):  # when the last is answered, all have been accepted
                    each.sendall(GET)
                    each.setblocking(False)
                    async with asyncio.timeout(5):
                        said = await asyncio.get_running_loop().sock_recv(each, 100)
                    assert said.startswith(b"HTTP/1.1 200")

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(story())
