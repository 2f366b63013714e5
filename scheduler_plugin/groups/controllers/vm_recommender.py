"""Recommends for Hvpas whose targets are VMs, from what their agents say (S1.1)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Never

from protocol.kubernetes.api import ApiError
from protocol.kubernetes.conditions import stamped
from protocol.kubernetes.objects import Json, JsonObject, annotations_of, name_of, uid_of, version_of
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS, VIRTUAL_MACHINES, Resource
from protocol.kubernetes.timestamps import timestamp
from protocol.names import ANNOTATION_RECOMMENDATION, ANNOTATION_USE_HISTORY
from protocol.runtime.kubernetes.lease import NotLeadingError
from protocol.units import Bytes
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.controllers.controller import GroupsContext
from scheduler_plugin.groups.controllers.member_agents import MemberAgents
from scheduler_plugin.groups.controllers.policies import GroupFacts, GroupPolicy
from scheduler_plugin.groups.controllers.watches import GroupWatches
from scheduler_plugin.groups.core.recommender.horizontal import Desires, ReplicaUse
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
    has_note,
    hpa_status,
    note,
    rules_of,
    uses,
    vms_of,
    vpa_status,
)
from scheduler_plugin.groups.objects.writes import Write

LOG: Final = logging.getLogger("autoscale.groups")
HISTORY: Final = "containers"


class VmRecommender:
    """The recommender of one process."""

    def __init__(
        self, context: GroupsContext, watches: GroupWatches, agents: MemberAgents, policy: GroupPolicy
    ) -> None:
        """``policy`` is that of the groups to recommend for."""
        self._policy = policy
        self._context = context
        self._watches = watches
        self._agents = agents
        self._desires: dict[str, Desires] = {}
        self._kills: dict[str, int] = {}

    async def run(self, is_on: Callable[[], bool]) -> Never:
        """Looks at every group each interval, while ``is_on``, for ever."""
        await self._context.cache.synced.wait()
        while True:
            # Checked at each round: the Lease may come and go, and the settings may be switched while the program
            # runs.
            if self._context.writer.leadership.leads:
                # A copy: the cache may change while a group is awaited.
                for group in list(self._context.cache.objects(self._policy.kind).values()):
                    # If the settings leave recommending to the cluster, remove our own notes.
                    await self._reconcile(group, self._recommend if is_on() else self._take_back)
            await self._context.clock.sleep(self._context.interval)

    async def _reconcile(self, group: JsonObject, act: Callable[[GroupFacts], Awaitable[None]]) -> None:
        try:
            await act(self._watches.facts(self._policy, group))
        except (ApiError, NotLeadingError) as error:
            LOG.info(texts.NOT_RECOMMENDED, extra={"group": str(name_of(group)), "reason": str(error)})
        except Exception:  # one group must not end the program of all others
            LOG.exception(texts.RECOMMENDING_FAILED, extra={"group": str(name_of(group))})

    async def _recommend(self, facts: GroupFacts) -> None:
        # The cluster's own VPA recommender and HPA controller look after pods.
        if facts.desired is None or facts.target is None or facts.desired.target.resource in OF_PODS:
            return
        vms = vms_of(facts.target, self._context.cache.objects(VIRTUAL_MACHINES).values())
        answers = await asyncio.gather(*(self._agents.use(vm) for vm in vms))
        # By UID: a VM that was made again under the same name is another guest.
        by_uid = {uid_of(vm): answer for vm, answer in zip(vms, answers, strict=True)}
        usage = [*uses(vms, by_uid)]
        if facts.hpa is not None:
            await self._horizontal(facts.hpa, [replica for replica, _ in usage])
        if facts.vpa is not None:
            await self._vertical(facts.vpa, [amounts for _, amounts in usage], self._killed(by_uid))

    async def _take_back(self, facts: GroupFacts) -> None:
        for kind, autoscaler in ((HORIZONTAL_AUTOSCALERS, facts.hpa), (VERTICAL_AUTOSCALERS, facts.vpa)):
            if autoscaler is not None and has_note(autoscaler):
                # None removes the annotation.
                await self._annotate(kind, autoscaler, {ANNOTATION_RECOMMENDATION: None})

    async def _horizontal(self, hpa: JsonObject, replicas: list[ReplicaUse]) -> None:
        previous = self._desires.get(uid_of(hpa), Desires())
        now = self._context.clock.wall()
        # Desired counts of the last minutes live in memory only, as in an HPA controller.
        recommendation, self._desires[uid_of(hpa)] = horizontal(
            rules_of(hpa), len(replicas), lambda _: replicas, previous, now
        )
        await self._note(HORIZONTAL_AUTOSCALERS, hpa, hpa_status(hpa, len(replicas), recommendation), {})

    def _killed(self, said: Mapping[str, GuestUse]) -> Bytes | None:
        """The most memory that a guest had in which the kernel has killed a process since the last look; else None.

        Neither the first count of a guest nor one that fell, because the guest has booted, says that a kill is recent.
        """
        had: list[Bytes] = []
        for uid, use in said.items():
            before = self._kills.get(uid)
            # Unknown is not zero, so an earlier count stays.
            if use.kills is not None:
                self._kills[uid] = use.kills
                # The total counts: the kernel ran out of all memory of the guest, whatever one process used.
                size = use.memory_total or use.memory
                if before is not None and use.kills > before and size is not None:
                    had.append(size)
        return max(had, default=None)

    async def _vertical(self, vpa: JsonObject, amounts: list[ResourceList], killed_at: Bytes | None) -> None:
        if not any(amounts):
            return
        now = self._context.clock.wall()
        # The history is in an annotation of the VPA, so a restart forgets nothing.
        history = decode_history(_kept(vpa), HISTORY, now=now)
        after = observed(history, VM_CONTAINER, amounts, now)
        if killed_at is not None:
            after = ran_out_of_memory(after, VM_CONTAINER, killed_at, now)
        recommendation = vertical(after, len(amounts))
        if recommendation is None:
            return
        # No spaces: all annotations of an object share 256 KiB.
        encoded = json.dumps({HISTORY: encode_history(after)}, separators=(",", ":"))
        await self._note(VERTICAL_AUTOSCALERS, vpa, vpa_status(recommendation), {ANNOTATION_USE_HISTORY: encoded})

    async def _note(self, kind: Resource, about: JsonObject, status: Json, more: Json) -> None:
        """Notes ``status`` and ``more`` on the object, if it does not have them yet."""
        # In an annotation: a status has one writer, and the cluster's HPA controller writes that of every HPA.
        wanted = {**note(stamped(status, timestamp(self._context.clock.wall()))), **more}
        current = annotations_of(about)
        # An unchanged recommendation must not cost a write at each look.
        if any(current.get(name) != value for name, value in wanted.items()):
            await self._annotate(kind, about, wanted)

    async def _annotate(self, kind: Resource, about: JsonObject, annotations: Json) -> None:
        body: Json = {"metadata": {"annotations": annotations}}
        write = Write("recommendation", kind, name_of(about), body, version=version_of(about))
        self._context.cache.learn(kind, await self._context.writer.do(write))


def _kept(vpa: JsonObject) -> Json:
    """The decoded history; empty if there is none or it cannot be decoded."""
    try:
        decoded = json.loads(annotations_of(vpa).get(ANNOTATION_USE_HISTORY, "{}"))
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}
