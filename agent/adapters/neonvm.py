"""NeonVM's VirtualMachine object as the agent's VM: three calls on one object (S4.2).

Rules that hold here:

- A patch names the version that it was decided on (optimistic locking), so that a late or doubled one cannot undo what
  came after it.
- An object that breaks its own rules is an error of the API, with the path of the field.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from agent.adapters.kubernetes_api import KubernetesApi
from agent.core.events import Fault
from agent.ports import GoneError, PortError
from protocol.messages import ObjectName
from protocol.names import VM_GROUP, VM_PLURAL, VM_VERSION
from protocol.units import Bytes, Resources
from protocol.virtual_machine import InvalidObjectError, VirtualMachine, parse_virtual_machine, use_patch


class NeonVm:
    """One VirtualMachine object."""

    def __init__(self, api: KubernetesApi, name: ObjectName) -> None:
        self._api = api
        self._name = name
        self._list = f"/apis/{VM_GROUP}/{VM_VERSION}/namespaces/{name.namespace}/{VM_PLURAL}"
        self._path = f"{self._list}/{name.name}"

    async def get(self) -> VirtualMachine:
        """The object now. Raises ``GoneError`` or ``PortError``."""
        return _read(await self._api.get(self._path))

    async def watch(self, version: str) -> AsyncIterator[VirtualMachine]:
        """The object after each change since ``version``; ends when the server ends it. Raises like ``get``."""
        selected = {"fieldSelector": f"metadata.name={self._name.name}", "resourceVersion": version}
        async for event in self._api.watch(self._list, selected):
            if event.type == "DELETED":
                raise GoneError(Fault.VM_API, f"VirtualMachine {self._name} was deleted")
            if event.type != "BOOKMARK":
                yield _read(event.found)

    async def patch(self, use: Resources, slot_size: Bytes, base: int) -> VirtualMachine:
        """Sets ``use`` if the object is still at version ``base`` (0: whatever it is). Raises as ``VmApi`` says."""
        body = use_patch(use, slot_size)
        if base:
            body = {"metadata": {"resourceVersion": str(base)}, **body}
        return _read(await self._api.merge_patch(self._path, body))


def _read(found: Mapping[str, object]) -> VirtualMachine:
    try:
        return parse_virtual_machine(found)
    except InvalidObjectError as error:
        raise PortError(Fault.VM_API, f"the VirtualMachine makes no sense: {error}") from None
