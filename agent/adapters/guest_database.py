"""The status of the guest's database, from the daemon in the guest (S4.3).

It is fetched only on request, because it costs the guest a query and only VM groups need it.
"""

from __future__ import annotations

import asyncio
from typing import Final

import httpx2 as httpx
import msgspec

from agent import texts
from agent.adapters.http_errors import no_answer, reason_in
from agent.core.events import Fault
from agent.ports import PortError
from protocol.field_errors import field_message
from protocol.guest.database import DatabaseState
from protocol.units import Seconds

LARGEST: Final = 4096


class GuestDatabase:
    """The database of one guest, whose daemon serves ``url``."""

    def __init__(self, client: httpx.AsyncClient, url: str, deadline: Seconds) -> None:
        self._client = client
        self._url = url
        self._deadline = deadline

    async def fetch(self) -> DatabaseState:
        """Fetch the status. Raises ``PortError``."""
        try:
            async with asyncio.timeout(self._deadline):
                body = await self._body()
        except (httpx.HTTPError, OSError) as error:
            raise no_answer(texts.DATABASE.format(url=self._url), error, self._deadline) from None
        try:
            # The guest is not trusted: validate its response, which the caller encodes again.
            return msgspec.json.decode(body, type=DatabaseState)
        except (ValueError, RecursionError) as error:
            raise PortError(
                Fault.GUEST, texts.DATABASE_UNREADABLE.format(url=self._url, error=field_message(error))
            ) from None

    async def _body(self) -> bytes:
        async with self._client.stream("GET", self._url) as response:
            body = bytearray()
            # Raw, because a small compressed body could decompress to any size.
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > LARGEST:
                    raise PortError(Fault.GUEST, texts.DATABASE_SAYS_TOO_MUCH.format(most=LARGEST))
            # Check the status after reading the body, which contains the reason of an error.
            if response.status_code != httpx.codes.OK:
                raise PortError(Fault.GUEST, texts.DATABASE_SILENT.format(reason=reason_in(bytes(body)).strip()))
            return bytes(body)
