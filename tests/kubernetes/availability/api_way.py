"""A replica's way to the API server: bytes are passed on.

While it is stopped (SIGSTOP) nothing gets through and nothing is refused. When it goes on, what was sent arrives late.

``python -m tests.kubernetes.availability.api_way PORT HOST:PORT``
"""

from __future__ import annotations

import asyncio
import sys

from tests.kubernetes.availability.slice_forwarder import joined


async def main(port: str, there: str) -> None:
    """Passes on forever."""
    host, _, far = there.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await joined(reader, writer, host, int(far))

    async with await asyncio.start_server(serve, "127.0.0.1", int(port)) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
