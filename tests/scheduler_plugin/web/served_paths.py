"""Hot paths that answer as a test says, on a real socket, and their clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from starlette.responses import PlainTextResponse

from protocol.runtime.serving.limits import Limits
from protocol.runtime.serving.listeners import Listener, serve
from scheduler_plugin.web.hot_paths import BodyError, Handler, HotPath, HotPaths, HotRequest, HotResponse
from tests.protocol.runtime.serving.test_listeners import free_address, listening

LONGEST = 1000


def post(path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Answers:
    """Hot paths with handlers that answer at once, late, early or not at all."""

    def __init__(self) -> None:
        self.address = free_address()
        self.go_on = asyncio.Event()
        self.asked: list[str] = []
        self.introduced: list[tuple[str | None, str]] = []
        self.was_asked, self.has_ended = asyncio.Event(), asyncio.Event()

    def app(self) -> HotPaths:
        handlers: dict[str, Handler] = {
            "/now": self.now,
            "/later": self.later,
            "/broken": self.broken,
            "/early": self.early,
            "/refusing": self.refusing,
        }
        paths = {path: HotPath(handler, LONGEST) for path, handler in handlers.items()}
        introduced = HotPath(self.now, LONGEST, precheck=self._introduce)
        return HotPaths(paths | {"/closed": HotPath(self.now, LONGEST, _only_a), "/introduced": introduced}, _Rest())

    def _introduce(self, authorization: str | None, address: str) -> HotResponse | None:
        self.introduced.append((authorization, address))
        return HotResponse(b"not b", 401) if authorization == "Bearer b" else None

    def refusing(self, _: HotRequest) -> HotResponse:
        return HotResponse(b"malformed", 400)

    def now(self, request: HotRequest) -> HotResponse:
        try:
            said = request.body().decode()
        except BodyError as error:
            return HotResponse(str(error).encode(), error.status)
        self.asked.append(said)
        authenticates = request.authorization != "Bearer stranger"
        body = f"{said} by {request.authorization}".encode()
        return HotResponse(body, headers={"x-path": "now"}, authenticates=authenticates)

    async def later(self, request: HotRequest) -> HotResponse:
        self.asked.append(request.body().decode())
        self.was_asked.set()
        await self.go_on.wait()
        self.has_ended.set()
        return HotResponse(b"waited")

    async def early(self, request: HotRequest) -> HotResponse:
        return HotResponse(b"knows batches" if request.knows_batches else b"knows none", rest=self._rest())

    async def _rest(self) -> None:
        await self.go_on.wait()
        self.has_ended.set()

    def broken(self, request: HotRequest) -> HotResponse | Awaitable[HotResponse]:
        if request.body() == b"now":
            raise RuntimeError("a fault of ours")
        return self._broken_later()

    async def _broken_later(self) -> HotResponse:
        raise RuntimeError("a fault of ours")


def _only_a(authorization: str | None) -> HotResponse | None:
    return None if authorization == "Bearer a" else HotResponse(b"who are you?", 401)


class _Rest:
    async def __call__(self, scope: object, receive: object, send: object) -> None:
        await PlainTextResponse("the rest")(scope, receive, send)  # type: ignore[arg-type]  # as it is given


class Client:
    """One connection to ``Answers``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> tuple[str, dict[str, str], str]:
        """Status, headers and body of the next answer."""
        async with asyncio.timeout(5):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await self.reader.readexactly(int(headers["content-length"]))
        return head[0].partition(" ")[2], headers, body.decode()

    async def said(self) -> tuple[str, str]:
        """Status and body of the next answer."""
        status, _, body = await self.answer()
        return status, body

    async def has_ended(self) -> bool:
        async with asyncio.timeout(5):
            return not await self.reader.read()


@asynccontextmanager
async def serving(limits: Limits | None = None) -> AsyncIterator[tuple[Answers, Client]]:
    found, stop = Answers(), asyncio.Event()
    task = asyncio.create_task(serve([Listener("hot", found.app(), found.address, limits=limits or Limits())], stop))
    try:
        await listening(found.address)
        client = Client(*await asyncio.open_connection(*found.address.split(":"), limit=2**26))
        yield found, client
        client.writer.close()
    finally:
        stop.set()
        await task
