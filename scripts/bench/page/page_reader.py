"""A page without a browser: signs in by the one-time link and reads the stream of events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Final, Self

import httpx2 as httpx
import msgspec

from scheduler_plugin.dashboard.core.frames import COLUMNS, VM
from scheduler_plugin.dashboard.core.rows import Pair
from scripts.bench.load_client import BenchError

_KEY: Final = COLUMNS[VM].index("key")
_PERMIT: Final = COLUMNS[VM].index("permit")


class _Frame(msgspec.Struct):
    """The data of an event, as far as it is looked at."""

    rows: dict[str, list[list[object]]] = {}


_FRAME: Final = msgspec.json.Decoder(_Frame)


class PageReader:
    """One open page. ``shown`` has each VM's permits with the moment at which this page was told first."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.shown: dict[str, list[tuple[float, Pair]]] = {}
        self.bytes = 0
        self.frames = 0

    @classmethod
    async def signed_in(cls, http: httpx.AsyncClient, secret: str) -> Self:
        """A page that was let in. Raises ``BenchError``."""
        answer = await http.post("/api/session", json={"token": secret})
        if not answer.is_success:
            raise BenchError(f"the page does not let us in: {answer.status_code} {answer.text[:200]}")
        return cls(http)

    async def read(self, opened: Callable[[], None]) -> None:
        """Reads until cancelled; ``opened`` is called once the whole fleet was told."""
        # No time-out: a stream is silent for as long as nothing changes.
        async with self._http.stream("GET", "/api/events", timeout=None) as answer:
            if not answer.is_success:
                raise BenchError(f"no events: {answer.status_code}")
            async for data in _events(answer):
                self._take(data, time.monotonic())
                # The first event holds the whole fleet.
                if self.frames == 1:
                    opened()
        raise BenchError("the stream of events has ended")

    def _take(self, data: bytes, now: float) -> None:
        self.frames += 1
        self.bytes += len(data)
        for row in _FRAME.decode(data).rows.get(VM, ()):
            permit, history = msgspec.convert(row[_PERMIT], Pair), self.shown.setdefault(str(row[_KEY]), [])
            # A row is sent again when another column changes.
            if not history or history[-1][1] != permit:
                history.append((now, permit))


async def _events(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The data of each event."""
    text = bytearray()
    async for piece in answer.aiter_bytes():
        text += piece
        # A piece of the body may end in the middle of an event.
        while (end := text.find(b"\n\n")) >= 0:
            event = bytes(text[:end])
            del text[: end + 2]
            for line in event.split(b"\n"):
                if line.startswith(b"data: "):
                    yield line.removeprefix(b"data: ")
