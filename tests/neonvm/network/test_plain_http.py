"""Requests to the small servers in pods: whoever may connect may send anything."""

from __future__ import annotations

import asyncio

import pytest

from deploy.neonvm.network.plain_http import read_request


async def read(raw: bytes) -> tuple[str, str, bytes] | None:
    reader = asyncio.StreamReader()
    reader.feed_data(raw)
    reader.feed_eof()
    return await read_request(reader)


async def test_request_with_a_body_is_read() -> None:
    assert await read(b"PUT /cpu HTTP/1.1\r\nContent-Length: 3\r\n\r\n250") == ("PUT", "/cpu", b"250")


@pytest.mark.parametrize("length", [b"\xb2", b"-1", b"4097", b"9" * 5000, b"0x10"])
async def test_length_that_is_no_small_number_is_no_request(length: bytes) -> None:
    assert await read(b"PUT /cpu HTTP/1.1\r\nContent-Length: " + length + b"\r\n\r\n250") is None
