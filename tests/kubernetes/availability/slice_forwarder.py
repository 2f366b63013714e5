"""A stand-in for kube-proxy: forwards loopback ports to the endpoint of an EndpointSlice.

``python -m tests.kubernetes.availability.slice_forwarder KUBECONFIG PORT=PATH_OF_SLICE...``
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import httpx2 as httpx

from protocol.kubernetes.endpoint_slices import ready_addresses
from protocol.runtime.clock import SystemClock
from protocol.runtime.credentials import Credentials, from_kubeconfig

_PAUSE: Final = 0.05


class Forwarder:
    """Follows slices by their paths; connections that are open stay where they are."""

    def __init__(self, found: Credentials, paths: Iterable[str]) -> None:
        self._found = found
        self._addresses = dict.fromkeys(paths, "")

    async def follow(self) -> None:
        """Poll the slices forever."""
        async with httpx.AsyncClient(base_url=self._found.server, verify=self._found.tls, trust_env=False) as http:
            while True:
                for path in self._addresses:
                    with suppress(httpx.HTTPError):
                        answer = await http.get(path, headers={"Authorization": f"Bearer {self._found.token()}"})
                        if answer.is_success:
                            found = ready_addresses(answer.json())
                            self._addresses[path] = found[0][0] if found else ""
                await asyncio.sleep(_PAUSE)

    async def serve(self, path: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        if address := self._addresses[path]:
            await joined(reader, writer, address, port)
        else:
            writer.transport.abort()


async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Passes a connection on to another place; resets it where nothing listens there."""
    try:
        far_reader, far_writer = await asyncio.open_connection(host, port)
    except OSError:
        writer.transport.abort()
        return
    await asyncio.gather(_pass(reader, far_writer), _pass(far_reader, writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()


async def main(kubeconfig: str, *ways: str) -> None:
    """Forwards forever."""
    leads = {int(port): path for port, _, path in (each.partition("=") for each in ways)}
    forwarder = Forwarder(from_kubeconfig(Path(kubeconfig), SystemClock()), leads.values())
    for port, path in leads.items():
        await asyncio.start_server(partial(forwarder.serve, path, port), "127.0.0.1", port)
    await forwarder.follow()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
