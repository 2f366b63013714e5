"""Listeners start together, end together, and speak TLS with certificates that are renewed."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from deploy.neonvm.network.sockets import free_port
from protocol.runtime.serving.listeners import Listener, ListenError, serve, split_address
from protocol.runtime.tls_files import server_tls
from tests.plain_http import plain_client
from tests.scheduler_plugin.certificates import files


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def hello() -> FastAPI:
    async def answer(_: Request) -> Response:
        return Response("hello")

    app = FastAPI()
    app.add_route("/", answer)
    return app


@asynccontextmanager
async def serving(*listeners: Listener) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(serve(list(listeners), stop))
    try:
        for listener in listeners:
            await listening(listener.address)
        yield
    finally:
        stop.set()
        await task


async def listening(address: str) -> None:
    """Returns once connections are accepted there."""
    async with asyncio.timeout(5):
        while True:
            try:
                _, writer = await asyncio.open_connection(*address.split(":"))
            except OSError:
                await asyncio.sleep(0)
            else:
                writer.close()
                return


async def test_listeners_serve_until_stop() -> None:
    first, second = (Listener(name, hello(), free_address()) for name in ("first", "second"))
    async with serving(first, second), plain_client() as client:
        said = [(await client.get(f"http://{one.address}/")).text for one in (first, second)]
        assert said == ["hello", "hello"]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*first.address.split(":"))


async def test_an_address_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ExceptionGroup) as failed:
            await serve([Listener("agents", hello(), address)], asyncio.Event())
    assert failed.group_contains(ListenError, match=f"cannot listen on {address} \\(agents\\)")


async def test_client_certificate_required_and_own_renewed(tmp_path: Path) -> None:
    certificate, key = files(tmp_path, "server")
    client_certificate, client_key = files(tmp_path, "client")
    address = free_address()
    found = server_tls("extender", certificate, key, client_certificate)
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with serving(Listener("extender", hello(), address, found)):
        with pytest.raises(httpx.TransportError):
            async with httpx.AsyncClient(verify=trusting, trust_env=False) as client:
                await client.get(f"https://{address}/")
        trusting.load_cert_chain(client_certificate, client_key)
        assert await said(address, trusting) == "hello"
        renewed, renewed_key = files(tmp_path, "renewed")
        renewed.rename(certificate)
        renewed_key.rename(key)
        newly_trusting = ssl.create_default_context(cafile=str(certificate))
        newly_trusting.load_cert_chain(client_certificate, client_key)
        assert await said(address, newly_trusting) == "hello"
        key.unlink()
        assert await said(address, newly_trusting) == "hello"
        assert (found.reloads, found.refusals) == (1, 1)


async def test_other_client_names_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = files(tmp_path, "server")
    authority, _ = files(tmp_path, "clients")
    address = free_address()
    found = server_tls("extender", certificate, key, authority)
    statuses = []
    async with serving(Listener("extender", hello(), address, found, client="autoscaling-kube-scheduler")):
        for name in ("autoscaling-kube-scheduler", "billing", "billing", "sales"):
            trusting = ssl.create_default_context(cafile=str(certificate))
            trusting.load_cert_chain(*files(tmp_path, name, authority="clients"))
            async with httpx.AsyncClient(verify=trusting, trust_env=False) as client:
                statuses.append((await client.get(f"https://{address}/")).status_code)
    assert statuses == [200, 403, 403, 403]
    rejected = [record for record in caplog.records if record.message.startswith("rejected client certificate")]
    assert [vars(record)["client"] for record in rejected] == ["billing", "sales"]


async def said(address: str, trust: ssl.SSLContext) -> str:
    async with httpx.AsyncClient(verify=trust, trust_env=False) as client:
        return (await client.get(f"https://{address}/")).text


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:80", ("::1", 80)), (":80", ("0.0.0.0", 80))],
)
def test_addresses(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize("address", ["nowhere", "host:port", "host:99999", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ListenError, match="expected HOST:PORT"):
        split_address(address)
