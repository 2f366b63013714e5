"""Looks at the databases of members, no more often than needed: each look costs the guest a query."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from protocol.kubernetes.objects import JsonObject, uid_of
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scheduler_plugin.groups.controllers.member_agents import MemberAgents
from scheduler_plugin.groups.core.replicas.members import DatabaseLook, DatabaseState
from scheduler_plugin.groups.core.replicas.scaling import LoadWindow

SETTLED: Final = Seconds(10.0)
"""How old an answer of a replica that serves may be."""

SOON: Final = Seconds(1.9)
"""The same for one that starts or drains, because a step waits for it."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The last question to a database and its answer. ``heard_at`` is when it last gave one, or was first asked."""

    at: Instant
    heard_at: Instant
    state: DatabaseState | None


class MemberLooks:
    """The last answer of every database that was asked, and the load of every VM over a window."""

    def __init__(self, agents: MemberAgents, clock: Clock) -> None:
        self._agents = agents
        self._clock = clock
        self._asked: dict[str, _Asked] = {}
        self._windows: dict[str, LoadWindow] = {}

    async def look(self, vms: Iterable[tuple[JsonObject, Seconds]]) -> dict[str, DatabaseLook]:
        """Database status of ``vms``, by UID; each answer may be as old as stated beside it."""
        now = self._clock.now()
        wanted = {uid_of(vm): (vm, oldest) for vm, oldest in vms}
        stale = [vm for uid, (vm, oldest) in wanted.items() if self._age(uid, now) > oldest]
        answers = await asyncio.gather(*(self._agents.database(vm) for vm in stale))
        for vm, answer in zip(stale, answers, strict=True):
            before = self._asked.get(uid_of(vm))
            # A database that never answered counts as silent since the first question.
            heard_at = now if answer is not None or before is None else before.heard_at
            self._asked[uid_of(vm)] = _Asked(now, heard_at, answer)
        return {uid: _look(self._asked[uid], now) for uid in wanted}

    async def loads(self, vms: Iterable[JsonObject], span: Seconds) -> dict[str, float | None]:
        """Mean busy CPUs of each VM over the last ``span``, by UID; None if unknown."""
        queried = list(vms)
        answers = await asyncio.gather(*(self._agents.cpu_count(vm) for vm in queried))
        # After the answers: a slow agent must not date its count too early.
        now = self._clock.now()
        for vm, answer in zip(queried, answers, strict=True):
            before = self._windows.get(uid_of(vm), LoadWindow(span))
            # The window may have changed in the group's spec since the last look.
            self._windows[uid_of(vm)] = replace(before, span=span).after(answer, now)
        return {uid_of(vm): self._windows[uid_of(vm)].mean(now) for vm in queried}

    def forget_load(self, uid: str) -> None:
        """Drops the counts of a VM that does not serve."""
        # They would mix booting and copying with the load of clients.
        self._windows.pop(uid, None)

    def forget(self, uid: str) -> None:
        """The VM is gone."""
        self._asked.pop(uid, None)
        self.forget_load(uid)

    def _age(self, uid: str, now: Instant) -> float:
        last = self._asked.get(uid)
        return float("inf") if last is None else now - last.at


def _look(asked: _Asked, now: Instant) -> DatabaseLook:
    return DatabaseLook(asked.state, None if asked.state is not None else Seconds(now - asked.heard_at))
