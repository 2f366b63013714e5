"""How many nodes the cluster has, from the Kubernetes API: the preferred node size depends on it (S2.6).

Rules that hold here:

- One node is listed and the rest is taken from ``remainingItemCount``: the cost does not grow with the cluster.
- A count that cannot be had changes nothing: the last one stays, or none, and then no node size is preferred.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Final, Never

import httpx
import msgspec

from protocol.units import Seconds
from scheduler_plugin.clock import Clock

INTERVAL: Final = Seconds(60.0)
RETRY: Final = Seconds(10.0)

_log = logging.getLogger(__name__)


class _ListMeta(msgspec.Struct, rename="camel"):
    remaining_item_count: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _NodeList(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw]


_DECODER: Final = msgspec.json.Decoder(_NodeList)


class ClusterSize:
    """The number of nodes as last counted; None while it is not known."""

    def __init__(self, client: httpx.AsyncClient, token_file: Path) -> None:
        self.nodes: int | None = None
        self._client = client
        self._token_file = token_file

    async def follow(self, clock: Clock) -> Never:
        """Counts for ever."""
        while True:
            try:
                self.nodes = await self._count()
            except (httpx.HTTPError, OSError, msgspec.MsgspecError) as error:
                _log.warning("cannot count the cluster's nodes, keeping %s: %r", self.nodes, error)
                await clock.sleep(RETRY)
            else:
                await clock.sleep(INTERVAL)

    async def _count(self) -> int:
        token = (await asyncio.to_thread(self._token_file.read_text)).strip()
        answer = await self._client.get("/api/v1/nodes?limit=1", headers={"Authorization": f"Bearer {token}"})
        answer.raise_for_status()
        page = _DECODER.decode(answer.content)
        return len(page.items) + (page.metadata.remaining_item_count or 0)
