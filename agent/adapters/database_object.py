"""The Kubernetes object that a database runs in, VM or pod: all calls except the resize.

If an object cannot be parsed, the error is ``Fault.VM_API`` and names the field.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Final, TypeVar

import msgspec

from agent import texts
from agent.adapters.kubernetes_api import LightKubernetesApi
from agent.core.events import Fault
from agent.ports import PortError, RefusedError
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.resources import Resource
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_CONFIG, ANNOTATION_FLOOR, ANNOTATION_SLEEP, LABEL_KEEP_AWAKE, LABEL_ROLE
from protocol.runtime.kubernetes.events import EventRecord, EventSubject, event_body
from protocol.virtual_machine import InvalidObjectError, VirtualMachine

COMPONENT: Final = "autoscaler-agent"
_LABELS: Final = frozenset({LABEL_KEEP_AWAKE, LABEL_ROLE})
_ANNOTATIONS: Final = frozenset({ANNOTATION_CONFIG, ANNOTATION_FLOOR, ANNOTATION_SLEEP})

V = TypeVar("V", bound=VirtualMachine)


def trimmed(database: V) -> V:
    """The database with only the labels and annotations that agents read: a tenant's may have 80,000 others."""
    labels = {name: text for name, text in database.labels.items() if name in _LABELS}
    annotations = {name: text for name, text in database.annotations.items() if name in _ANNOTATIONS}
    return msgspec.structs.replace(database, labels=labels, annotations=annotations)


class DatabaseObject(ABC):
    """The object ``name`` of kind ``kind``."""

    def __init__(self, api: LightKubernetesApi, kind: Resource, name: ObjectName) -> None:
        self._api = api
        self._kind = kind
        self._name = name
        self._path = kind.path(name.namespace, name.name)
        self._uid = ""

    @abstractmethod
    def _parsed(self, obj: JsonObject) -> VirtualMachine:
        """Parse the object. Raises ``InvalidObjectError`` or ``PortError``."""

    async def get(self) -> VirtualMachine:
        """See ``VmApi``. Raises ``PortError``."""
        return self._read(await self._api.get(self._path))

    async def watch(self) -> AsyncIterator[VirtualMachine]:
        """See ``VmApi``. Raises like ``get``."""
        collection, selector = self._kind.path(self._name.namespace), f"metadata.name={self._name.name}"
        # Without a version: the API server soon forgets the version of an object that does not change.
        async for event in self._api.watch(collection, {"fieldSelector": selector}, ""):
            if event.type == "DELETED":
                raise RefusedError(Fault.VM_API, texts.OBJECT_DELETED.format(kind=self._kind.kind, name=self._name))
            if event.unreadable is not None:
                raise self._undecodable(event.unreadable.reason)
            if event.type != "BOOKMARK":
                yield self._read(event.object)

    async def order_sleep(self, order: str, base: int) -> VirtualMachine:
        """See ``VmApi``. Raises ``PortError``."""
        metadata = {"resourceVersion": str(base), "annotations": {ANNOTATION_SLEEP: order}}
        return self._read(await self._api.patch(self._path, {"metadata": metadata}))

    async def write_event(self, reason: str, note: str, wall: float) -> None:
        """See ``VmApi``. Raises ``PortError``."""
        event = EventRecord(EventSubject(self._kind, self._name, self._uid), reason, note)
        await self._api.post(event.path, event_body(event, micro_timestamp(wall), COMPONENT))

    def _read(self, obj: JsonObject) -> VirtualMachine:
        try:
            database = self._parsed(obj)
        except InvalidObjectError as error:
            raise self._undecodable(str(error)) from None
        self._uid = database.uid
        return database

    def _undecodable(self, reason: str) -> PortError:
        return PortError(Fault.VM_API, texts.OBJECT_UNREADABLE.format(kind=self._kind.kind, reason=reason))
