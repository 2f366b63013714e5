"""Ready conditions and taints of nodes with a stopped kubelet, as by Kubernetes' node lifecycle controller."""

from __future__ import annotations

from typing import Final

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer, ObjectChange
from deploy.local.kubelet.node_object import lifecycle_taints, ready_condition, ready_status, with_condition
from protocol.kubernetes.api import Tolerating
from protocol.kubernetes.objects import Json, is_terminating, items, name_of, node_of, uid_of, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import NODES, PODS
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.work_queue import WorkQueue
from protocol.units import Instant, Seconds

# Default of kube-controller-manager's --node-monitor-grace-period.
GRACE: Final = Seconds(40.0)


class NodeLifecycle:
    """Keeps the Ready condition and the lifecycle taints of nodes up to date."""

    def __init__(self, client: ApiClient, nodes: Informer, clock: Clock) -> None:
        self._client = client
        self._nodes = nodes
        self._clock = clock
        self._queue = WorkQueue(clock)
        self._stopped: dict[str, Instant] = {}
        nodes.listen(lambda change: self._queue.add(change.name))

    def kubelet_stopped(self, node: str) -> None:
        """Note that the kubelet of ``node`` stopped posting its status."""
        # A second stop must not extend the grace period of the first.
        self._stopped.setdefault(node, self._clock.now())
        self._queue.add(ObjectName("", node), GRACE)

    def kubelet_started(self, node: str) -> None:
        """Note that the kubelet of ``node`` is running again."""
        self._stopped.pop(node, None)
        self._queue.add(ObjectName("", node))

    async def run(self) -> None:
        """Reconcile nodes until cancelled."""
        await self._nodes.synced.wait()
        await self._queue.serve(self.reconcile)

    async def reconcile(self, name: ObjectName) -> None:
        """Update one node's condition and taints. Raises ``ApiError``."""
        node = self._nodes.get(name)
        if node is None:
            return
        now = timestamp(self._clock.wall())
        condition = self._condition(node, now)
        if condition is not None:
            await self._write(name, node, {"status": {"conditions": with_condition(node, condition)}}, "status")
            return  # the taints follow when the cache has the new condition
        taints = lifecycle_taints(node, ready_status(node), now)
        if taints != items(node, "spec", "taints"):
            await self._write(name, node, {"spec": {"taints": taints}}, "")

    def _condition(self, node: Json, now: str) -> Json | None:
        """The new Ready condition; None if it is right already."""
        ready, since = ready_status(node), self._stopped.get(name_of(node).name)
        if since is None:
            # Not if it is False: then another writer, not the stopped kubelet, is the reason.
            is_back = ready == "Unknown"
            return ready_condition("True", "KubeletReady", "the local runtime is up", now) if is_back else None
        if ready == "Unknown" or self._clock.now() < since + GRACE:
            return None
        return ready_condition("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", now)

    async def _write(self, name: ObjectName, node: Json, change: Json, subresource: str) -> None:
        # A merge patch replaces whole lists; with the resourceVersion it fails instead of dropping others' taints.
        body = {"metadata": {"resourceVersion": version_of(node)}, **change}
        with Tolerating(RefusalKind.NOT_FOUND):
            await self._client.merge_patch(NODES, name, body, subresource)


class PodGarbageCollector:
    """Deletes pods whose node no longer exists."""

    def __init__(self, client: ApiClient, nodes: Informer, pods: Informer, clock: Clock) -> None:
        self._client = client
        self._nodes = nodes
        self._pods = pods
        self._queue = WorkQueue(clock)
        nodes.listen(self._node_changed)
        pods.listen(lambda change: self._queue.add(change.name))

    async def run(self) -> None:
        """Reconcile pods until cancelled."""
        await self._nodes.synced.wait()
        await self._pods.synced.wait()
        await self._queue.serve(self.reconcile)

    async def reconcile(self, pod: ObjectName) -> None:
        """Delete the pod if its node does not exist. Raises ``ApiError``."""
        current = self._pods.get(pod)
        if current is None or not node_of(current) or is_terminating(current):
            return
        if self._nodes.get(ObjectName("", node_of(current))) is not None:
            return
        with Tolerating(RefusalKind.NOT_FOUND):
            # With the uid, to not delete a new pod with the same name.
            await self._client.delete(PODS, pod, uid_of(current))

    def _node_changed(self, change: ObjectChange) -> None:
        if change.after is None:
            for pod in self._pods.objects.values():
                if node_of(pod) == change.name.name:
                    self._queue.add(name_of(pod))
