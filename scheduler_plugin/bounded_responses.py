"""Responses of programs that anyone may run, such as those in a VM's pod: bounded in size and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import httpx2 as httpx

_AS_IT_IS: Final = {"Accept-Encoding": "identity"}
"""A compressed response could expand to any size."""


async def bounded_body(
    http: httpx.AsyncClient, url: str, headers: Mapping[str, str], longest: int, seconds: float
) -> bytes | None:
    """The body of a response to GET that arrives as a whole within ``seconds``; None if it exceeds ``longest`` bytes.

    Raises ``httpx.HTTPError``, also for an error status, ``httpx.InvalidURL`` and ``TimeoutError``.
    """
    # The client's timeouts are per read, and a peer could send single bytes.
    async with (
        asyncio.timeout(seconds),
        http.stream("GET", url, headers={**_AS_IT_IS, **headers}) as response,
    ):
        response.raise_for_status()
        body = bytearray()
        # Raw chunks, because decompressed ones could have any size.
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > longest:
                return None
        return bytes(body)
