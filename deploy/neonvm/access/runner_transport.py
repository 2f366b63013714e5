"""An HTTP transport to runner pods: each request has a connection of its own, to the pod that its extension names."""

from __future__ import annotations

import asyncio
from typing import Final

import httpx2 as httpx

from deploy.neonvm.access.connections import RunnerConnections, RunnerPlace

PLACE: Final = "runner"
"""The extension of a request that has its ``RunnerPlace``."""

_MOST: Final = 256
"""Connections at a time: more than ``Looks`` has turns, so orders never wait for pods that do not answer."""


class RunnerTransport(httpx.AsyncBaseTransport):
    """Requests over ``connections``."""

    def __init__(self, connections: RunnerConnections) -> None:
        self._connections = connections
        self._places = asyncio.Semaphore(_MOST)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One request. Raises ``ConnectError`` if the pod cannot be reached, or is not the one that is meant."""
        place: RunnerPlace = request.extensions[PLACE]
        body = await request.aread()
        async with self._places:
            try:
                # No connection is reused: at the next request another pod may have the address.
                streams = await self._connections.api(place)
            except (OSError, TimeoutError) as error:
                # The text of a TimeoutError is empty.
                raise httpx.ConnectError(str(error) or "no answer in time", request=request) from error
            try:
                answer = await streams.ask(request.method, request.url.raw_path.decode(), body)
            except OSError as error:
                raise httpx.ReadError(str(error), request=request) from error
            finally:
                streams.close()
        if "content-encoding" in answer.headers:  # never requested, and httpx would unpack it to any size
            raise httpx.ReadError("the answer is packed", request=request)
        return httpx.Response(answer.status, headers=answer.headers, content=answer.body, request=request)
