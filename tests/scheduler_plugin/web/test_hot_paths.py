"""Hot paths bypass the framework, and are served like everything else: real sockets."""

from __future__ import annotations

import asyncio
import gc
import re
from http import HTTPStatus

import pytest
import uvicorn
from uvicorn.server import ServerState

from protocol.runtime.serving.bounded_protocol import LONGEST_HEAD, MAX_WAITING, BoundedProtocol
from protocol.runtime.serving.limits import Limits, Peers
from protocol.runtime.serving.listeners import Listener, serve
from tests.protocol.runtime.serving.test_listeners import listening
from tests.scheduler_plugin.web.served_paths import LONGEST, Answers, Client, post, serving


async def test_hot_path_answers_with_its_headers() -> None:
    async with serving() as (_, client):
        client.writer.write(post("/now", b"hello", "Authorization: Bearer a", "Authorization: Bearer b"))
        status, headers, body = await client.answer()
        assert (status, body) == ("200 OK", "hello by Bearer a")
        assert sorted(headers) == ["content-length", "content-type", "date", "x-path"]


async def test_other_paths_reach_the_application() -> None:
    async with serving() as (_, client):
        client.writer.write(
            post("/now", b"1") + post("/other") + b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n" + post("/now")
        )
        answers = [await client.said() for _ in range(4)]
        assert answers == [
            ("200 OK", "1 by None"),
            ("200 OK", "the rest"),
            ("405 Method Not Allowed", "Method Not Allowed"),
            ("200 OK", " by None"),
        ]


async def test_pipelined_requests_keep_order() -> None:
    async with serving() as (found, client):
        client.writer.write(post("/later", b"first") + post("/now", b"x") * (MAX_WAITING - 1) + post("/other"))
        await found.was_asked.wait()
        assert found.asked == ["first"]
        found.go_on.set()
        assert await client.said() == ("200 OK", "waited")
        assert {await client.said() for _ in range(MAX_WAITING - 1)} == {("200 OK", "x by None")}
        assert await client.said() == ("200 OK", "the rest")


@pytest.mark.parametrize(
    "said",
    [
        b"POST /now HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n",
        b"POST /now HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999\r\n\r\n",
        b"POST /now HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001,
    ],
)
async def test_oversized_chunked_body_is_refused_early(said: bytes) -> None:
    async with serving() as (found, client):
        client.writer.write(said)
        assert await client.said() == (f"413 {HTTPStatus(413).phrase}", "a request has at most 1000 bytes")
        assert found.asked == []


@pytest.mark.parametrize("said", [post("/closed", b"x" * 100), post("/closed", b"x" * LONGEST * 2)])
async def test_refused_client_hears_before_its_body(said: bytes) -> None:
    async with serving() as (found, client):
        client.writer.write(said[:-50])
        assert await client.said() == ("401 Unauthorized", "who are you?")
        assert await client.has_ended()
        assert found.asked == []


async def test_admitted_client_skips_introduction() -> None:
    """Until a client's first successful request, its token is checked before the body is read; later requests skip
    that.
    """
    async with serving() as (found, client):
        for authorization in ("a", "b"):
            client.writer.write(post("/introduced", b"x", f"Authorization: Bearer {authorization}"))
            assert await client.said() == ("200 OK", f"x by Bearer {authorization}")
        assert found.introduced == [("Bearer a", "127.0.0.1")]


async def test_success_that_does_not_authenticate_leaves_a_stranger() -> None:
    async with serving() as (found, client):
        for authorization in ("stranger", "b"):
            client.writer.write(post("/introduced", b"x", f"Authorization: Bearer {authorization}"))
            status, _ = await client.said()
            assert status == ("200 OK" if authorization == "stranger" else "401 Unauthorized")
        assert await client.has_ended()
        assert found.asked == ["x"]


async def test_refusals_keep_pipeline_order() -> None:
    async with serving() as (found, client):
        client.writer.write(post("/later", b"first") + post("/closed", b"x" * 100)[:-50])
        await found.was_asked.wait()
        found.go_on.set()
        assert [await client.said() for _ in range(2)] == [("200 OK", "waited"), ("401 Unauthorized", "who are you?")]
        assert await client.has_ended()
        assert found.asked == ["first"]


async def test_stranger_expecting_continue_is_refused() -> None:
    async with serving() as (found, client):
        client.writer.write(post("/closed", b"x", "Expect: 100-continue")[:-1])
        assert await client.said() == ("401 Unauthorized", "who are you?")
        assert await client.has_ended()
        assert found.asked == []


async def test_a_body_in_chunks_is_put_together() -> None:
    async with serving() as (_, client):
        client.writer.write(b"POST /now HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
        await asyncio.sleep(0)
        client.writer.write(b"1\r\nc\r\n0\r\n\r\n")
        assert await client.said() == ("200 OK", "abc by None")


@pytest.mark.parametrize("how", [b"now", b"later"])
async def test_failing_handler_gives_500_and_closes(how: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (_, client):
        client.writer.write(post("/broken", how))
        status, headers, body = await client.answer()
        assert (status, body) == ("500 Internal Server Error", '{"error":"internal error; see the program log"}')
        assert headers["connection"] == "close"
        assert await client.has_ended()
        assert "a request failed" in caplog.text


@pytest.mark.parametrize(
    "said", [post("/now", b"hello", "Connection: close"), b"POST /now HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello"]
)
async def test_connection_close_is_honoured(said: bytes) -> None:
    async with serving() as (_, client):
        client.writer.write(said)
        assert await client.said() == ("200 OK", "hello by None")
        assert await client.has_ended()


async def test_expect_100_continue_is_answered() -> None:
    async with serving() as (_, client):
        client.writer.write(b"POST /now HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        async with asyncio.timeout(5):
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(b"go")
        assert await client.said() == ("200 OK", "go by None")


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written, self.is_closed = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing is read from here."""

    def resume_reading(self) -> None:
        """Nothing is read from here."""


async def test_non_reading_client_is_worked_for_once() -> None:
    found, wire = Answers(), Wire()
    config = uvicorn.Config(found.app(), lifespan="off", log_config=None)
    config.load()
    protocol = BoundedProtocol(Peers(Limits()), config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(wire)
    protocol.pause_writing()
    protocol.data_received(post("/now", b"1") + post("/closed", b"2") + post("/now", b"3"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert (found.asked, wire.written) == (["1"], b"")
    protocol.resume_writing()
    for _ in range(20):
        await asyncio.sleep(0)
    assert found.asked == ["1"]
    assert re.findall(rb"HTTP/1.1 ([0-9]+)", wire.written) == [b"200", b"401"], "a refused token ends the connection"
    protocol.connection_lost(None)


async def test_open_request_at_shutdown_gets_503() -> None:
    found, wire, state = Answers(), Wire(), ServerState()
    config = uvicorn.Config(found.app(), lifespan="off", log_config=None)
    config.load()
    protocol = BoundedProtocol(Peers(Limits()), config=config, server_state=state, app_state={})
    protocol.connection_made(wire)
    protocol.data_received(post("/later", b"bind"))
    await found.was_asked.wait()
    (open_one,) = state.tasks
    open_one.cancel()
    await asyncio.wait([open_one])
    assert wire.written.startswith(b"HTTP/1.1 503 ")
    assert {b"retry-after: 0", b"connection: close"} <= set(wire.written.split(b"\r\n"))
    protocol.connection_lost(None)


async def test_work_of_gone_client_is_finished() -> None:
    async with serving() as (found, client):
        client.writer.write(post("/later", b"bind"))
        await found.was_asked.wait()
        client.writer.transport.abort()
        await asyncio.sleep(0)
        found.go_on.set()
        await found.has_ended.wait()


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_background_work_outlives_answer(version: str) -> None:
    async with serving() as (found, client):
        client.writer.write(post("/early", b"", "Autoscale-Batch: 1").replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
        assert await client.said() == ("200 OK", "knows batches")
        assert not found.has_ended.is_set()
        client.writer.transport.abort()
        await asyncio.sleep(0)
        found.go_on.set()
        await found.has_ended.wait()


async def no_longer_listening(address: str) -> None:
    """Return once connections are refused there, a few turns of the loop after the server was stopped."""
    for _ in range(20):
        await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address.split(":"))


async def test_answer_in_flight_survives_shutdown() -> None:
    found, stop = Answers(), asyncio.Event()
    task = asyncio.create_task(serve([Listener("hot", found.app(), found.address)], stop))
    await listening(found.address)
    client = Client(*await asyncio.open_connection(*found.address.split(":")))
    client.writer.write(post("/later", b"bind"))
    await found.was_asked.wait()
    stop.set()
    await no_longer_listening(found.address)
    found.go_on.set()
    status, headers, body = await client.answer()
    assert (status, headers["connection"], body) == ("200 OK", "close", "waited")
    await task
    client.writer.close()


@pytest.mark.parametrize("path", ["/now", "/elsewhere"])
async def test_trailers_count_as_head(path: str) -> None:
    half = "X: " + "x" * (LONGEST_HEAD // 2)
    head = "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", half, "", ""])
    async with serving() as (_, client):
        client.writer.write(f"{head}1\r\nb\r\n0\r\n{half}\r\n\r\n".encode())
        assert (await client.said())[0] == "400 Bad Request"


async def test_unfinished_body_is_freed_without_a_collection() -> None:
    """Programs collect garbage seldom, and an error that is kept holds the frames through which it was raised."""
    async with serving() as (found, client):
        gc.collect()
        gc.disable()
        try:
            client.writer.write(post("/now", b"x" * 100)[:-50])
            await asyncio.sleep(0.05)
            client.writer.close()
            await asyncio.sleep(0.05)
            assert [each for each in gc.get_objects() if isinstance(each, BoundedProtocol)] == []
        finally:
            gc.enable()
    assert found.asked == []
