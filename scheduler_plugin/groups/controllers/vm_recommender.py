"""Recommends for Hvpas whose targets are VMs, from what their agents say (S1.1).

Rules that hold here:

- It notes, as an annotation and in the same words, what an HPA controller and a VPA recommender would write into the
  status: a status has one writer, and a cluster's HPA controller writes that of every HPA.
- It runs only where the settings say so (``recommender: agents``), else it takes back what it noted.
- CPU and memory come from the agents; a guest whose kernel killed a process needs more than it had.
- Histories of use stand in an annotation of the VPA, so that a restart forgets nothing; what was desired in the last
  minutes is forgotten, as an HPA controller does.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Never

from protocol.kubernetes.conditions import stamped
from protocol.kubernetes.objects import Json, JsonObject, annotations_of, name_of, uid_of, version_of
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS, VIRTUAL_MACHINES, Resource
from protocol.kubernetes.timestamps import timestamp
from protocol.names import ANNOTATION_RECOMMENDATION, ANNOTATION_USE_HISTORY
from protocol.units import Bytes
from scheduler_plugin.cluster.api import ApiError
from scheduler_plugin.groups.controllers.member_agents import MemberAgents
from scheduler_plugin.groups.controllers.queued import GroupsContext
from scheduler_plugin.groups.controllers.surroundings import GroupSurroundings
from scheduler_plugin.groups.core.recommender.checkpoint import decode_history, encode_history
from scheduler_plugin.groups.core.recommender.horizontal import Desires
from scheduler_plugin.groups.core.recommender.horizontal import recommended as horizontal
from scheduler_plugin.groups.core.recommender.vertical import observed, ran_out_of_memory
from scheduler_plugin.groups.core.recommender.vertical import recommended as vertical
from scheduler_plugin.groups.objects.targets import TARGET_KINDS, VM_CONTAINER, TargetFields
from scheduler_plugin.groups.objects.vm_use import (
    GuestUse,
    VmUse,
    has_note,
    hpa_status,
    note,
    rules_of,
    uses,
    vms_of,
    vpa_status,
)
from scheduler_plugin.groups.objects.writes import Write
from scheduler_plugin.groups.policies.facts import GroupFacts
from scheduler_plugin.groups.policies.policy import GroupPolicy
from scheduler_plugin.lease import NotLeadingError

LOG: Final = logging.getLogger("autoscale.groups")

HISTORY: Final = "containers"


class VmRecommender:
    """The recommender of one process."""

    def __init__(self, context: GroupsContext, surroundings: GroupSurroundings, agents: MemberAgents) -> None:
        self._context = context
        self._surroundings = surroundings
        self._agents = agents
        self._desires: dict[str, Desires] = {}
        self._kills: dict[str, int] = {}

    async def run(self, policy: GroupPolicy, is_on: Callable[[], bool]) -> Never:
        """Looks at every group of ``policy`` each interval, while ``is_on``, for ever."""
        await self._context.cache.synced.wait()
        while True:
            if self._context.writer.leadership.leads:
                for group in list(self._context.cache.objects(policy.kind).values()):
                    await self._look_at(policy, group, self._recommend if is_on() else self._take_back)
            await self._context.clock.sleep(self._context.interval())

    async def _look_at(
        self, policy: GroupPolicy, group: JsonObject, act: Callable[[GroupFacts], Awaitable[None]]
    ) -> None:
        try:
            await act(self._surroundings.facts(policy, group))
        except (ApiError, NotLeadingError) as error:
            LOG.info("a recommendation was not written", extra={"group": str(name_of(group)), "reason": str(error)})
        except Exception:  # one group must not end the program of all others
            LOG.exception("a group cannot be recommended for", extra={"group": str(name_of(group))})

    async def _recommend(self, facts: GroupFacts) -> None:
        if facts.arrangement is None or facts.target is None:
            return
        reference = facts.arrangement.target
        if TARGET_KINDS[reference.group, reference.kind].shape is TargetFields.TEMPLATE:
            return
        vms = vms_of(facts.target, self._context.cache.objects(VIRTUAL_MACHINES).values())
        answers = await asyncio.gather(*(self._agents.use(vm) for vm in vms))
        said = {uid_of(vm): answer for vm, answer in zip(vms, answers, strict=True)}
        found = list(uses(vms, said))
        if facts.hpa is not None:
            await self._horizontal(facts.hpa, found)
        if facts.vpa is not None:
            await self._vertical(facts.vpa, found, self._killed(said))

    async def _take_back(self, facts: GroupFacts) -> None:
        """Leaves recommending to the cluster."""
        for kind, found in ((HORIZONTAL_AUTOSCALERS, facts.hpa), (VERTICAL_AUTOSCALERS, facts.vpa)):
            if found is not None and has_note(found):
                await self._annotate(kind, found, {ANNOTATION_RECOMMENDATION: None})

    async def _horizontal(self, hpa: JsonObject, found: list[VmUse]) -> None:
        known = self._desires.get(uid_of(hpa), Desires())
        now, replicas = self._context.clock.wall(), [each.replica for each in found]
        said, self._desires[uid_of(hpa)] = horizontal(rules_of(hpa), len(found), lambda _: replicas, known, now)
        await self._note(HORIZONTAL_AUTOSCALERS, hpa, hpa_status(hpa, len(found), said), {})

    def _killed(self, said: Mapping[str, GuestUse]) -> Bytes | None:
        """The most memory that a guest had in which the kernel has killed a process since the last look; else None.

        A count that is seen for the first time, or fell, is that of a guest which has booted, and not a present value.
        """
        had: list[Bytes] = []
        for uid, each in said.items():
            before = self._kills.get(uid)
            if each.kills is not None:
                self._kills[uid] = each.kills
                size = each.memory_total or each.memory
                if before is not None and each.kills > before and size is not None:
                    had.append(size)
        return max(had, default=None)

    async def _vertical(self, vpa: JsonObject, found: list[VmUse], killed_at: Bytes | None) -> None:
        if not any(each.amounts for each in found):
            return
        now = self._context.clock.wall()
        history = decode_history(_kept(vpa), HISTORY, now=now)
        after = observed(history, VM_CONTAINER, [each.amounts for each in found], now)
        if killed_at is not None:
            after = ran_out_of_memory(after, VM_CONTAINER, killed_at, now)
        said = vertical(after, len(found))
        if said is None:
            return
        kept = json.dumps({HISTORY: encode_history(after)}, separators=(",", ":"))
        await self._note(VERTICAL_AUTOSCALERS, vpa, vpa_status(said), {ANNOTATION_USE_HISTORY: kept})

    async def _note(self, kind: Resource, about: JsonObject, status: Json, more: Json) -> None:
        """Notes ``status`` and ``more`` on the object, where it does not say so yet."""
        wanted = {**note(stamped(status, timestamp(self._context.clock.wall()))), **more}
        known = annotations_of(about)
        if any(known.get(name) != value for name, value in wanted.items()):
            await self._annotate(kind, about, wanted)

    async def _annotate(self, kind: Resource, about: JsonObject, annotations: Json) -> None:
        body: Json = {"metadata": {"annotations": annotations}}
        write = Write("recommendation", kind, name_of(about), body, version=version_of(about))
        self._context.cache.learn(kind, await self._context.writer.do(write))


def _kept(vpa: JsonObject) -> Json:
    """Decoded annotation; empty if it cannot be decoded."""
    try:
        found = json.loads(annotations_of(vpa).get(ANNOTATION_USE_HISTORY, "{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
