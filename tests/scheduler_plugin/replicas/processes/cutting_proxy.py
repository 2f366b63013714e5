"""A connection to the API server that can be cut: open connections are reset, new ones refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class CuttingProxy:
    """Forwards bytes to the ``far`` port of loopback."""

    far: int
    port: int = 0
    is_cut: bool = False
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self) -> None:
        """Nothing gets through any more, in either direction."""
        self.is_cut = True
        for writer in list(self._open):
            writer.transport.abort()

    def mend(self) -> None:
        """New connections get through again."""
        self.is_cut = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        if self.is_cut:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.far)
        self._open |= {writer, far_writer}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(reader, far_writer))
                tasks.create_task(self._pass(far_reader, writer))
        finally:
            self._open -= {writer, far_writer}
            for each in (writer, far_writer):
                each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()
            writer.close()
        except OSError:
            writer.transport.abort()


@asynccontextmanager
async def cutting_proxy(far: int) -> AsyncIterator[CuttingProxy]:
    """A proxy that forwards everything."""
    proxy = CuttingProxy(far)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
