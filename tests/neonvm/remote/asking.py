"""Requests to runners that a function answers, as HTTP libraries write them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx2 as httpx

from deploy.neonvm.access.connections import AskRunner, RunnerHttpResponse, RunnerPlace

Answer = Callable[[httpx.Request], httpx.Response] | Callable[[httpx.Request], Awaitable[httpx.Response]]


def asking(answer: Answer) -> AskRunner:
    """Asks ``answer``; what it raises of HTTP is a connection that cannot be made."""
    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))  # type: ignore[arg-type]  # either kind

    async def ask(place: RunnerPlace, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        try:
            response = await http.request(method, f"http://{place.address}:{place.api}{path}", content=body)
        except httpx.HTTPError as error:
            raise OSError(str(error)) from error
        return RunnerHttpResponse(response.status_code, dict(response.headers), response.content)

    return ask
