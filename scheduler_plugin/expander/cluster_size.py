"""The number of the cluster's nodes, which determines the preferred node size (S2.6)."""

from __future__ import annotations

import logging
from typing import Annotated, Final

import msgspec

from protocol.kubernetes.api import ApiCall, ApiError, RawApi
from protocol.kubernetes.resources import NODES
from protocol.runtime.clock import Clock
from protocol.units import Seconds
from scheduler_plugin.expander import texts

INTERVAL: Final = Seconds(60.0)
RETRY: Final = Seconds(10.0)
TIMEOUT: Final = Seconds(10.0)

_log = logging.getLogger(__name__)


class _ListMeta(msgspec.Struct, rename="camel"):
    remaining_item_count: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _NodeList(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw]


_DECODER: Final = msgspec.json.Decoder(_NodeList)


class ClusterSize:
    """The number of nodes: ``fixed`` from the settings, or else the last count."""

    def __init__(self, fixed: int | None, api: RawApi | None) -> None:
        """``api`` is the API of this cluster; None outside of a cluster, where nodes cannot be counted."""
        self.fixed = fixed
        self._counted: int | None = None
        self._api = api

    def nodes(self) -> int | None:
        """The number of nodes; None if unknown."""
        return self.fixed or self._counted

    async def follow(self, clock: Clock) -> None:
        """Count at intervals until cancelled; outside of a cluster return immediately."""
        if self._api is None:
            _log.info(texts.NOT_IN_CLUSTER)
            return
        while True:
            try:
                self._counted = await self._count(self._api)
            except (ApiError, ValueError, RecursionError) as error:
                # Keep the last count; without one no node size is preferred.
                details = {"nodes": self._counted, "reason": repr(error)}
                _log.warning(texts.NOT_COUNTED, extra=details)
                await clock.sleep(RETRY)
            else:
                await clock.sleep(INTERVAL)

    async def _count(self, api: RawApi) -> int:
        body, _ = await api.raw(ApiCall("GET", NODES.path(), TIMEOUT, query={"limit": "1"}))
        page = _DECODER.decode(body)
        # A page of one node with ``remainingItemCount`` is cheap in a cluster of any size.
        return len(page.items) + (page.metadata.remaining_item_count or 0)
