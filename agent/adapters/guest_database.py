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


async def database_status(client: httpx.AsyncClient, url: str, deadline: Seconds) -> DatabaseState:
    """Fetch the status from the daemon at ``url``. Raises ``PortError``."""
    try:
        async with asyncio.timeout(deadline):
            body = await _body(client, url)
    except (httpx.HTTPError, OSError) as error:
        raise no_answer(texts.DATABASE.format(url=url), error, deadline) from None
    try:
        # The guest is not trusted: validate its response, which the caller encodes again.
        return msgspec.json.decode(body, type=DatabaseState)
    except (ValueError, RecursionError) as error:
        raise PortError(Fault.GUEST, texts.DATABASE_UNREADABLE.format(url=url, error=field_message(error))) from None


async def _body(client: httpx.AsyncClient, url: str) -> bytes:
    async with client.stream("GET", url) as response:
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
