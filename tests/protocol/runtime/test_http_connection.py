"""Answers in every framing of HTTP: with a length, in chunks, until the connection ends, or without a body."""

from __future__ import annotations

import asyncio
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from protocol.runtime.http_connection import BrokenConnectionError, HttpConnection, LongAnswerError

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LONGEST = 1000
OPEN = b"stay"
"""In place of a piece: the connection stays open."""
RESET = b"reset"


@asynccontextmanager
async def server(*pieces: bytes) -> AsyncIterator[HttpConnection]:
    """A connection to a server that answers one request with these pieces, and then ends the connection."""

    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            if piece == OPEN:
                await reader.read()
            elif piece == RESET:
                linger = struct.pack("ii", 1, 0)  # so that closing it resets the connection
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
            else:
                writer.write(piece)
                await asyncio.sleep(0.001)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        _, connection = await asyncio.get_running_loop().create_connection(HttpConnection, host, port)
        try:
            yield connection
        finally:
            connection.close()
            await ended.wait()
            await asyncio.sleep(0)


async def whole(connection: HttpConnection, seconds: float = 2.0) -> tuple[int, bytes]:
    deadline = asyncio.get_running_loop().time() + seconds
    answer, body = await connection.exchange(REQUEST, deadline, LONGEST)
    return answer.status, body


async def pieces_of(connection: HttpConnection) -> bytes:
    await connection.ask(REQUEST, asyncio.get_running_loop().time() + 2)
    found = b""
    while (piece := await connection.piece(2)) is not None:
        found += piece
    return found


OK = b"HTTP/1.1 200 OK\r\n"
OLD = b"HTTP/1.0 200 OK\r\n"
CLOSE = b"Connection: close\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
LENGTH = b"Content-Length: 4\r\n"
CHUNKS = b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("said", "body", "is_reusable"),
    [
        ([OK + LENGTH + b"\r\nab", b"cd", OPEN], b"abcd", True),
        ([OK + CHUNKED + b"\r\n" + CHUNKS, OPEN], b"abcd", True),
        ([OK + LENGTH + CLOSE + b"\r\nabcd", OPEN], b"abcd", False),
        ([OK + CHUNKED + CLOSE + b"\r\n" + CHUNKS], b"abcd", False),
        ([OK + CLOSE + b"\r\nab", b"cd"], b"abcd", False),
        ([OK + b"\r\nab", b"cd"], b"abcd", False),
        ([OLD + b"\r\nab", b"cd"], b"abcd", False),
        ([OLD + LENGTH + b"\r\nabcd", OPEN], b"abcd", False),
        ([OLD + LENGTH + b"Connection: keep-alive\r\n\r\nabcd", OPEN], b"abcd", True),
        ([OLD + b"\r\n"], b"", False),
        ([OK + CLOSE, b"\r\n"], b"", False),
        ([b"HTTP/1.1 204 No Content\r\n\r\n", OPEN], b"", True),
        ([b"HTTP/1.1 304 Not Modified\r\n\r\n", OPEN], b"", True),
        ([b"HTTP/1.1 500 Oh\r\n" + CLOSE + b"\r\nno"], b"no", False),
    ],
)
async def test_answer_is_read_in_every_framing(said: Sequence[bytes], body: bytes, is_reusable: bool) -> None:
    async with server(*said) as connection:
        assert (await whole(connection))[1] == body
        assert connection.is_reusable is is_reusable
    async with server(*said) as connection:
        assert await pieces_of(connection) == body


@pytest.mark.parametrize(
    "said",
    [
        [b"HTTP/1.1 200"],
        [OK + CLOSE],
        [OK + LENGTH + b"\r\nab"],
        [OLD + LENGTH + b"\r\nab"],
        [OK + CHUNKED + b"\r\n2\r\nab\r\n"],
        [OK + b"Transfer-Encoding: gzip\r\n\r\nab"],
        [OK + CLOSE + b"\r\nab", RESET],
        [OK + LENGTH + CHUNKED + b"\r\n" + CHUNKS],
        [],
    ],
)
async def test_answer_that_ends_early_is_broken(said: Sequence[bytes]) -> None:
    async with server(*said) as connection:
        with pytest.raises(BrokenConnectionError):
            await whole(connection)
        assert not connection.is_reusable


@pytest.mark.parametrize("interim", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
@pytest.mark.parametrize("is_apart", [False, True])
async def test_interim_response_of_proxy_is_skipped(interim: bytes, is_apart: bool) -> None:
    """Taken for a refusal, it would free the room of a write that is carried out a moment later, and the answer to that
    write would be taken for that of the next request.
    """
    hints = b"HTTP/1.1 " + interim + b"\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\n"
    answer = OK + LENGTH + b"\r\nabcd"
    async with server(*([hints, hints, answer] if is_apart else [hints + answer]), OPEN) as connection:
        assert await whole(connection) == (200, b"abcd")
        assert connection.is_reusable
    async with server(hints, answer, OPEN) as connection:
        head = await connection.ask(REQUEST, asyncio.get_running_loop().time() + 2)
        assert (head.status, head.retry_after) == (200, "")
    async with server(hints, OK + b"\r\nabcd") as connection:
        assert await whole(connection) == (200, b"abcd"), "the end of the connection ends the body"


async def test_interim_responses_without_end_break_the_connection() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: " + b"x" * 1000 + b"\r\n\r\n"
    async with server(*[hints] * 70) as connection:
        with pytest.raises(BrokenConnectionError, match="outside of its body"):
            await whole(connection)


async def test_protocol_switch_nobody_asked_for_is_an_answer() -> None:
    async with server(b"HTTP/1.1 101 Switching Protocols\r\n\r\n", OPEN) as connection:
        assert (await whole(connection))[0] == 101


async def test_body_without_a_length_has_bounds() -> None:
    """In size and in time: a server that never ends a body does not block its client."""
    async with server(OK + b"\r\n", *[b"x" * 100] * (LONGEST // 100 + 1), OPEN) as connection:
        with pytest.raises(LongAnswerError):
            await whole(connection)
    async with server(OK + b"\r\nab", OPEN) as connection:
        with pytest.raises(TimeoutError):
            await whole(connection, 0.05)
        assert not connection.is_reusable


async def test_connection_that_we_end_makes_no_answer_whole() -> None:
    async with server(OK + b"\r\nab", OPEN) as connection:
        asked = asyncio.create_task(whole(connection))
        await asyncio.sleep(0.05)
        connection.close()
        with pytest.raises(BrokenConnectionError):
            await asked


async def test_whole_answer_takes_little_more_than_its_bytes() -> None:
    """An agent reads the pages of many guests at once; each may send a megabyte in the shortest pieces."""
    chunk, count = b"40\r\n" + b"x" * 64 + b"\r\n", 2000
    connection = HttpConnection()
    answer = asyncio.ensure_future(connection.exchange(REQUEST, asyncio.get_running_loop().time() + 5, 2**20))
    await asyncio.sleep(0)
    connection.data_received(OK + CHUNKED + b"\r\n")
    tracemalloc.start()
    try:
        for _ in range(count):
            connection.data_received(chunk)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    connection.data_received(b"0\r\n\r\n")
    assert (await answer)[1] == b"x" * 64 * count
    assert held < 1.25 * 64 * count
