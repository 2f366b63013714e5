"""The controller's connections to runner pods, which verify the pod's identity first.

Another pod may have been assigned a pod's IP. So the controller first requests the pod's token, which the API server
reviews, and then pins the TLS key of that connection. Nothing else is sent before that.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from deploy.neonvm.access.keys import Introduced, Introduction
from deploy.neonvm.access.pod_connection import PodConnection
from deploy.neonvm.network.sockets import until_one_ends
from deploy.neonvm.streams import copy_stream
from deploy.neonvm.texts import controller as texts
from protocol.runtime.serving.fair_slots import FairSlots

CONNECT_SECONDS: Final = 3.0
INTRODUCTION_SECONDS: Final = 5.0
"""Timeout of a pod's introduction. A malicious pod may never answer, and a long poll lasts for up to an hour."""
_MAX_REQUESTS: Final = 256
"""Concurrent requests, and half of them for one namespace; more than ``PollLimiter`` allows, so orders never wait for
polls of unresponsive pods.
"""
_MAX_HANDSHAKES: Final = 64
"""Concurrent handshakes of long polls: a new leader opens one for each sleeping VM, and a thousand handshakes at once
would time out.
"""
_MAX_RETRIED_HANDSHAKES: Final = 32
"""The same for pods that were unreachable last time, so that they do not delay the others."""
_MAX_BODY: Final = 256 * 1024
"""Bytes of a response's body."""
_CHUNK: Final = 16 * 1024
"""Bytes relayed to or from a monitor at once."""


@dataclass(frozen=True, slots=True)
class RunnerHttpResponse:
    """A response of a runner; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def encode_request(method: str, path: str, body: bytes) -> bytes:
    """Encode a request."""
    # HTTP/1.0: no chunked responses.
    head = f"{method} {path} HTTP/1.0\r\nHost: runner\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


async def read_response(reader: asyncio.StreamReader, method: str, path: str) -> RunnerHttpResponse:
    """Read the response to a request. Raises ``OSError``."""
    try:
        status, headers = _head((await reader.readuntil(b"\r\n\r\n")).decode("latin-1"))
        return RunnerHttpResponse(status, headers, await _body(reader, headers.get("content-length")))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise OSError(texts.HTTP_INVALID.format(method=method, path=path, error=error)) from error


def _head(text: str) -> tuple[int, dict[str, str]]:
    first, *lines = text.split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not (words[1].isascii() and words[1].isdigit()):
        raise ValueError("no HTTP")
    fields = (line.partition(":") for line in lines if line)
    return int(words[1]), {name.lower(): value.strip() for name, _, value in fields}


async def _body(reader: asyncio.StreamReader, length: str | None) -> bytes:
    """The body: ``length`` bytes, or until the end of the stream."""
    if length is not None:
        if int(length) > _MAX_BODY:
            raise ValueError(texts.HTTP_TOO_LARGE)
        return await reader.readexactly(int(length))
    body = b""
    while part := await reader.read(_MAX_BODY):
        body += part
        if len(body) > _MAX_BODY:
            raise ValueError(texts.HTTP_TOO_LARGE)
    return body


@dataclass(frozen=True, slots=True)
class RunnerEndpoint:
    """A runner pod: its name (``NAMESPACE/NAME``), its uid, IP and ports. ``is_open``: its ports do not use TLS."""

    name: str
    uid: str
    address: str
    api: int
    monitor: int
    is_open: bool = False

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """The controller's client certificate, and the CAs (PEM) that runners must trust."""

    context: ssl.SSLContext
    authorities: str


class ImpostorError(OSError):
    """A program other than the pod's runner answers at its IP."""


async def ask(connection: PodConnection, method: str, path: str, body: bytes) -> RunnerHttpResponse:
    """Send one request; the connection stays open. Raises ``OSError``."""
    await connection.send(encode_request(method, path, body))
    return await read_response(connection.reader, method, path)


class RunnerConnections:
    """Connections to runner pods with mutual authentication.

    ``identity`` is called for each connection. ``pod_of`` returns the uid of the pod to which a token is bound, empty
    if the API server rejects the token; it raises ``OSError``. Orders are sent only while ``leads`` returns True.
    """

    def __init__(
        self,
        identity: Callable[[], ClientIdentity],
        pod_of: Callable[[str], Awaitable[str]],
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._identity = identity
        self._pod_of = pod_of
        self._leads = leads
        self._verified: dict[str, tuple[bytes, str]] = {}
        self._bridges: set[asyncio.Task[None]] = set()
        # Tenants may run their own runners, which take as long as they like.
        self._slots = FairSlots(_MAX_REQUESTS)
        self._handshakes = FairSlots(_MAX_HANDSHAKES)
        self._retried_handshakes = FairSlots(_MAX_RETRIED_HANDSHAKES)
        self._unreachable: set[str] = set()

    def forget(self, uid: str) -> None:
        """Drop the state of a deleted pod."""
        self._verified.pop(uid, None)
        self._unreachable.discard(uid)

    async def ask(self, runner: RunnerEndpoint, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        """Send a request to the runner's API. Raises ``OSError``: ``ImpostorError`` if another program answers."""
        async with self._slots.slot(runner.namespace):
            try:
                # Connections are not reused: another pod may have the IP at the next request.
                connection = await self.api(runner)
            except TimeoutError as error:
                raise OSError(texts.TIMED_OUT) from error
            return await self._exchange(connection, method, path, body)

    async def long_poll(self, runner: RunnerEndpoint, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        """Like ``ask``, for responses that may take days: any number may be pending, at little memory each."""
        return await self._exchange(await self._open_long_poll(runner), method, path, body)

    async def _exchange(self, connection: PodConnection, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        """Send the only request of ``connection``, and close it."""
        try:
            # After connecting, because the process may have been suspended meanwhile.
            if method != "GET":
                self._require_lease()
            response = await ask(connection, method, path, body)
        except BaseException:
            connection.reset()
            raise
        connection.close()
        return response

    async def _open_long_poll(self, runner: RunnerEndpoint) -> PodConnection:
        handshakes = self._retried_handshakes if runner.uid in self._unreachable else self._handshakes
        async with handshakes.slot(runner.namespace):
            try:
                connection = await self.api(runner)
            except TimeoutError as error:
                self._unreachable.add(runner.uid)
                raise OSError(texts.TIMED_OUT) from error
            except OSError:
                self._unreachable.add(runner.uid)
                raise
            self._unreachable.discard(runner.uid)
            return connection

    async def api(self, runner: RunnerEndpoint) -> PodConnection:
        """Connect to the runner's API. Raises ``OSError``, ``TimeoutError`` included."""
        if runner.is_open:
            return await _connect(runner.address, runner.api, None)
        identity = self._identity()
        connection = await _connect(runner.address, runner.api, identity.context)
        try:
            await self._verify(runner, connection, identity)
        except BaseException:
            connection.close()
            raise
        return connection

    async def monitor(self, runner: RunnerEndpoint) -> socket.socket:
        """Connect to QEMU's monitor through the pod's gate. Raises ``OSError``."""
        self._require_lease()
        if runner.is_open:
            return self._as_socket(await _connect(runner.address, runner.monitor, None))
        if runner.uid not in self._verified:
            # QMP has no introduction; the API uses the same key.
            (await self.api(runner)).close()
        connection = await _connect(runner.address, runner.monitor, self._identity().context)
        # The IP may belong to another pod by now.
        if connection.fingerprint != self._verified.get(runner.uid, (b"", ""))[0]:
            connection.close()
            raise _impostor(runner)
        return self._as_socket(connection)

    def _require_lease(self) -> None:
        if not self._leads():
            raise OSError(texts.NO_LEASE)

    async def _verify(self, runner: RunnerEndpoint, connection: PodConnection, identity: ClientIdentity) -> None:
        key, verified = connection.fingerprint, self._verified.get(runner.uid)
        if verified == (key, identity.authorities):
            return
        # A runner never changes its key.
        if verified is not None and verified[0] != key:
            raise _impostor(runner)
        # The introduction also sends the CAs to trust, which may change while the pod runs.
        body = msgspec.json.encode(Introduction(identity.authorities))
        async with asyncio.timeout(INTRODUCTION_SECONDS):
            answer = await ask(connection, "POST", "/introduce", body)
        try:
            token = msgspec.json.decode(answer.body, type=Introduced).token if answer.status == 200 else ""
        # The peer may be any program, and may send deeply nested JSON.
        except (ValueError, RecursionError):
            token = ""
        if not token or await self._pod_of(token) != runner.uid:
            raise _impostor(runner)
        self._verified[runner.uid] = key, identity.authorities

    def _as_socket(self, connection: PodConnection) -> socket.socket:
        """A plain socket relayed to ``connection``, for QEMU's QMP client."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        # The client decodes everything that has arrived at once.
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK)
        task = asyncio.create_task(_relay(connection, theirs))
        # The event loop keeps only weak references to tasks.
        self._bridges.add(task)
        task.add_done_callback(self._bridges.discard)
        return ours


def _impostor(runner: RunnerEndpoint) -> ImpostorError:
    return ImpostorError(texts.IMPOSTOR.format(address=runner.address))


async def _connect(address: str, port: int, context: ssl.SSLContext | None) -> PodConnection:
    async with asyncio.timeout(CONNECT_SECONDS):
        return await PodConnection.opened(address, port, context)


async def _relay(connection: PodConnection, theirs: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        await until_one_ends(_send_all(reader, connection), copy_stream(connection.reader, writer))
    finally:
        # The client waits for the response to each command: anything left belongs to a cancelled one.
        connection.reset()
        writer.close()


async def _send_all(reader: asyncio.StreamReader, connection: PodConnection) -> None:
    while part := await reader.read(_CHUNK):
        await connection.send(part)
