"""A port-forward leads to a pod's loopback: a server that speaks the channels as a kubelet's runtime does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from deploy.kube import port_forward
from deploy.kube.client import ApiClient
from deploy.kube.port_forward import PortForward
from protocol.kubernetes.api import ApiRefusedError, ApiUnknownError
from protocol.kubernetes.refusals import RefusalKind
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.http_api import HttpApi
from tests.agent.adapters.answering import unreachable

POD = ObjectName("kube-system", "scheduler-0")
FORBIDDEN = b'{"kind":"Status","reason":"Forbidden","message":"cannot create pods/portforward","code":403}'
PORT = (10297).to_bytes(2, "little")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"


@dataclass
class Server:
    """An API server; ``says`` are the messages after the request."""

    says: list[bytes] = field(default_factory=list)
    refuses: int = 0
    asked: list[str] = field(default_factory=list)
    users: list[str | None] = field(default_factory=list)

    async def forward(self, connection: ServerConnection) -> None:
        for channel in (0, 1):
            await connection.send(bytes([channel]) + PORT)
        message = await connection.recv(decode=False)
        self.asked.append(message[1:].split(b"\r\n")[0].decode())
        for each in self.says:
            await connection.send(each)

    def before(self, connection: ServerConnection, request: Request) -> Response | None:
        self.asked.append(f"{request.path} {request.headers.get('Authorization')}")
        self.users.append(request.headers.get("Impersonate-User"))
        return Response(403, "Forbidden", Headers(), FORBIDDEN) if self.refuses else None


@asynccontextmanager
async def client(server: Server, token: Callable[[], str | None] = lambda: "t") -> AsyncIterator[ApiClient]:
    protocols = [Subprotocol("v4.channel.k8s.io")]
    async with serve(server.forward, "127.0.0.1", 0, subprotocols=protocols, process_request=server.before) as served:
        port = next(iter(served.sockets)).getsockname()[1]
        yield ApiClient(HttpApi(unreachable(), lambda: None), PortForward(f"http://127.0.0.1:{port}", True, token))


async def test_pod_is_asked_through_the_forward() -> None:
    server = Server([b"\0" + OK[:9], b"\0" + OK[9:] + b"{", b"\0}"])
    async with client(server) as api:
        assert await api.pod_get(POD, 10297, "/nodes") == b"{}"
    path = "/api/v1/namespaces/kube-system/pods/scheduler-0/portforward?ports=10297"
    assert server.asked == [f"{path} Bearer t", "GET /nodes HTTP/1.1"]


@pytest.mark.parametrize(
    "said",
    [
        [b"HTTP/1.0 200 OK\r\n\r\n{", b"}"],
        [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"],
    ],
)
async def test_answer_is_read_in_every_framing(said: list[bytes]) -> None:
    async with client(Server([b"\0" + piece for piece in said])) as api:
        assert await api.pod_get(POD, 10297, "/nodes") == b"{}"


class Tunnel:
    """An HTTP proxy."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head.splitlines()[0])
        to, out = await asyncio.open_connection(*head.split()[1].rsplit(":", 1))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pumped(reader, out), _pumped(to, writer))


async def _pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(4096):
        writer.write(piece)
    writer.close()


async def test_forward_uses_proxy_and_impersonation() -> None:
    """With ``proxy-url`` or ``HTTPS_PROXY``, and ``--as``."""
    server, tunnel = Server([b"\0" + OK + b"{}"]), Tunnel()
    async with client(server) as direct, await asyncio.start_server(tunnel.lead, "127.0.0.1", 0) as proxy:
        assert direct._forward is not None
        url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        forward = replace(direct._forward, headers=[("Impersonate-User", "eve")], proxy=url)
        assert await ApiClient(HttpApi(unreachable(), lambda: None), forward).pod_get(POD, 10297, "/nodes") == b"{}"
    assert tunnel.asked == [f"CONNECT {forward.server.removeprefix('http://')} HTTP/1.1"]
    assert server.users == ["eve"]


async def test_person_without_a_token_comes_by_certificate() -> None:
    server = Server([b"\0" + OK + b"{}"])
    async with client(server, lambda: None) as api:
        assert await api.pod_get(POD, 10297, "/nodes") == b"{}"
    assert server.asked[0].endswith(" None")


async def test_missing_right_is_told() -> None:
    async with client(Server(refuses=403)) as api:
        with pytest.raises(ApiRefusedError, match="cannot create pods/portforward") as error:
            await api.pod_get(POD, 10297, "/nodes")
    assert error.value.kind is RefusalKind.FORBIDDEN


async def test_refusal_of_the_pod_is_told() -> None:
    async with client(Server([b"\0HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"])) as api:
        with pytest.raises(ApiRefusedError) as error:
            await api.pod_get(POD, 9101, "/explain/a/b")
    assert error.value.kind is RefusalKind.NOT_FOUND


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ([b"\1connection refused"], "connection refused"),
        ([b"\0no HTTP at all\r\n\r\n"], "port-forward to"),
        ([b"\0" + OK], "closed the connection"),
        ([b"\0" + OK[:9]], "closed the connection"),
        ([b"\0HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"], "closed the connection"),
        ([], "closed the connection"),
    ],
)
async def test_what_does_not_come_back_is_unavailable(says: list[bytes], why: str) -> None:
    async with client(Server(says)) as api:
        with pytest.raises(ApiUnknownError, match=why):
            await asyncio.wait_for(api.pod_get(POD, 9101, "/explain"), 5)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 600,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 600,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100,
    ],
    ids=["head", "body", "chunks"],
)
async def test_endless_response_is_given_up(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward, "MAX_RESPONSE", 500)
    pieces = [b"\0" + said[at : at + 100] for at in range(0, len(said), 100)]
    async with client(Server(pieces)) as api:
        with pytest.raises(ApiUnknownError, match="exceeds 500 bytes"):
            await asyncio.wait_for(api.pod_get(POD, 9101, "/explain"), 5)


async def test_long_error_of_a_forward_is_cut() -> None:
    async with client(Server([b"\1" + b"x" * 10_000])) as api:
        with pytest.raises(ApiUnknownError) as error:
            await api.pod_get(POD, 9101, "/explain")
    assert len(str(error.value)) < 2_000


async def test_server_that_is_away_is_unavailable() -> None:
    api = ApiClient(HttpApi(unreachable(), lambda: None), PortForward("http://127.0.0.1:1", True, lambda: None))
    with pytest.raises(ApiUnknownError):
        await api.pod_get(POD, 9101, "/explain")
