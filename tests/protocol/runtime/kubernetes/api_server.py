"""A server on a real socket that says what a test wants, and one call to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from protocol.kubernetes.api import ApiCall
from protocol.runtime.credentials import Credentials
from protocol.units import Seconds

CALL: Final = ApiCall(
    "PATCH",
    "/api/v1/nodes/n1",
    Seconds(3),
    query={"a": "b c"},
    body={"x": 1},
    content_type="application/merge-patch+json",
)
DONE: Final = b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"kind":"Node"}'
LAST_CHUNK: Final = b"0\r\n\r\n"
END: Final = b""
"""In place of an answer: the server ends the connection."""


@dataclass(slots=True)
class Server:
    """Responds to each request with the next of ``answers``; counts connections and records requests."""

    answers: list[Sequence[bytes]]
    address: str = ""
    asked: list[bytes] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or b"0")
                self.asked.append(head + await reader.readexactly(length))
                for piece in self.answers.pop(0) if self.answers else [DONE]:
                    if piece == END:
                        return
                    writer.write(piece)
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(*answers: Sequence[bytes], token: str | None = None) -> AsyncIterator[tuple[Credentials, Server]]:
    served = Server(list(answers))
    listening = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    async with listening:
        served.address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield Credentials(f"http://{served.address}/cluster/", True, lambda: token), served


def answer(status: str, body: bytes = b"", head: bytes = b"") -> list[bytes]:
    return [b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n" % (status.encode(), head, len(body)) + body]


def chunks(*pieces: bytes) -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%s\r\n" % (len(piece), piece) if piece else END for piece in pieces)]
