"""Certificates of TLS ports, fetched from real ones on this machine."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from scripts.autoscale.check.facts import Observed, Served, Unavailable
from scripts.autoscale.check.gathering.ports import review_error, served_certificate
from tests.scheduler_plugin.certificates import files

ANSWER = '{"response": {"uid": "autoscale-check", "allowed": true}}'


@asynccontextmanager
async def port(context: ssl.SSLContext | None, answer: str = "") -> AsyncIterator[int]:
    """Answers every request with 200 and ``answer``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await (reader.readuntil(b"\r\n\r\n") if context else reader.read(1))  # a client's TLS has no lines
            writer.write(
                f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\nConnection: close\r\n\r\n{answer}".encode()
            )
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # only the certificate was looked at
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[ssl.SSLContext, bytes]:
    """A listener's side of a certificate for 127.0.0.1, and the certificate."""
    path, key = files(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    return context, path.read_bytes()


async def test_port_shows_certificate_and_its_ca(certificate: tuple[ssl.SSLContext, bytes], tmp_path: Path) -> None:
    context, own = certificate
    other = files(tmp_path, "other")[0].read_bytes()
    async with port(context) as number:
        found = await served_certificate(
            number, {"right": (own, "127.0.0.1"), "wrong": (other, "127.0.0.1"), "none": (b"", "127.0.0.1")}
        )
    assert isinstance(found, Observed)
    assert isinstance(found.value, Served)
    assert ssl.PEM_cert_to_DER_cert(found.value.certificate.decode()) == ssl.PEM_cert_to_DER_cert(own.decode())
    assert found.value.distrusted.keys() == {"wrong", "none"}
    assert "self-signed" in found.value.distrusted["wrong"]


async def test_lost_port_forward_leaves_ca_unknown(
    certificate: tuple[ssl.SSLContext, bytes],
) -> None:
    context, own = certificate
    connections = list[None]()

    async def once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(None)
        try:
            if len(connections) == 1:
                await writer.start_tls(context)
        finally:
            writer.close()

    async with await asyncio.start_server(once, "127.0.0.1", 0) as server:
        found = await served_certificate(server.sockets[0].getsockname()[1], {"right": (own, "127.0.0.1")})
    assert isinstance(found, Unavailable), found


async def test_port_without_tls_is_reported() -> None:
    async with port(None) as number:
        found = await served_certificate(number, {})
    assert isinstance(found, Unavailable)
    assert found.why.startswith("TLS handshake failed")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ANSWER, lambda why: not why),
        ('{"response": {"uid": "other"}}', lambda why: "wrong uid" in why),
        ("<html>", lambda why: "malformed" in why),
    ],
)
async def test_a_webhook_is_asked_for_a_review(
    answer: str, expected: Callable[[str], bool], certificate: tuple[ssl.SSLContext, bytes]
) -> None:
    async with port(certificate[0], answer) as number:
        why = await review_error(number, "/mutate")
    assert expected(why), why


async def test_a_webhook_that_is_away_is_a_reason() -> None:
    assert await review_error(1, "/mutate") == "All connection attempts failed"
