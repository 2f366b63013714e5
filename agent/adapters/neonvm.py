"""Calls on one VirtualMachine object of NeonVM (S4.2)."""

from __future__ import annotations

from agent.adapters.database_object import DatabaseObject, trimmed
from agent.adapters.kubernetes_api import LightKubernetesApi
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.units import Bytes, Resources
from protocol.virtual_machine import VirtualMachine, parse_virtual_machine, use_patch


class NeonVm(DatabaseObject):
    """One VirtualMachine object."""

    def __init__(self, api: LightKubernetesApi, name: ObjectName) -> None:
        super().__init__(api, VIRTUAL_MACHINES, name)
        self._seen: VirtualMachine | None = None

    async def patch(self, use: Resources, slot_size: Bytes, base: int) -> VirtualMachine:
        """See ``VmApi``."""
        last = self._seen
        # If ``base`` is the last version seen, the patch can omit unchanged fields.
        body = use_patch(use, slot_size, last.use if last is not None and last.resource_version == str(base) else None)
        if base:
            # Optimistic locking: a late or repeated patch cannot undo later changes.
            body = {"metadata": {"resourceVersion": str(base)}, **body}
        return self._read(await self._api.patch(self._path, body))

    def _parsed(self, obj: JsonObject) -> VirtualMachine:
        self._seen = trimmed(parse_virtual_machine(obj))
        return self._seen
