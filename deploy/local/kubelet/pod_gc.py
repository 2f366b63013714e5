"""Pods whose node has been removed from the cluster are removed too, as a cluster's pod collector does.

The guests of such a pod still run in this process: they are ended like those of any deleted pod.
"""

from __future__ import annotations

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer, ObjectChange
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import is_leaving, name_of, node_of, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.work_queue import WorkQueue


class PodGarbageCollector:
    """Deletes the pods of nodes that are gone."""

    def __init__(self, client: ApiClient, nodes: Informer, pods: Informer, clock: Clock) -> None:
        self._client = client
        self._nodes = nodes
        self._pods = pods
        self._queue = WorkQueue(clock)
        nodes.listen(self._node_changed)
        pods.listen(lambda change: self._queue.add(change.name))

    async def run(self) -> None:
        """Works until cancelled."""
        await self._nodes.synced.wait()
        await self._pods.synced.wait()
        await self._queue.serve(self.reconcile)

    async def reconcile(self, pod: ObjectName) -> None:
        """Deletes the pod if its node is gone. Raises ``ApiError``."""
        current = self._pods.get(pod)
        # A pod without a node waits for the scheduler, and one that is leaving needs no second deletion.
        if current is None or not node_of(current) or is_leaving(current):
            return
        if self._nodes.get(ObjectName("", node_of(current))) is not None:
            return
        try:
            # The uid guards against deleting a new pod of the same name.
            await self._client.delete(PODS, pod, uid_of(current))
        except ApiRefusedError as error:
            if error.kind is not RefusalKind.NOT_FOUND:
                raise

    def _node_changed(self, change: ObjectChange) -> None:
        if change.after is None:
            for pod in self._pods.objects.values():
                if node_of(pod) == change.name.name:
                    self._queue.add(name_of(pod))
