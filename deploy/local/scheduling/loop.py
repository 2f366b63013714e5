"""The scheduling loop: watches pods and nodes, picks a node for each pod, and binds through the extender."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from deploy.kube.client import ApiClient
from deploy.kube.events import WARNING, EventRecorder
from deploy.kube.informer import Informer, ObjectChange
from deploy.local.kubelet.reporting import write_status
from deploy.local.scheduling import pod_rules
from deploy.local.scheduling.extender import Extender, ExtenderError
from deploy.local.scheduling.queue import AttemptFailure, SchedulingQueue
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import (
    Json,
    annotations_of,
    child,
    has_finished,
    is_terminating,
    items,
    labels_of,
    node_of,
    text,
    uid_of,
)
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.names import SCHEDULER_NAME
from protocol.runtime.clock import Clock
from scheduler_plugin.constraints.cluster_view import PlacedPod

_log = logging.getLogger(__name__)


class SchedulingLoop:
    """Schedules the pods whose ``schedulerName`` is ours."""

    def __init__(self, client: ApiClient, pods: Informer, nodes: Informer, extender: Extender, clock: Clock) -> None:
        self._client = client
        self._pods = pods
        self._nodes = nodes
        self._extender = extender
        self._events = EventRecorder(client, SCHEDULER_NAME, clock)
        self._clock = clock
        self._queue = SchedulingQueue()
        self._placed: dict[ObjectName, PlacedPod] = {}
        self._assumed: dict[ObjectName, PlacedPod] = {}  # bind in flight, or not in the cache yet
        self._has_affinity_waiters = False  # a pod waits for other pods to satisfy its required affinity
        self._wakeup = asyncio.Event()
        self._pods.listen(self._pod_changed)
        self._nodes.listen(self._node_changed)

    async def run(self) -> None:
        """Schedule pods until cancelled; binds in flight are cancelled too."""
        await self._pods.synced.wait()
        await self._nodes.synced.wait()
        async with asyncio.TaskGroup() as bindings:
            while True:
                # Cleared before checking the queue: otherwise an event in between would be lost.
                self._wakeup.clear()
                pod = self._queue.take(self._clock.now())
                if pod is None:
                    await self._clock.wait(self._wakeup, self._queue.next_ready())
                else:
                    await self._schedule(pod, bindings)

    async def _schedule(self, name: ObjectName, bindings: asyncio.TaskGroup) -> None:
        pod = self._pods.get(name)
        # Bound, deleted or finished while it was queued.
        if pod is None or not _needs_node(pod):
            self._queue.forget(name)
            return
        try:
            node = await self._choose(name, pod)
        except Exception as error:  # noqa: BLE001 - one pod must not end the scheduling of all others
            await self._raised(name, pod, error)
            return
        if node:
            # As in kube-scheduler, binding is asynchronous: the extender may get the next pod's filter before this
            # bind has finished.
            self._assumed[name] = pod_rules.placed_pod(pod, node)
            bindings.create_task(self._bind(name, pod, node))

    async def _choose(self, name: ObjectName, pod: Json) -> str:
        """The node for ``pod``; empty if it fits on none, which is recorded, and the pod queued again."""
        nodes = {key.name: node for key, node in self._nodes.objects.items() if not is_terminating(node)}
        refused = {node_name: reason for node_name, node in nodes.items() if (reason := pod_rules.refusal(pod, node))}
        # Pods whose bind is in flight count as placed.
        rules = pod_rules.PodRules(pod, nodes, {**self._placed, **self._assumed}.values())
        refused |= {
            node_name: reason for node_name in nodes.keys() - refused.keys() if (reason := rules.refusal(node_name))
        }
        feasible = [node_name for node_name in sorted(nodes) if node_name not in refused]
        if feasible:
            result = await self._extender.filter(pod, feasible)
            refused |= {**(result.failed_nodes or {}), **(result.failed_and_unresolvable_nodes or {})}
            feasible = list(result.node_names or ())
        if not feasible:
            # Only for such pods, a new placement must wake the queue.
            if pod_rules.AFFINITY in refused.values():
                self._has_affinity_waiters = True
            await self._failed(name, pod, AttemptFailure.NO_NODE, pod_rules.no_node_message(refused, len(nodes)))
            return ""
        # Like kube-scheduler, skip scoring if only one node is left.
        scores = await self._extender.prioritize(pod, feasible) if len(feasible) > 1 else {}
        preferences = {node_name: rules.preference(node_name) for node_name in feasible}
        return pod_rules.winner(feasible, scores, preferences, self._clock.jitter())

    async def _bind(self, name: ObjectName, pod: Json, node: str) -> None:
        try:
            await self._extender.bind(name, uid_of(pod), node)
        except Exception as error:  # noqa: BLE001 - as above
            self._assumed.pop(name, None)
            await self._raised(name, pod, error, "binding rejected: ")
            return
        # The pod stays in `_assumed` until the cache has its node.
        await self._events.record(pod, "Scheduled", f"Successfully assigned {name} to {node}")

    async def _raised(self, name: ObjectName, pod: Json, error: Exception, about: str = "") -> None:
        """An attempt ended with ``error``; ``about`` precedes a message of the extender."""
        message = f"{about}{error}"
        if not isinstance(error, ExtenderError):
            _log.error("scheduling a pod failed", extra={"pod": str(name)}, exc_info=error)
            message = f"internal error of the scheduling loop: {error!r}"
        await self._failed(name, pod, AttemptFailure.ERROR, message)

    async def _failed(self, name: ObjectName, pod: Json, failure: AttemptFailure, message: str) -> None:
        # First: a slow API server must not delay the retry.
        self._queue.failed(name, failure, self._clock.now(), self._clock.jitter())
        self._wakeup.set()
        await self._events.record(pod, "FailedScheduling", message, WARNING)
        if failure is AttemptFailure.NO_NODE:
            await self._write_unschedulable(pod, message)

    async def _write_unschedulable(self, pod: Json, message: str) -> None:
        """Write the condition PodScheduled=False, which ``kubectl describe`` and autoscalers read."""
        condition = pod_rules.unschedulable(message, timestamp(self._clock.wall()))
        # A merge patch replaces the whole list, so the other conditions are sent too.
        others = [
            other for other in items(pod, "status", "conditions") if text(other, "type") != pod_rules.POD_SCHEDULED
        ]
        # The next attempt writes the condition again.
        with suppress(ApiError):
            await write_status(self._client, pod, {"conditions": [*others, condition]})

    def _pod_changed(self, change: ObjectChange) -> None:
        self._track_placement(change)
        if change.after is not None and _needs_node(change.after):
            self._queue.add(change.name)
        else:
            self._queue.forget(change.name)
            # A finished or deleted pod frees resources on its node.
            if (
                change.before is not None
                and node_of(change.before)
                and (change.after is None or has_finished(change.after))
            ):
                self._queue.wake()
        self._wakeup.set()

    def _track_placement(self, change: ObjectChange) -> None:
        self._placed.pop(change.name, None)
        if change.after is None or has_finished(change.after):
            self._assumed.pop(change.name, None)
        elif node_of(change.after):
            self._assumed.pop(change.name, None)
            self._placed[change.name] = pod_rules.placed_pod(change.after)
            # A new placement matters only to pods that wait for required pod affinity.
            if self._has_affinity_waiters and (change.before is None or not node_of(change.before)):
                self._has_affinity_waiters = False
                self._queue.wake()

    def _node_changed(self, change: ObjectChange) -> None:
        # Deleted nodes and heartbeats do not make pods schedulable.
        if change.after is not None and (
            change.before is None or _scheduling_fields(change.before) != _scheduling_fields(change.after)
        ):
            self._queue.wake()
            self._wakeup.set()


def _needs_node(pod: Json) -> bool:
    ours = text(pod, "spec", "schedulerName") == SCHEDULER_NAME
    return ours and not node_of(pod) and not is_terminating(pod) and not has_finished(pod)


def _scheduling_fields(node: Json) -> tuple[object, ...]:
    """The node's fields that scheduling depends on, without heartbeats."""
    conditions = [
        (text(condition, "type"), text(condition, "status")) for condition in items(node, "status", "conditions")
    ]
    return child(node, "spec"), labels_of(node), annotations_of(node), child(node, "status", "allocatable"), conditions
