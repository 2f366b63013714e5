"""NeonVM's VirtualMachine object as the agent's VM: calls on one object (S4.2)."""

from __future__ import annotations

from agent.adapters.database_object import DatabaseObject
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
        """Sets ``use`` if the object is still at version ``base`` (0: whatever it is). Raises as ``VmApi`` says."""
        last = self._seen
        # A patch that names the version seen last leaves out what stays as it was there. Of any other version it
        # cannot be known what stays.
        body = use_patch(use, slot_size, last.use if last is not None and last.resource_version == str(base) else None)
        if base:
            # Optimistic locking: a late or repeated patch cannot undo what came after it.
            body = {"metadata": {"resourceVersion": str(base)}, **body}
        return self._read(await self._api.merge_patch(self._path, body))

    def _parsed(self, found: JsonObject) -> VirtualMachine:
        self._seen = parse_virtual_machine(found)
        return self._seen
