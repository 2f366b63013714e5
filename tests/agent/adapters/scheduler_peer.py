"""A scheduler on a real socket that responds as a test specifies: current, with batches, or an older one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from protocol.wire.wire_batches import OFFER

UNIT: Final = {"vCPUs": "250m", "mem": 1}
Said = tuple[int, Any]


def permitted(request: Any) -> Any:
    """Grant the whole request."""
    return {"permit": request["resources"], "migrate": None, "computeUnit": UNIT}


def entries(requests: Any) -> Said:
    """A permit for each request of a batch."""
    return 200, [{"status": 200, **permitted(each)} for each in requests]


@dataclass
class Peer:
    """``offers`` is what it says when it is offered batches (None: it is older and does not know them).

    It hangs up on the first ``refuses`` connections. ``single`` is its answer to a single request (None: a permit), and
    a 503 says to retry after ``retry`` seconds, on another connection if that is 0. ``asked`` has the path of each
    message and the pods that it speaks of, ``offered`` how often it was offered batches.
    """

    offers: str | None = "128"
    batch: Callable[[Any], Said] = entries
    single: Said | None = None
    retry: int = 0
    silent: bool = False
    refuses: int = 0
    url: str = ""
    asked: list[tuple[str, list[str]]] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    offered: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        if len(self.writers) <= self.refuses:
            writer.close()
            return
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = dict(each.lower().split(": ", 1) for each in head.split("\r\n")[1:] if each)
                found = json.loads(await reader.readexactly(int(lines["content-length"])))
                self.heard.set()
                if not self.silent:
                    writer.write(self._answer(head.split()[1], found, knows=OFFER in lines))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def hang_up(self) -> None:
        """All connections end."""
        for each in self.writers:
            each.transport.abort()

    @property
    def sizes(self) -> list[int]:
        """Number of VMs in each message."""
        return [len(pods) for _, pods in self.asked]

    def _answer(self, path: str, found: Any, *, knows: bool) -> bytes:
        self.offered += knows
        several = found if isinstance(found, list) else [found]
        self.asked.append((path, [each["pod"]["name"] for each in several]))
        if path != "/":
            return self._said(*self.batch(found))
        offer = f"{OFFER}: {self.offers}\r\n" if knows and self.offers else ""
        return self._said(*(self.single or (200, permitted(found))), offer)

    def _said(self, status: int, found: Any, headers: str = "") -> bytes:
        body = json.dumps(found).encode()
        if status == 503:
            headers += f"Retry-After: {self.retry}\r\n" + ("" if self.retry else "Connection: close\r\n")
        return f"HTTP/1.1 {status} Said\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def scheduler_peer(peer: Peer) -> AsyncIterator[Peer]:
    """The peer, listening at its ``url``."""
    async with await asyncio.start_server(peer.serve, "127.0.0.1", 0) as listening:
        peer.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield peer
        peer.hang_up()
