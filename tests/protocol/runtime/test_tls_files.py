"""Certificates and authorities that change are in force for the next connection, as a whole, or not at all."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2 as httpx
import pytest
import uvloop
from prometheus_client import CollectorRegistry, generate_latest

from protocol.runtime.tls_files import (
    FollowedTls,
    TlsFilesError,
    TlsParts,
    client_tls,
    following,
    server_tls,
)
from protocol.runtime.tls_metrics import followed_by, watch_tls
from tests.scheduler_plugin.certificates import files, pair


def shown(folder: Path, name: str) -> None:
    """The server shows the certificate ``name``, as the kubelet puts new files in the place of old ones."""
    certificate, key = pair(name)
    made = folder / f"..{name}"
    made.mkdir(exist_ok=True)
    for file, content in (("tls.crt", certificate), ("tls.key", key)):
        (made / file).write_bytes(content)
    link = folder / "..new"
    link.symlink_to(made.name)
    link.rename(folder / "..data")
    for file in ("tls.crt", "tls.key"):
        if not (folder / file).is_symlink():
            (folder / file).symlink_to(Path("..data") / file)


def trusted(folder: Path, *names: str) -> Path:
    path = folder / "ca.crt"
    path.write_bytes(b"".join(pair(name)[0] for name in names))
    return path


@asynccontextmanager
async def serving(tls: FollowedTls[ssl.SSLContext]) -> AsyncIterator[int]:
    """A TLS server with the certificates of ``tls``, which echoes lines."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    context = following(tls, ssl.PROTOCOL_TLS_SERVER)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def echoed(port: int, tls: FollowedTls[ssl.SSLContext]) -> bool:
    """True if a new connection is made and carries something."""
    context = following(tls, ssl.PROTOCOL_TLS_CLIENT)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except ssl.SSLError:
        return False
    writer.write(b"x\n")
    try:
        return await reader.readline() == b"x\n"
    except OSError:
        return False
    finally:
        writer.close()


async def rotation(tmp_path: Path) -> None:
    shown(tmp_path, "first")
    server = server_tls("server", tmp_path / "tls.crt", tmp_path / "tls.key")
    client = client_tls("client", trusted(tmp_path, "first"))
    async with serving(server) as port:
        old = following(client, ssl.PROTOCOL_TLS_CLIENT)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=old)
        shown(tmp_path, "second")
        assert not await echoed(port, client)
        trusted(tmp_path, "first", "second")
        assert await echoed(port, client)
        trusted(tmp_path, "second")
        shown(tmp_path, "first")
        assert not await echoed(port, client)
        writer.write(b"still here\n")
        assert await reader.readline() == b"still here\n"
        writer.close()
    assert (server.reloads, server.refusals, client.reloads, client.refusals) == (2, 0, 2, 0)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_new_connections_use_new_certificates(tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(rotation(tmp_path))


async def test_mismatched_key_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = files(tmp_path, "server")
    server = server_tls("server", certificate, key)
    client = client_tls("client", trusted(tmp_path, "server"))
    async with serving(server) as port:
        assert await echoed(port, client)
        key.write_bytes(pair("other")[1])
        for _ in range(3):
            assert await echoed(port, client)
        certificate.unlink()
        assert await echoed(port, client)
    assert (server.reloads, server.refusals) == (0, 2)
    reasons = [vars(each)["reason"] for each in caplog.records if each.name == "autoscale.tls"]
    assert reasons == [
        f"{certificate}, {key}: KEY_VALUES_MISMATCH",
        f"{certificate}, {key}: No such file or directory",
    ]
    assert "PRIVATE" not in caplog.text


async def test_untrusted_client_is_not_readmitted(tmp_path: Path) -> None:
    shown(tmp_path, "server")
    authority = trusted(tmp_path, "one", "two")
    server = server_tls("server", tmp_path / "tls.crt", tmp_path / "tls.key", authority)
    (tmp_path / "server.crt").write_bytes(pair("server")[0])
    clients = {}
    for name in ("one", "two"):
        certificate, key = files(tmp_path, name)
        parts = TlsParts(certificate, key, tmp_path / "server.crt")
        clients[name] = FollowedTls(name, parts, client_of)
    async with serving(server) as port:
        assert [await echoed(port, each) for each in clients.values()] == [True, True]
        trusted(tmp_path, "two")
        assert [await echoed(port, each) for each in clients.values()] == [False, True]


def client_of(parts: TlsParts) -> ssl.SSLContext:
    """One client for all connections, so that it resumes its TLS session where it can."""
    assert parts.certificate is not None
    context = ssl.create_default_context(cafile=str(parts.authority))
    context.load_cert_chain(parts.certificate, parts.key)
    return context


async def test_missing_authority_is_awaited(tmp_path: Path) -> None:
    shown(tmp_path, "server")
    client = client_tls("client", tmp_path / "ca.crt")
    context = following(client, ssl.PROTOCOL_TLS_CLIENT)
    async with serving(server_tls("server", tmp_path / "tls.crt", tmp_path / "tls.key")) as port:
        async with httpx.AsyncClient(verify=context, trust_env=False) as http:
            with pytest.raises(httpx.ConnectError, match=r"client: .*ca\.crt: No such file"):
                await http.get(f"https://127.0.0.1:{port}/")
        trusted(tmp_path, "server")
        assert await echoed(port, client)


def test_what_a_process_shows_and_trusts_is_measured(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    shown(tmp_path, "server")
    server = server_tls("agents", tmp_path / "tls.crt", tmp_path / "tls.key", trusted(tmp_path, "one", "two"))
    missing = client_tls("kubernetes-api", tmp_path / "nothing")
    registry = CollectorRegistry()
    valid = server.validities()["certificate"]
    context = following(missing, ssl.PROTOCOL_TLS_CLIENT)
    watch_tls(registry, [server, *followed_by(context), *followed_by(True)])
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert float(lines[0].split()[1]) == valid.end
    assert [line for line in lines[1:] if 'part="authority"' not in line] == [
        'autoscale_certificate_lifetime_seconds{certificate="agents",part="certificate"} 90000.0',
        'autoscale_certificate_reloads_total{certificate="agents",outcome="accepted"} 0.0',
        'autoscale_certificate_reloads_total{certificate="agents",outcome="refused"} 0.0',
        'autoscale_certificate_reloads_total{certificate="kubernetes-api",outcome="accepted"} 0.0',
        'autoscale_certificate_reloads_total{certificate="kubernetes-api",outcome="refused"} 1.0',
    ]
    with pytest.raises(TlsFilesError, match=r"kubernetes-api: .*nothing: No such file"):
        missing.value()
