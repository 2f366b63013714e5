"""One object of the Kubernetes API that a database runs in, whatever its kind: all calls but the one that resizes it.

An object that breaks its own rules is an error of the API, with the path of the field.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Final

from agent import texts
from agent.adapters.kubernetes_api import LightKubernetesApi
from agent.core.events import Fault
from agent.ports import PortError, RefusedError
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.resources import EVENTS, Resource
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.messages import ObjectName
from protocol.virtual_machine import InvalidObjectError, VirtualMachine

COMPONENT: Final = "autoscaler-agent"
LONGEST_NOTE: Final = 1024
"""Characters: the API server takes no more."""


class DatabaseObject(ABC):
    """The object ``name`` of ``kind``."""

    def __init__(self, api: LightKubernetesApi, kind: Resource, name: ObjectName) -> None:
        self._api = api
        self._kind = kind
        self._name = name
        self._path = kind.path(name.namespace, name.name)
        self._uid = ""

    @abstractmethod
    def _parsed(self, found: JsonObject) -> VirtualMachine:
        """The object as a database. Raises ``InvalidObjectError`` or ``PortError``."""

    async def get(self) -> VirtualMachine:
        """The object now. Raises ``PortError``."""
        return self._read(await self._api.get(self._path))

    async def watch(self) -> AsyncIterator[VirtualMachine]:
        """The object as it is and after each change; ends when the server ends it. Raises like ``get``."""
        collection, selector = self._kind.path(self._name.namespace), f"metadata.name={self._name.name}"
        # No version to watch from: a quiet object's own version is soon too old for an API server.
        async for event in self._api.watch(collection, {"fieldSelector": selector}, ""):
            if event.type == "DELETED":
                raise RefusedError(Fault.VM_API, texts.OBJECT_DELETED.format(kind=self._kind.kind, name=self._name))
            if event.unreadable is not None:
                raise self._senseless(event.unreadable.reason)
            if event.type != "BOOKMARK":
                yield self._read(event.object)

    async def tell(self, reason: str, note: str, wall: float) -> None:
        """See ``VmApi``. Raises ``PortError``."""
        stamp, name = micro_timestamp(wall), self._name
        about: JsonObject = {
            "apiVersion": self._kind.api_version,
            "kind": self._kind.kind,
            "namespace": name.namespace,
            "name": name.name,
            "uid": self._uid,
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
            database = self._parsed(found)
        except InvalidObjectError as error:
            raise self._senseless(str(error)) from None
        self._uid = database.uid
        return database

    def _senseless(self, reason: str) -> PortError:
        return PortError(Fault.VM_API, texts.OBJECT_UNREADABLE.format(kind=self._kind.kind, reason=reason))
