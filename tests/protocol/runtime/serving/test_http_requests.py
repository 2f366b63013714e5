"""Requests to the small servers in pods: every client may send anything."""

from __future__ import annotations

import asyncio

import pytest

from protocol.runtime.serving.http_requests import LARGEST_BODY, NotHttpError, RequestHead, read_head, read_request


def stream(raw: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(raw)
    reader.feed_eof()
    return reader


async def read(raw: bytes) -> tuple[str, str, bytes] | None:
    return await read_request(stream(raw))


async def test_request_with_a_body_is_read() -> None:
    assert await read(b"PUT /cpu HTTP/1.1\r\nContent-Length: 3\r\n\r\n250") == ("PUT", "/cpu", b"250")


async def test_next_request_of_a_connection_is_read() -> None:
    reader = stream(b"PUT /cpu HTTP/1.1\r\nContent-Length: 3\r\n\r\n250GET /cpu HTTP/1.0\r\n\r\n")
    requests = [await read_request(reader) for _ in range(3)]
    assert requests == [("PUT", "/cpu", b"250"), ("GET", "/cpu", b""), None]


@pytest.mark.parametrize("length", [b"\xb2", b"-1", b"4097", b"9" * 5000, b"0x10"])
async def test_invalid_content_length_is_rejected(length: bytes) -> None:
    assert await read(b"PUT /cpu HTTP/1.1\r\nContent-Length: " + length + b"\r\n\r\n250") is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"PUT /cpu",
        b"hello\r\n\r\n",
        b"PUT /cpu HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n250\r\n0\r\n\r\n",
        b"GET /cpu HTTP/1.1\r\nX: " + b"x" * 64 * 1024 + b"\r\n\r\n",
    ],
    ids=["nothing", "cut", "no HTTP", "chunked", "long head"],
)
async def test_what_is_not_understood_is_no_request(raw: bytes) -> None:
    assert await read(raw) is None


async def test_short_body_is_a_cut_stream() -> None:
    with pytest.raises(asyncio.IncompleteReadError):
        await read(b"PUT /cpu HTTP/1.1\r\nContent-Length: %d\r\n\r\n250" % LARGEST_BODY)


async def test_head_has_its_headers() -> None:
    """In lower case; of a repeated one the first counts."""
    head = await read_head(stream(b"GET /a?b HTTP/1.1\r\nAuthorization: Bearer \xe4 \r\nauthorization: x\r\n\r\n"))
    assert head == RequestHead("GET", "/a?b", {"authorization": "Bearer \u00e4", "": ""})
    with pytest.raises(NotHttpError):
        await read_head(stream(b"hello\r\n\r\n"))
