"""NeonVM's VirtualMachine object as the agent's VM: calls on one object (S4.2).

An object that breaks its own rules is an error of the API, with the path of the field.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from agent import texts
from agent.adapters.kubernetes_api import LightKubernetesApi
from agent.core.events import Fault
from agent.ports import PortError, RefusedError
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.resources import EVENTS, VIRTUAL_MACHINES
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.messages import ObjectName
from protocol.units import Bytes, Resources
from protocol.virtual_machine import InvalidObjectError, VirtualMachine, parse_virtual_machine, use_patch

COMPONENT: Final = "autoscaler-agent"
LONGEST_NOTE: Final = 1024
"""Characters: the API server takes no more."""


class NeonVm:
    """One VirtualMachine object."""

    def __init__(self, api: LightKubernetesApi, name: ObjectName) -> None:
        self._api = api
        self._name = name
        self._list = VIRTUAL_MACHINES.path(name.namespace)
        self._path = VIRTUAL_MACHINES.path(name.namespace, name.name)
        self._seen: VirtualMachine | None = None

    async def get(self) -> VirtualMachine:
        """The object now. Raises ``PortError``."""
        return self._read(await self._api.get(self._path))

    async def watch(self) -> AsyncIterator[VirtualMachine]:
        """The object as it is and after each change; ends when the server ends it. Raises like ``get``."""
        # No version to watch from: a quiet object's own version is soon too old for an API server.
        async for event in self._api.watch(self._list, {"fieldSelector": f"metadata.name={self._name.name}"}, ""):
            if event.type == "DELETED":
                raise RefusedError(Fault.VM_API, texts.VM_DELETED.format(vm=self._name))
            if event.unreadable is not None:
                raise _senseless(event.unreadable.reason)
            if event.type != "BOOKMARK":
                yield self._read(event.object)

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

    async def tell(self, reason: str, note: str, wall: float) -> None:
        """See ``VmApi``. Raises ``PortError``."""
        stamp, name = micro_timestamp(wall), self._name
        about: JsonObject = {
            "apiVersion": VIRTUAL_MACHINES.api_version,
            "kind": VIRTUAL_MACHINES.kind,
            "namespace": name.namespace,
            "name": name.name,
            "uid": "" if self._seen is None else self._seen.uid,
        }
        # Names of Events must be unique in the namespace; the digits of the time make them so.
        made = {"name": f"{name.name}.{''.join(filter(str.isdigit, stamp))}", "namespace": name.namespace}
        body: JsonObject = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": made,
            "involvedObject": about,
            "reason": reason,
            "message": note[:LONGEST_NOTE],
            "type": "Warning",
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
            "reportingComponent": COMPONENT,
            "source": {"component": COMPONENT},
        }
        await self._api.post(EVENTS.path(name.namespace), body)

    def _read(self, found: JsonObject) -> VirtualMachine:
        try:
            self._seen = parse_virtual_machine(found)
        except InvalidObjectError as error:
            raise _senseless(str(error)) from None
        return self._seen


def _senseless(reason: str) -> PortError:
    return PortError(Fault.VM_API, texts.VM_UNREADABLE.format(reason=reason))
