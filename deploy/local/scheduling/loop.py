"""The scheduling loop's shell: watches pods and nodes, runs cycles, binds asynchronously through the extender."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

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
    is_leaving,
    is_over,
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

EXTENDER_WEIGHT: Final = 1


class SchedulingLoop:
    """Gives nodes to the pods that name our scheduler."""

    def __init__(self, client: ApiClient, pods: Informer, nodes: Informer, extender: Extender, clock: Clock) -> None:
        self._client = client
        self._pods = pods
        self._nodes = nodes
        self._extender = extender
        self._events = EventRecorder(client, SCHEDULER_NAME, clock)
        self._clock = clock
        self._queue = SchedulingQueue()
        self._placed: dict[ObjectName, PlacedPod] = {}
        self._assumed: dict[ObjectName, PlacedPod] = {}  # a bind is in flight, or the cache does not show it yet
        self._attracted = False  # a pod waits for others to be placed, as its pod affinity demands
        self._stir = asyncio.Event()
        self._pods.listen(self._pod_changed)
        self._nodes.listen(self._node_changed)

    async def run(self) -> None:
        """Schedules until cancelled; binds in flight are cancelled with it."""
        await self._pods.synced.wait()
        await self._nodes.synced.wait()
        async with asyncio.TaskGroup() as binds:
            while True:
                # Cleared before the queue is checked, so that an event in between is not lost.
                self._stir.clear()
                pod = self._queue.take(self._clock.now())
                if pod is None:
                    await self._clock.wait(self._stir, self._queue.next_ready())
                else:
                    await self._cycle(pod, binds)

    async def _cycle(self, name: ObjectName, binds: asyncio.TaskGroup) -> None:
        pod = self._pods.get(name)
        # The pod was bound, deleted or finished while it waited in the queue.
        if pod is None or not _wants_node(pod):
            self._queue.forget(name)
            return
        try:
            node = await self._choose(pod)
        except ExtenderError as error:
            await self._failed(name, pod, AttemptFailure.ERROR, str(error))
            return
        except Exception as error:  # noqa: BLE001 - one pod must not end the scheduling of all others
            await self._broke(name, pod, error)
            return
        if node:
            # A bind is a task of its own: the next pod's filter may come before this bind has ended, as with
            # kube-scheduler. The extender must cope with that, and this loop makes it do so.
            self._assumed[name] = pod_rules.placed(pod, node)
            binds.create_task(self._bind(name, pod, node))

    async def _choose(self, pod: Json) -> str:
        """The node for ``pod``; empty if there is none. The failure is then recorded, and the pod queued again."""
        name = ObjectName(text(pod, "metadata", "namespace"), text(pod, "metadata", "name"))
        nodes = {key.name: node for key, node in self._nodes.objects.items() if not is_leaving(node)}
        refused = {node_name: reason for node_name, node in nodes.items() if (reason := pod_rules.refusal(pod, node))}
        # Pods with a bind in flight count as placed already; the cache shows them later.
        rules = pod_rules.PodRules(pod, nodes, {**self._placed, **self._assumed}.values())
        refused |= {
            node_name: reason for node_name in nodes.keys() - refused.keys() if (reason := rules.refusal(node_name))
        }
        feasible = [node_name for node_name in sorted(nodes) if node_name not in refused]
        if feasible:
            answer = await self._extender.filter(pod, feasible)
            refused |= answer.refusals
            feasible = list(answer.NodeNames or ())
        if not feasible:
            # Only while a pod waits for others does a placement wake the queue; otherwise it would retry all pods in
            # vain.
            if pod_rules.AFFINITY in refused.values():
                self._attracted = True
            await self._failed(name, pod, AttemptFailure.NO_NODE, pod_rules.no_node_message(refused, len(nodes)))
            return ""
        # kube-scheduler skips scoring too if only one node is left.
        scores = await self._extender.prioritize(pod, feasible) if len(feasible) > 1 else {}
        preferences = {node_name: rules.preference(node_name) for node_name in feasible}
        return pod_rules.winner(feasible, scores, EXTENDER_WEIGHT, preferences, self._pick)

    def _pick(self, best: Sequence[str]) -> str:
        return best[int(self._clock.jitter() * len(best))]

    async def _bind(self, name: ObjectName, pod: Json, node: str) -> None:
        try:
            await self._extender.bind(name, uid_of(pod), node)
        except ExtenderError as error:
            self._assumed.pop(name, None)
            await self._failed(name, pod, AttemptFailure.ERROR, f"binding rejected: {error}")
            return
        except Exception as error:  # noqa: BLE001 - as above
            self._assumed.pop(name, None)
            await self._broke(name, pod, error)
            return
        # The assumed placement stays until the informer shows the pod on its node.
        await self._events.record(pod, "Scheduled", f"Successfully assigned {name} to {node}")

    async def _broke(self, name: ObjectName, pod: Json, error: Exception) -> None:
        _log.error("a pod could not be scheduled", extra={"pod": str(name)}, exc_info=error)
        await self._failed(name, pod, AttemptFailure.ERROR, f"an error of the scheduling loop: {error!r}")

    async def _failed(self, name: ObjectName, pod: Json, failure: AttemptFailure, message: str) -> None:
        # Queued before anything is written, so that a slow API server does not delay the retry.
        self._queue.failed(name, failure, self._clock.now(), self._clock.jitter())
        self._stir.set()
        await self._events.record(pod, "FailedScheduling", message, WARNING)
        if failure is AttemptFailure.NO_NODE:
            await self._say_unschedulable(pod, message)

    async def _say_unschedulable(self, pod: Json, message: str) -> None:
        """Writes the condition that ``kubectl describe`` and autoscalers read, with every attempt."""
        condition = pod_rules.unschedulable(message, timestamp(self._clock.wall()))
        # A merge patch replaces a list as a whole, so the other conditions are sent along.
        others = [
            other for other in items(pod, "status", "conditions") if text(other, "type") != pod_rules.POD_SCHEDULED
        ]
        # A failed write is harmless: the condition is only advice, and the next attempt writes it again.
        with suppress(ApiError):
            await write_status(self._client, pod, {"conditions": [*others, condition]})

    def _pod_changed(self, change: ObjectChange) -> None:
        self._follow_placement(change)
        if change.after is not None and _wants_node(change.after):
            self._queue.add(change.name)
        else:
            self._queue.forget(change.name)
            # A pod that ends or goes frees room on its node, so waiting pods may fit now.
            if change.before is not None and node_of(change.before) and (change.after is None or is_over(change.after)):
                self._queue.wake()
        self._stir.set()

    def _follow_placement(self, change: ObjectChange) -> None:
        self._placed.pop(change.name, None)
        if change.after is None or is_over(change.after):
            self._assumed.pop(change.name, None)
        elif node_of(change.after):
            self._assumed.pop(change.name, None)
            self._placed[change.name] = pod_rules.placed(change.after)
            # A placement may satisfy required pod affinity; to all other waiting pods it is no help.
            if self._attracted and (change.before is None or not node_of(change.before)):
                self._attracted = False
                self._queue.wake()

    def _node_changed(self, change: ObjectChange) -> None:
        # A deleted node makes no room, and a heartbeat changes nothing that scheduling depends on.
        if change.after is not None and (change.before is None or _facts(change.before) != _facts(change.after)):
            self._queue.wake()
            self._stir.set()


def _wants_node(pod: Json) -> bool:
    ours = text(pod, "spec", "schedulerName") == SCHEDULER_NAME
    return ours and not node_of(pod) and not is_leaving(pod) and not is_over(pod)


def _facts(node: Json) -> tuple[object, ...]:
    """All that scheduling may depend on: the objects without heartbeats."""
    conditions = [
        (text(condition, "type"), text(condition, "status")) for condition in items(node, "status", "conditions")
    ]
    return child(node, "spec"), labels_of(node), annotations_of(node), child(node, "status", "allocatable"), conditions
