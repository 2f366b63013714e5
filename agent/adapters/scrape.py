"""The guest's node_exporter over HTTP (S4.3).

Rules that hold here:

- Only what decides is asked for (``collect[]``). An exporter that refuses a selection (400) is asked for the next from
  then on: without the collector that some switch off, and then for everything.
- A page comes within the deadline and below ``LARGEST``, or not at all: a guest is not trusted.
"""

from __future__ import annotations

import asyncio
from typing import Final

import httpx

from agent.adapters.exposition import COLLECTORS, read_sample
from agent.adapters.http_errors import no_answer
from agent.core.events import Fault
from agent.core.guest import GuestSample
from agent.ports import PortError
from protocol.units import Seconds

LARGEST: Final = 1024 * 1024
"""A full page of node_exporter has about 100 KiB; one CPU more adds half a KiB."""

AS_IT_IS: Final = {"Accept-Encoding": "identity"}
"""Packing so small a page costs the guest more than sending it, and a packed one could unpack to anything."""


SELECTIONS: Final = (COLLECTORS, tuple(name for name in COLLECTORS if name != "vmstat"), ())
"""What is asked for, in this order, until the exporter takes it; nothing named is everything."""


class NodeExporter:
    """One guest's node_exporter at ``url``."""

    def __init__(self, client: httpx.AsyncClient, url: str, deadline: Seconds) -> None:
        self._client = client
        self._url = url
        self._deadline = deadline
        self._refused = 0

    async def scrape(self) -> GuestSample:
        """One look at the guest. Raises ``PortError``."""
        try:
            async with asyncio.timeout(self._deadline):
                return read_sample(await self._page())
        except (httpx.HTTPError, OSError) as error:
            raise no_answer(f"the guest's metrics at {self._url}", error, self._deadline) from None

    async def _page(self) -> bytes:
        collectors = SELECTIONS[self._refused]
        params = {"collect[]": collectors} if collectors else None
        async with self._client.stream("GET", self._url, params=params, headers=AS_IT_IS) as answer:
            if answer.status_code == httpx.codes.BAD_REQUEST and collectors:
                self._refused += 1
            if answer.status_code != httpx.codes.OK:
                raise PortError(Fault.GUEST, f"the guest's metrics at {self._url} answer {answer.status_code}")
            page = bytearray()
            async for chunk in answer.aiter_raw():
                page += chunk
                if len(page) > LARGEST:
                    raise PortError(Fault.GUEST, f"the guest's metrics have more than {LARGEST} bytes")
            return bytes(page)
