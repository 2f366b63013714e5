"""The runner pods of a measurement, in a process of their own: they answer for their guests, or never.

``python -m scripts.bench.runner_pods FD`` serves on the inherited listening socket FD until SIGTERM. At addresses in
127.2.0.0/16 it accepts connections and never answers. ``GET /count`` answers how many requests there were.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
from typing import Final

import msgspec

from deploy.neonvm.ports import GuestPhase
from deploy.neonvm.runner.pod_runner import RunnerStatus

ANSWERING: Final = "127.1."
SILENT: Final = "127.2."
MEMORY: Final = 2**30
GUEST: Final = RunnerStatus(GuestPhase.RUNNING, 1000, MEMORY, "kvm", "KVM: a guest boots on /dev/kvm", given=False)
STATUS: Final = msgspec.json.encode(GUEST)

_count = itertools.count()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    silent = str(writer.get_extra_info("sockname")[0]).startswith(SILENT)
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if silent:
                # Until the client hangs up.
                await reader.read()
            body = str(next(_count)).encode() if head.startswith(b"GET /count") else _answer(head)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # it has hung up
    finally:
        writer.close()


def _answer(head: bytes) -> bytes:
    next(_count)
    return STATUS if head.startswith(b"GET /status") else b""


async def _run(descriptor: int) -> None:
    server = await asyncio.start_server(_serve, sock=socket.socket(fileno=descriptor))
    await server.serve_forever()


if __name__ == "__main__":
    # Nothing needs cleaning up, and open connections would delay an orderly end.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    asyncio.run(_run(int(sys.argv[1])))
