"""The VMs of one node, by the pods that run there (S4.3, per-node form).

Rules that hold here:

- Only pods of this node with the opt-in label are asked for: an agent's traffic does not grow with the cluster.
- A pod counts from when it has an address, because its guest is reached there, until it is gone or has ended. One that
  is ending keeps its agent: its VM may be migrating away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TypeVar

import msgspec

from agent.adapters.kubernetes_api import KubernetesApi
from agent.assignments import Assignment
from agent.core.events import Fault
from agent.ports import GoneError, PortError
from protocol.field_errors import field_message
from protocol.messages import ObjectName
from protocol.names import LABEL_ENABLED, LABEL_VM_NAME

ENDED = frozenset({"Succeeded", "Failed"})


class _Metadata(msgspec.Struct):
    namespace: str
    name: str
    resourceVersion: str = ""  # noqa: N815 - the name in the API
    labels: dict[str, str] = {}


class _Status(msgspec.Struct):
    phase: str = ""
    podIP: str | None = None  # noqa: N815 - the name in the API


class _Pod(msgspec.Struct):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)


class _ListMetadata(msgspec.Struct):
    resourceVersion: str  # noqa: N815 - the name in the API


class _Pods(msgspec.Struct):
    metadata: _ListMetadata
    items: list[_Pod]


class NodePods:
    """The VM pods of the node ``node``."""

    def __init__(self, api: KubernetesApi, node: str) -> None:
        self.unreadable: dict[ObjectName, str] = {}
        self._api = api
        self._selected = {
            "fieldSelector": f"spec.nodeName={node}",
            "labelSelector": f"{LABEL_ENABLED}=true,{LABEL_VM_NAME}",
        }

    async def sets(self) -> AsyncIterator[frozenset[Assignment]]:
        """All VMs of the node, now and after each change. Ends when the server ends the watch."""
        listed = _convert(await self._api.get("/api/v1/pods", self._selected), _Pods)
        assignments = dict(filter(None, map(_assignment, listed.items)))
        yield frozenset(assignments.values())
        try:
            async for event in self._api.watch(
                "/api/v1/pods", {**self._selected, "resourceVersion": listed.metadata.resourceVersion}
            ):
                if event.type != "BOOKMARK":
                    _apply(assignments, event.type, _convert(event.found, _Pod))
                    yield frozenset(assignments.values())
        except GoneError:
            return


def _apply(assignments: dict[ObjectName, Assignment], kind: str, pod: _Pod) -> None:
    assignments.pop(ObjectName(pod.metadata.namespace, pod.metadata.name), None)
    found = _assignment(pod)
    if found is not None and kind != "DELETED":
        assignments.update([found])


def _assignment(pod: _Pod) -> tuple[ObjectName, Assignment] | None:
    vm = pod.metadata.labels.get(LABEL_VM_NAME)
    if vm is None or pod.status.podIP is None or pod.status.phase in ENDED:
        return None
    name = ObjectName(pod.metadata.namespace, pod.metadata.name)
    return name, Assignment(ObjectName(pod.metadata.namespace, vm), name, pod.status.podIP)


T = TypeVar("T")


def _convert(found: Mapping[str, object], kind: type[T]) -> T:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise PortError(Fault.VM_API, f"a pod makes no sense: {field_message(error)}") from None
