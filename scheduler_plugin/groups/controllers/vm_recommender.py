"""Recommends for Hvpas with VMs as targets, from the reports of agents (S1.1)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Never

from protocol.kubernetes.api import ApiError
from protocol.kubernetes.conditions import stamped
from protocol.kubernetes.objects import Json, JsonObject, annotations_of, child, name_of, uid_of, version_of
from protocol.kubernetes.resources import (
    HORIZONTAL_AUTOSCALERS,
    HVPAS,
    VERTICAL_AUTOSCALERS,
    VIRTUAL_MACHINES,
    VM_GROUPS,
    Resource,
)
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_RECOMMENDATION, ANNOTATION_USE_HISTORY
from protocol.runtime.kubernetes.lease import NotLeadingError
from protocol.runtime.kubernetes.work_queue import WorkQueue
from protocol.units import Bytes
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.controllers.controller import GroupsContext
from scheduler_plugin.groups.controllers.member_agents import WAITING_WORKERS, MemberAgents
from scheduler_plugin.groups.controllers.policies import GroupFacts, GroupPolicy
from scheduler_plugin.groups.controllers.watches import GroupWatches
from scheduler_plugin.groups.core.recommender.horizontal import DesiredCounts, ReplicaUse
from scheduler_plugin.groups.core.recommender.horizontal import recommended as horizontal
from scheduler_plugin.groups.core.recommender.vertical import (
    decode_history,
    encode_history,
    observed,
    ran_out_of_memory,
)
from scheduler_plugin.groups.core.recommender.vertical import recommended as vertical
from scheduler_plugin.groups.core.workload import ResourceList
from scheduler_plugin.groups.objects.targets import OF_PODS, VM_CONTAINER
from scheduler_plugin.groups.objects.vm_use import (
    GuestUse,
    has_recommendation,
    hpa_status,
    recommendation_annotation,
    rules_of,
    target_vms,
    uses,
    vpa_status,
)
from scheduler_plugin.groups.objects.writes import Write

LOG: Final = logging.getLogger("autoscale.groups")
HISTORY: Final = "containers"
DEPENDENCIES: Final = (HVPAS, HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS, VIRTUAL_MACHINES, VM_GROUPS)


class VmRecommender:
    """Recommends for Hvpas of VMs."""

    def __init__(
        self, context: GroupsContext, watches: GroupWatches, agents: MemberAgents, policy: GroupPolicy
    ) -> None:
        """``policy`` is the policy of the groups."""
        self._policy = policy
        self._context = context
        self._watches = watches
        self._agents = agents
        self._desired_counts: dict[str, DesiredCounts] = {}
        self._term = 0
        self._kills: dict[str, int] = {}
        self._queue = WorkQueue(context.clock, WAITING_WORKERS)

    async def run(self, is_on: Callable[[], bool]) -> None:
        """Recommend for every group at each interval until cancelled; while not ``is_on``, remove our annotations."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WAITING_WORKERS):
                tasks.create_task(self._queue.serve(partial(self._reconcile, is_on)))
            tasks.create_task(self._enqueue_all())

    async def _enqueue_all(self) -> Never:
        while True:
            # Check each time, because the Lease may change.
            if self._context.acts(*DEPENDENCIES):
                for name in self._context.cache.objects(self._policy.kind):
                    self._queue.add(name)
                self._forget_deleted()
            await self._context.clock.sleep(self._context.interval)

    def _forget_deleted(self) -> None:
        def live(kind: Resource) -> set[str]:
            return {uid_of(obj) for obj in self._context.cache.objects(kind).values()}

        # A group that scales keeps creating and deleting VMs.
        vms, hpas = live(VIRTUAL_MACHINES), live(HORIZONTAL_AUTOSCALERS)
        self._kills = {uid: kills for uid, kills in self._kills.items() if uid in vms}
        self._desired_counts = {uid: desires for uid, desires in self._desired_counts.items() if uid in hpas}

    async def _reconcile(self, is_on: Callable[[], bool], name: ObjectName) -> None:
        group = self._context.cache.get(self._policy.kind, name)
        if group is None or not self._context.acts(*DEPENDENCIES):
            return
        try:
            facts = self._watches.facts(self._policy, group)
            await (self._recommend(facts) if is_on() else self._remove_annotations(facts))
        except (ApiError, NotLeadingError) as error:
            LOG.info(texts.NOT_RECOMMENDED, extra={"group": str(name), "reason": str(error)})

    async def _recommend(self, facts: GroupFacts) -> None:
        # For pods the cluster's own VPA recommender and HPA controller recommend.
        if facts.desired is None or facts.target is None or facts.desired.target.resource in OF_PODS:
            return
        vms = target_vms(facts.target, self._context.cache.objects(VIRTUAL_MACHINES))
        answers = await asyncio.gather(*(self._agents.use(vm) for vm in vms))
        # By UID, because a recreated VM is another guest.
        by_uid = {uid_of(vm): answer for vm, answer in zip(vms, answers, strict=True)}
        self._forget_earlier_terms()
        usage = [*uses(vms, by_uid)]
        if facts.hpa is not None:
            # A single VM has no count.
            replicas = child(facts.target, "spec").get("replicas")
            current = replicas if isinstance(replicas, int) else len(usage)
            await self._horizontal(facts.hpa, current, [replica for replica, _ in usage])
        if facts.vpa is not None:
            await self._vertical(facts.vpa, [amounts for _, amounts in usage], self._killed(by_uid))

    def _forget_earlier_terms(self) -> None:
        """Forget what another leader may have acted on since, even if it led for less than an interval."""
        term = self._context.writer.leadership.term
        if term != self._term:
            self._term, self._desired_counts, self._kills = term, {}, {}

    async def _remove_annotations(self, facts: GroupFacts) -> None:
        for kind, autoscaler in ((HORIZONTAL_AUTOSCALERS, facts.hpa), (VERTICAL_AUTOSCALERS, facts.vpa)):
            if autoscaler is not None and has_recommendation(autoscaler):
                # None removes it.
                await self._annotate(kind, autoscaler, {ANNOTATION_RECOMMENDATION: None})

    async def _horizontal(self, hpa: JsonObject, current: int, replicas: list[ReplicaUse]) -> None:
        now = self._context.clock.wall()
        # In memory only, as in the HPA controller. Without a memory the present count is kept for the whole window.
        previous = self._desired_counts.get(uid_of(hpa), DesiredCounts(((now, current),)))
        recommendation, self._desired_counts[uid_of(hpa)] = horizontal(rules_of(hpa), current, replicas, previous, now)
        await self._note(HORIZONTAL_AUTOSCALERS, hpa, hpa_status(hpa, current, recommendation), {})

    def _killed(self, reports: Mapping[str, GuestUse]) -> Bytes | None:
        """Largest memory of a guest in which the kernel has OOM-killed a process since the last round; None if none.

        The first count of a guest, and a count that fell because the guest rebooted, do not show a recent kill.
        """
        sizes: list[Bytes] = []
        for uid, use in reports.items():
            before = self._kills.get(uid)
            # If the count is unknown, keep the earlier one.
            if use.kills is not None:
                self._kills[uid] = use.kills
                # The guest's total, because the kernel ran out of all of it.
                size = use.memory_total or use.memory
                if before is not None and use.kills > before and size is not None:
                    sizes.append(size)
        return max(sizes, default=None)

    async def _vertical(self, vpa: JsonObject, amounts: list[ResourceList], killed_at: Bytes | None) -> None:
        if not any(amounts):
            return
        now = self._context.clock.wall()
        history = decode_history(_stored_history(vpa), HISTORY, now=now)
        after = observed(history, VM_CONTAINER, amounts, now)
        if killed_at is not None:
            after = ran_out_of_memory(after, VM_CONTAINER, killed_at, now)
        recommendation = vertical(after, len(amounts))
        if recommendation is None:
            return
        # Compact, because all annotations of an object share 256 KiB.
        encoded = json.dumps({HISTORY: encode_history(after)}, separators=(",", ":"))
        await self._note(VERTICAL_AUTOSCALERS, vpa, vpa_status(recommendation), {ANNOTATION_USE_HISTORY: encoded})

    async def _note(self, kind: Resource, about: JsonObject, status: Json, more: Json) -> None:
        """Store ``status`` and ``more`` in annotations, unless they are unchanged."""
        desired = {**recommendation_annotation(stamped(status, timestamp(self._context.clock.wall()))), **more}
        current = annotations_of(about)
        if any(current.get(name) != value for name, value in desired.items()):
            await self._annotate(kind, about, desired)

    async def _annotate(self, kind: Resource, about: JsonObject, annotations: Json) -> None:
        body: Json = {"metadata": {"annotations": annotations}}
        write = Write("recommendation", kind, name_of(about), body, version=version_of(about))
        self._context.cache.learn(kind, await self._context.writer.do(write))


def _stored_history(vpa: JsonObject) -> Json:
    """The stored history of use; empty if missing or undecodable."""
    try:
        decoded = json.loads(annotations_of(vpa).get(ANNOTATION_USE_HISTORY, "{}"))
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}
