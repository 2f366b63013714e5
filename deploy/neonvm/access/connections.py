"""The controller's connections to runner pods: each goes to a program that has proven which pod it is.

A pod's address may have passed on to another pod. So the program there is first asked for its pod's token, which the
API server reviews, and from then on has to show the same key. It gets no other request before that.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from deploy.neonvm.access.held import HeldConnection
from deploy.neonvm.access.keys import Introduced, Introduction, fingerprint
from deploy.neonvm.network.sockets import connected, copy_stream, tcp_socket
from deploy.neonvm.texts import controller as texts

CONNECT_SECONDS: Final = 3.0
_MOST: Final = 256
"""Concurrent requests: more than ``PollLimiter`` allows, so orders never wait for unresponsive pods."""
_OPENING: Final = 64
"""Held connections that are opened at a time: a new leader opens one for each VM that sleeps, and a thousand handshakes
together would time out.
"""
_OPENING_AGAIN: Final = 16
"""The same for pods that could not be reached the last time: they must not delay the others."""
_MOST_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class RunnerHttpResponse:
    """Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


async def exchanged(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: bytes
) -> RunnerHttpResponse:
    """The answer to one request. Raises ``OSError``."""
    writer.write(_request(method, path, body))
    await writer.drain()
    return await _answer(reader, method, path)


def _request(method: str, path: str, body: bytes) -> bytes:
    # HTTP/1.0, so that no server sends its answer in chunks.
    head = f"{method} {path} HTTP/1.0\r\nHost: runner\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


async def _answer(reader: asyncio.StreamReader, method: str, path: str) -> RunnerHttpResponse:
    try:
        status, headers = _head((await reader.readuntil(b"\r\n\r\n")).decode("latin-1"))
        return RunnerHttpResponse(status, headers, await _body(reader, headers.get("content-length")))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise OSError(texts.ANSWER_UNREADABLE.format(method=method, path=path, error=error)) from error


def _head(text: str) -> tuple[int, dict[str, str]]:
    first, *lines = text.split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not (words[1].isascii() and words[1].isdigit()):
        raise ValueError("no HTTP")
    fields = (line.partition(":") for line in lines if line)
    return int(words[1]), {name.lower(): value.strip() for name, _, value in fields}


async def _body(reader: asyncio.StreamReader, length: str | None) -> bytes:
    """As long as the header says; without one, all until the other end hangs up."""
    if length is not None:
        # Checked before reading: the length is only a claim of the other end.
        if int(length) > _MOST_BYTES:
            raise ValueError(texts.ANSWER_TOO_LONG)
        return await reader.readexactly(int(length))
    body = b""
    while part := await reader.read(_MOST_BYTES):
        body += part
        if len(body) > _MOST_BYTES:
            raise ValueError(texts.ANSWER_TOO_LONG)
    return body


@dataclass(frozen=True, slots=True)
class RunnerPlace:
    """A runner pod: what it is called in messages, its uid and address, and its ports."""

    who: str
    uid: str
    address: str
    api: int
    monitor: int
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Showing:
    """The controller's certificate, and the authorities, in PEM, that runners trust."""

    context: ssl.SSLContext
    authorities: str


class ImpostorError(OSError):
    """Another program than the pod's runner answers at its address."""


@dataclass(slots=True)
class Streams:
    """One open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        """One request; the connection stays open. Raises ``OSError``."""
        return await exchanged(self.reader, self.writer, method, path, body)

    def close(self) -> None:
        """Hangs up."""
        self.writer.close()


class RunnerAccess(Protocol):
    """Requests to the APIs of pods: method, path and body. Both raise ``OSError``."""

    async def ask(self, place: RunnerPlace, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        """The answer, which comes soon."""

    async def hold(self, place: RunnerPlace, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        """The answer, for which any number of callers may wait for days."""


class RunnerConnections:
    """``showing`` is called for each connection; ``pod_of`` returns the uid of the pod that a token is bound to, empty
    if the API server does not accept it, and raises ``OSError``.
    """

    def __init__(self, showing: Callable[[], Showing], pod_of: Callable[[str], Awaitable[str]]) -> None:
        self._showing = showing
        self._pod_of = pod_of
        self._proven: dict[str, tuple[bytes, str]] = {}
        self._bridges: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(_MOST)
        self._opening = asyncio.Semaphore(_OPENING)
        self._opening_again = asyncio.Semaphore(_OPENING_AGAIN)
        self._unreached: set[str] = set()

    def forget(self, uid: str) -> None:
        """The pod has ended."""
        self._proven.pop(uid, None)
        self._unreached.discard(uid)

    async def ask(self, place: RunnerPlace, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        """One request to the runner's API. Raises ``OSError`` if the pod cannot be reached, or is not the one meant."""
        async with self._places:
            try:
                # No connection is reused: at the next request another pod may have the address.
                streams = await self.api(place)
            except TimeoutError as error:
                # Its own text is empty.
                raise OSError(texts.NO_ANSWER_IN_TIME) from error
            try:
                return await streams.ask(method, path, body)
            finally:
                streams.close()

    async def hold(self, place: RunnerPlace, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        """The same as ``ask`` for an answer that may take long: it takes no place of others, and little memory."""
        connection = await self._opened(place)
        reader = asyncio.StreamReader()
        feeding = asyncio.create_task(connection.feed(reader))
        try:
            await connection.send(_request(method, path, body))
            return await _answer(reader, method, path)
        finally:
            feeding.cancel()
            # The loop must not watch a socket that is closed.
            await asyncio.wait((feeding,))
            connection.close()

    async def _opened(self, place: RunnerPlace) -> HeldConnection:
        async with self._opening_again if place.uid in self._unreached else self._opening:
            try:
                connection = await self._held(place)
            except TimeoutError as error:
                self._unreached.add(place.uid)
                raise OSError(texts.NO_ANSWER_IN_TIME) from error
            except OSError:
                self._unreached.add(place.uid)
                raise
            self._unreached.discard(place.uid)
            return connection

    async def _held(self, place: RunnerPlace) -> HeldConnection:
        showing = self._showing()
        # The runner proves itself at an ordinary connection, with the same key, and learns the present authorities.
        if self._proven.get(place.uid, (b"", ""))[1] != showing.authorities:
            (await self.api(place)).close()
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await HeldConnection.opened(place.address, place.api, showing.context)
        if connection.fingerprint != self._proven.get(place.uid, (b"", ""))[0]:
            connection.close()
            raise _impostor(place)
        return connection

    async def api(self, place: RunnerPlace) -> Streams:
        """A connection to the runner's API. Raises ``OSError``."""
        if place.is_open:
            # Whether a pod is open depends on how it was made, never on its answer: an impostor could claim to be open.
            return await _connected(place.address, place.api, None)
        showing = self._showing()
        streams = await _connected(place.address, place.api, showing.context)
        try:
            await self._prove(place, streams, showing)
        except BaseException:
            streams.close()
            raise
        return streams

    async def monitor(self, place: RunnerPlace) -> socket.socket:
        """A connection to QEMU's monitor behind the pod's gate. Raises ``OSError``."""
        if place.is_open:
            return await connected(tcp_socket(), place.address, place.monitor)
        if place.uid not in self._proven:
            # QMP has no introduction, so the runner proves itself at its API first, with the same key.
            (await self.api(place)).close()
        streams = await _connected(place.address, place.monitor, self._showing().context)
        # Another program may have got the address since the API was asked.
        if _key(streams) != self._proven.get(place.uid, (b"", ""))[0]:
            streams.close()
            raise _impostor(place)
        return self._bridged(streams)

    async def _prove(self, place: RunnerPlace, streams: Streams, showing: Showing) -> None:
        key, proven = _key(streams), self._proven.get(place.uid)
        if proven == (key, showing.authorities):
            return
        # A runner keeps its key for life.
        if proven is not None and proven[0] != key:
            raise _impostor(place)
        # The introduction also tells the pod which authorities to trust, so they can change while it runs.
        body = msgspec.json.encode(Introduction(showing.authorities))
        answer = await streams.ask("POST", "/introduce", body)
        try:
            token = msgspec.json.decode(answer.body, type=Introduced).token if answer.status == 200 else ""
        # The other end may be any program, even one that sends very deeply nested JSON.
        except (ValueError, RecursionError):
            token = ""
        if not token or await self._pod_of(token) != place.uid:
            raise _impostor(place)
        self._proven[place.uid] = key, showing.authorities

    def _bridged(self, streams: Streams) -> socket.socket:
        """A plain socket whose bytes go through ``streams``: QEMU's client takes no other connection."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        task = asyncio.create_task(_carry(streams, theirs))
        # The event loop holds tasks weakly.
        self._bridges.add(task)
        task.add_done_callback(self._bridges.discard)
        return ours


def _key(streams: Streams) -> bytes:
    return fingerprint(streams.writer.get_extra_info("ssl_object"))


def _impostor(place: RunnerPlace) -> ImpostorError:
    return ImpostorError(texts.IMPOSTOR.format(address=place.address))


async def _connected(address: str, port: int, context: ssl.SSLContext | None) -> Streams:
    async with asyncio.timeout(CONNECT_SECONDS):
        return Streams(*await asyncio.open_connection(address, port, ssl=context))


async def _carry(streams: Streams, theirs: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=theirs)
    ways = [asyncio.create_task(copy_stream(*way)) for way in ((reader, streams.writer), (streams.reader, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in ways:
            task.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        streams.close()
        writer.close()
