"""The few writes that the scheduler makes: permits, requests, bindings, wake-ups, events, migrations; and reads first.

Nothing is retried here: the caller knows whether the write is still wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import quote

from protocol.kubernetes.api import ApiCall, KubernetesApi, Writing
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.resources import MERGE_PATCH, STRATEGIC_PATCH
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
from protocol.units import Instant, Seconds
from protocol.virtual_machine import VirtualMachine
from scheduler_plugin.cluster.migrations import MigrationOrder, migration_body, migration_path, migrations_path
from scheduler_plugin.cluster.translate import pod_path, vm_path
from scheduler_plugin.ledger.outcomes import PersistPermit, ResizePod

K = TypeVar("K")


class RecentWrites(Generic[K]):
    """Writes by their subject. ``settle`` after it was sent, a write has landed or never will."""

    def __init__(self, settle: Seconds) -> None:
        self._settle = settle
        self._sent_at: dict[K, Instant] = {}

    def __len__(self) -> int:
        return len(self._sent_at)

    def sent(self, about: K, now: Instant) -> None:
        """A write is on its way."""
        # Pruned here, so that the table stays small whatever becomes of the writes.
        recent = {key: at for key, at in self._sent_at.items() if now - at < self._settle}
        self._sent_at = recent | {about: now}

    def settled(self, about: K) -> None:
        """Record that the write's outcome is known."""
        self._sent_at.pop(about, None)

    def may_land(self, about: K, now: Instant) -> bool:
        """Return True if a write that was sent may still take effect."""
        sent = self._sent_at.get(about)
        return sent is not None and now - sent < self._settle


WRITE_TIMEOUT: Final = Seconds(3.0)
"""Longer than a healthy API ever needs, shorter than kube-scheduler and agents wait (5 s)."""


@dataclass(frozen=True, slots=True)
class ClusterWriter:
    """Writes and single reads; each raises ``ApiRefusedError`` or ``ApiUnknownError`` (see ``cluster.api``).

    ``identity`` names this process beside every permit that it writes. A write that ``writing`` forbids counts as
    unknown.
    """

    api: KubernetesApi
    identity: str
    writing: Writing

    async def store_permit(self, vm: VirtualMachine, order: PersistPermit) -> JsonObject:
        """Writes the permit onto this version of the VM, 409 if it has changed; returns the new object."""
        writer = encode_writer(self.identity, order.revision, order.holders)
        metadata = {
            # The UID and the version make this a 409 if the VM has changed or was replaced. The writer's revision makes
            # no two writes equal, so each gives the VM a new version: a write that seemed lost cannot land after a
            # newer one.
            "uid": vm.uid,
            "resourceVersion": vm.resource_version,
            "annotations": {ANNOTATION_PERMIT: encode_permit(order.permit), ANNOTATION_PERMIT_WRITER: writer},
        }
        return await self._write(_patch(vm_path(vm.name), metadata))

    async def read_vm(self, name: ObjectName) -> JsonObject:
        """The VirtualMachine as it is now."""
        return await self.api.call(ApiCall("GET", vm_path(name), WRITE_TIMEOUT))

    async def read_pod(self, name: ObjectName) -> JsonObject:
        """The Pod as it is now."""
        return await self.api.call(ApiCall("GET", pod_path(name), WRITE_TIMEOUT))

    async def bind(self, pod: ObjectName, uid: str, node: str) -> None:
        """Binds the pod with this uid to the node; 409 if it is already bound or was replaced."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            # The UID makes binding a replaced pod of the same name a 409.
            "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._write(_call("POST", f"{pod_path(pod)}/binding", body))

    async def resize_pod(self, order: ResizePod) -> JsonObject:
        """Writes the requests of the guest's container onto this version of the pod, 409 if it has changed.

        Its CPU limit too if the order names one; all else stays as it is. Returns the new object.
        """
        resources: JsonObject = {
            "requests": {"cpu": order.size.cpu.quantity(), "memory": order.size.mem.quantity()},
            **({} if order.cpu_limit is None else {"limits": {"cpu": order.cpu_limit.quantity()}}),
        }
        body = {
            # Both are preconditions: the resize was decided for this version of this pod.
            "metadata": {"uid": order.uid, "resourceVersion": order.version},
            # A strategic merge patch merges containers by name; a JSON merge patch would replace the whole list.
            "spec": {"containers": [{"name": RUNNER_CONTAINER, "resources": resources}]},
        }
        path = f"{pod_path(order.pod)}/resize"
        return await self._write(_call("PATCH", path, body, STRATEGIC_PATCH))

    async def touch_node(self, node: str, stamp: str) -> None:
        """Wakes pods that wait for room: one that an extender rejected sleeps until something changes."""
        # kube-scheduler moves unschedulable pods back into its queue when a node's annotations change.
        metadata = {"annotations": {ANNOTATION_ROOM_FREED: stamp}}
        await self._write(_patch(f"/api/v1/nodes/{quote(node, safe='')}", metadata))

    async def tell(self, event: EventRecord, stamp: str) -> None:
        """Creates an Event; ``stamp`` (RFC 3339) is its time."""
        await self._write(_call("POST", event.path, event_body(event, stamp, SCHEDULER_NAME)))

    async def create_migration(self, order: MigrationOrder) -> JsonObject:
        """Creates a VirtualMachineMigration, 409 if its name is taken; returns the object."""
        # The caller chose the name, so that it can read back a create of unknown outcome.
        path = migrations_path(order.name.namespace)
        return await self._write(_call("POST", path, migration_body(order)))

    async def read_migration(self, name: ObjectName) -> JsonObject:
        """The VirtualMachineMigration as it is now."""
        return await self.api.call(ApiCall("GET", migration_path(name), WRITE_TIMEOUT))

    async def delete_migration(self, name: ObjectName, uid: str) -> None:
        """Deletes this very migration; this cancels one that has not ended."""
        # A new migration may have taken the name; only this UID is to go.
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        await self._write(_call("DELETE", migration_path(name), body))

    async def _write(self, call: ApiCall) -> JsonObject:
        # A process that has lost its lease must not write: the call is refused here, or its time-out cut to what is
        # left of the lease.
        with self.writing(call) as limited:
            return await self.api.call(limited)


def _patch(path: str, metadata: JsonObject) -> ApiCall:
    return _call("PATCH", path, {"metadata": metadata}, MERGE_PATCH)


def _call(method: str, path: str, body: JsonObject, content_type: str = "application/json") -> ApiCall:
    return ApiCall(method, path, WRITE_TIMEOUT, body=body, content_type=content_type)
