"""The scheduler's writes: permits, requests, bindings, wake-ups, events, migrations; and reads of single objects.

No retries here: only the caller knows whether the write is still needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from protocol.kubernetes.api import ApiCall, KubernetesApi, Writing
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.resources import (
    MERGE_PATCH,
    MIGRATIONS,
    NODES,
    PODS,
    STRATEGIC_PATCH,
    VIRTUAL_MACHINES,
    Resource,
)
from protocol.messages import ObjectName
from protocol.names import (
    ANNOTATION_PERMIT,
    ANNOTATION_PERMIT_WRITER,
    ANNOTATION_ROOM_FREED,
    RUNNER_CONTAINER,
    SCHEDULER_NAME,
)
from protocol.permits import encode_permit, encode_writer
from protocol.runtime.kubernetes.events import EventRecord, event_body
from protocol.units import Bytes, Instant, Seconds
from protocol.virtual_machine import VirtualMachine
from scheduler_plugin.cluster.migrations import migration_body
from scheduler_plugin.ledger.outcomes import CreateMigration, PersistPermit, ResizePod

K = TypeVar("K")


class RecentWrites(Generic[K]):
    """Recent writes by key. A write sent ``settle`` ago has landed or never will."""

    def __init__(self, settle: Seconds) -> None:
        self._settle = settle
        self._sent_at: dict[K, Instant] = {}

    def sent(self, about: K, now: Instant) -> None:
        """Record that a write is being sent."""
        # Prune here to keep the table small.
        recent = {key: at for key, at in self._sent_at.items() if now - at < self._settle}
        self._sent_at = recent | {about: now}

    def settled(self, about: K) -> None:
        """Record that the write's outcome is known."""
        self._sent_at.pop(about, None)

    def may_land(self, about: K, now: Instant) -> bool:
        """Return True if a sent write may still land."""
        sent = self._sent_at.get(about)
        return sent is not None and now - sent < self._settle


WRITE_TIMEOUT: Final = Seconds(3.0)
"""Longer than a healthy API server needs, shorter than kube-scheduler and agents wait (5 s)."""


@dataclass(frozen=True, slots=True)
class ClusterWriter:
    """Writes and reads of single objects; each raises ``ApiRefusedError`` or ``ApiUnknownError`` (see ``cluster.api``).

    ``identity`` is stored with every permit. A write that ``writing`` forbids counts as unknown.
    """

    api: KubernetesApi
    identity: str
    writing: Writing

    async def store_permit(self, vm: VirtualMachine, order: PersistPermit) -> JsonObject:
        """Write the permit to this version of the VM, 409 if it has changed; return the new object."""
        writer = encode_writer(self.identity, order.revision, order.holders)
        metadata = {
            # UID and resourceVersion make this a 409 if the VM was changed or replaced. The revision makes every write
            # different, so each creates a new version, and a write believed lost cannot land after a newer one.
            "uid": vm.uid,
            "resourceVersion": vm.resource_version,
            "annotations": {ANNOTATION_PERMIT: encode_permit(order.permit), ANNOTATION_PERMIT_WRITER: writer},
        }
        return await self._write(_patch(_path(VIRTUAL_MACHINES, vm.name), metadata))

    async def read(self, kind: Resource, name: ObjectName) -> JsonObject:
        """Read one object."""
        return await self.api.call(ApiCall("GET", _path(kind, name), WRITE_TIMEOUT))

    async def bind(self, pod: ObjectName, uid: str, node: str) -> None:
        """Bind the pod with this UID to the node; 409 if it is already bound or was replaced."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            # 409 for a replaced pod of the same name.
            "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._write(_call("POST", _path(PODS, pod, "binding"), body))

    async def resize_pod(self, order: ResizePod) -> JsonObject:
        """Write the requests of the guest's container to this version of the pod, 409 if it has changed.

        Also its CPU limit if the order has one. Return the new object.
        """
        resources: JsonObject = {
            "requests": {"cpu": order.size.cpu.quantity(), "memory": order.size.mem.quantity()},
            **({} if order.cpu_limit is None else {"limits": {"cpu": order.cpu_limit.quantity()}}),
        }
        body = {
            # Preconditions.
            "metadata": {"uid": order.uid, "resourceVersion": order.version},
            # A strategic merge patch merges containers by name; a JSON merge patch would replace the whole list.
            "spec": {"containers": [{"name": RUNNER_CONTAINER, "resources": resources}]},
        }
        return await self._write(_call("PATCH", _path(PODS, order.pod, "resize"), body, STRATEGIC_PATCH))

    async def touch_node(self, node: str, stamp: str) -> None:
        """Touch the node, so that kube-scheduler retries pods that wait for room."""
        # kube-scheduler requeues unschedulable pods when a node's annotations change.
        metadata = {"annotations": {ANNOTATION_ROOM_FREED: stamp}}
        await self._write(_patch(NODES.path(name=node), metadata))

    async def create_event(self, event: EventRecord, stamp: str) -> None:
        """Create an Event; ``stamp`` (RFC 3339) is its time."""
        await self._write(_call("POST", event.path, event_body(event, stamp, SCHEDULER_NAME)))

    async def create_migration(self, order: CreateMigration, longest: Seconds, bandwidth: Bytes) -> JsonObject:
        """Create a VirtualMachineMigration, 409 if its name is taken; return the object."""
        # The caller chose the name, to read it back after an unknown outcome.
        path, body = MIGRATIONS.path(order.migration.namespace), migration_body(order, longest, bandwidth)
        return await self._write(_call("POST", path, body))

    async def delete_migration(self, name: ObjectName, uid: str) -> None:
        """Delete this migration; this cancels one that has not ended."""
        # The name may have been reused.
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        await self._write(_call("DELETE", _path(MIGRATIONS, name), body))

    async def release_migration(self, name: ObjectName, uid: str, version: int, finalizers: Sequence[str]) -> None:
        """Replace the finalizers of this version of the migration, 409 if it has changed."""
        metadata = {"uid": uid, "resourceVersion": str(version), "finalizers": list(finalizers)}
        await self._write(_patch(_path(MIGRATIONS, name), metadata))

    async def _write(self, call: ApiCall) -> JsonObject:
        # Without the Lease the call is refused here; otherwise its timeout ends before the Lease does.
        with self.writing(call) as limited:
            return await self.api.call(limited)


def _path(kind: Resource, name: ObjectName, subresource: str = "") -> str:
    return kind.path(name.namespace, name.name, subresource)


def _patch(path: str, metadata: JsonObject) -> ApiCall:
    return _call("PATCH", path, {"metadata": metadata}, MERGE_PATCH)


def _call(method: str, path: str, body: JsonObject, content_type: str = "application/json") -> ApiCall:
    return ApiCall(method, path, WRITE_TIMEOUT, body=body, content_type=content_type)
