"""Looks at the databases of members, not more often than it is worth: each look costs its guest a query.

An emulated guest on a busy machine was seen to work on one for a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.objects import JsonObject, uid_of
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scheduler_plugin.groups.controllers.member_agents import MemberAgents
from scheduler_plugin.groups.core.replicas.members import DatabaseState

SETTLED: Final = Seconds(10.0)
"""How old an answer of a replica that serves may be."""

SOON: Final = Seconds(1.9)
"""The same of one that starts or drains, which is waited for."""


@dataclass(frozen=True, slots=True)
class _Look:
    at: Instant
    state: DatabaseState | None


class MemberLooks:
    """The last answer of every database that was asked."""

    def __init__(self, agents: MemberAgents, clock: Clock) -> None:
        self._agents = agents
        self._clock = clock
        self._looks: dict[str, _Look] = {}

    async def look(self, vms: Iterable[tuple[JsonObject, Seconds]]) -> dict[str, DatabaseState | None]:
        """How the databases of ``vms`` are, by UID; an answer may be as old as is said beside each."""
        now = self._clock.now()
        wanted = {uid_of(vm): (vm, oldest) for vm, oldest in vms}
        stale = [vm for uid, (vm, oldest) in wanted.items() if self._age(uid, now) > oldest]
        answers = await asyncio.gather(*(self._agents.database(vm) for vm in stale))
        self._looks.update({uid_of(vm): _Look(now, answer) for vm, answer in zip(stale, answers, strict=True)})
        return {uid: self._looks[uid].state for uid in wanted}

    async def loads(self, vms: Iterable[JsonObject]) -> dict[str, float | None]:
        """How many CPUs of each VM are busy, by UID."""
        asked = list(vms)
        answers = await asyncio.gather(*(self._agents.use(vm) for vm in asked))
        return {uid_of(vm): answer.cores_busy for vm, answer in zip(asked, answers, strict=True)}

    def forget(self, uid: str) -> None:
        """The VM is gone."""
        self._looks.pop(uid, None)

    def _age(self, uid: str, now: Instant) -> float:
        last = self._looks.get(uid)
        return float("inf") if last is None else now - last.at
