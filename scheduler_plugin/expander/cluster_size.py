"""How many nodes the cluster has, from the Kubernetes API: the preferred node size depends on it (S2.6).

Rules that hold here:

- One node is listed and the rest is taken from ``remainingItemCount``: the cost does not grow with the cluster.
- A count that cannot be had changes nothing: the last one stays, or none, and then no node size is preferred.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Final

import httpx
import msgspec

from protocol.runtime.clock import Clock
from protocol.units import Seconds

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
    """The number of nodes: ``fixed`` by the settings, or as last counted."""

    def __init__(self, fixed: int | None, client: httpx.AsyncClient | None, token_file: Path) -> None:
        """``client`` speaks to the API of the cluster; None outside of one, where nothing can be counted."""
        self.fixed = fixed
        self._counted: int | None = None
        self._client = client
        self._token_file = token_file

    def nodes(self) -> int | None:
        """The number of nodes, None while it is not known."""
        return self.fixed or self._counted

    async def follow(self, clock: Clock) -> None:
        """Counts for ever, or returns at once where there is no cluster to ask."""
        if self._client is None:
            _log.info("not in a cluster: its nodes are not counted")
            return
        while True:
            try:
                self._counted = await self._count(self._client)
            except (httpx.HTTPError, OSError, ValueError, RecursionError) as error:
                _log.warning("cannot count the cluster's nodes, keeping %s: %r", self._counted, error)
                await clock.sleep(RETRY)
            else:
                await clock.sleep(INTERVAL)

    async def _count(self, client: httpx.AsyncClient) -> int:
        token = (await asyncio.to_thread(self._token_file.read_text)).strip()
        answer = await client.get("/api/v1/nodes?limit=1", headers={"Authorization": f"Bearer {token}"})
        answer.raise_for_status()
        page = _DECODER.decode(answer.content)
        return len(page.items) + (page.metadata.remaining_item_count or 0)
