"""Requests to runners that a function answers, with the errors of HTTP libraries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx2 as httpx

from deploy.neonvm.access.connections import RunnerConnections, RunnerEndpoint, RunnerHttpResponse

Answer = Callable[[httpx.Request], httpx.Response] | Callable[[httpx.Request], Awaitable[httpx.Response]]


class Asking(RunnerConnections):
    """Calls ``answer``; its HTTP errors count as failed connections."""

    def __init__(self, answer: Answer) -> None:
        self._http = httpx.AsyncClient(transport=httpx.MockTransport(answer))  # type: ignore[arg-type]  # either kind

    async def ask(self, place: RunnerEndpoint, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        try:
            response = await self._http.request(method, f"http://{place.address}:{place.api}{path}", content=body)
        except httpx.HTTPError as error:
            raise OSError(str(error)) from error
        return RunnerHttpResponse(response.status_code, dict(response.headers), response.content)

    async def long_poll(self, place: RunnerEndpoint, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        return await self.ask(place, method, path, body)
