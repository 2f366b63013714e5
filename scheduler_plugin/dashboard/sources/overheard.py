"""Sources that pass each answer of an agent on to the page as well, whichever part of the program asked for it."""

from __future__ import annotations

from collections.abc import Callable

from protocol.kubernetes.objects import Json, JsonObject, name_of
from protocol.messages import ObjectName
from scheduler_plugin.dashboard.sources.http_sources import Sources

Hears = Callable[[ObjectName, Json | None], None]
"""Receiver of the answer of a VM's agent; None if it did not answer."""


class Overheard:
    """See ``Sources``. Every answer of an agent goes to ``hears``, too."""

    def __init__(self, sources: Sources, hears: Hears) -> None:
        self._sources, self._hears = sources, hears

    async def of_scheduler(self, path: str) -> Json | None:
        """See ``Sources``."""
        return await self._sources.of_scheduler(path)

    async def of_groups(self, path: str) -> Json | None:
        """See ``Sources``."""
        return await self._sources.of_groups(path)

    async def of_vm(self, vm: JsonObject) -> Json | None:
        """See ``Sources``."""
        account = await self._sources.of_vm(vm)
        self._hears(name_of(vm), account)
        return account
