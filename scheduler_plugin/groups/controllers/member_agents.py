"""State of databases and load of VMs, from the agents of a group's VMs (S4.3).

Only the agent in a VM's pod can reach the guest; it listens at a port of the pod. Databases are queried only as often
as needed, because each query costs the guest time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, Final, Protocol, TypeVar

import httpx2 as httpx
import msgspec

from protocol.guest.database import DatabaseState
from protocol.kubernetes.objects import JsonObject, name_of, text, uid_of
from protocol.runtime.clock import Clock
from protocol.runtime.explaining.explain_access import audience_of_agents
from protocol.runtime.serving.fair_slots import FairSlots
from protocol.runtime.url_hosts import url_host
from protocol.units import Bytes, Instant, QuantityError, Seconds
from scheduler_plugin.bounded_responses import bounded_body
from scheduler_plugin.groups.core.replicas.members import DatabaseObservation
from scheduler_plugin.groups.core.replicas.scaling import AgentCpuCount, LoadWindow
from scheduler_plugin.groups.objects.vm_use import GuestUse
from scheduler_plugin.own_tokens import Tokens, bearer_header, no_tokens

AGENT_PORT: Final = 9101
LARGEST: Final = 256 * 1024
_TIMEOUT: Final = Seconds(5.0)
_QUICK: Final = Seconds(1.0)
_NEVER: Final = Instant(-inf)

WAITING_WORKERS: Final = 128
"""Workers that query agents. If a node is down, its agents keep many of them waiting for ``_TIMEOUT``."""

MAX_QUERIES: Final = 256
"""Maximum number of concurrent queries, and half of them for one namespace. A tenant can make his agents silent."""

T = TypeVar("T")
NotNegative = Annotated[float, msgspec.Meta(ge=0.0)]


class MemberAgents(Protocol):
    """The agents of VMs."""

    async def database(self, vm: JsonObject) -> DatabaseState | None:
        """Present state of the VM's database; None if the agent does not respond or does not know it."""

    async def use(self, vm: JsonObject) -> GuestUse:
        """Recent use of the VM; empty if the agent does not respond."""

    async def cpu_count(self, vm: JsonObject) -> AgentCpuCount | None:
        """CPU time of the VM that the agent has counted since the agent's start; None if unknown."""


class _Metrics(msgspec.Struct, frozen=True):
    cores_busy: NotNegative | None = None
    mem_used: str | None = None
    mem_total: str | None = None
    oom_kills: Annotated[int, msgspec.Meta(ge=0)] | None = None
    cpu_seconds: NotNegative | None = None
    seen_seconds: NotNegative | None = None


class _Explanation(msgspec.Struct, frozen=True):
    metrics: _Metrics | None = None


@dataclass(frozen=True, slots=True)
class HttpMemberAgents:
    """Queries agents over HTTP, at ``port`` of the pods of their VMs."""

    http: httpx.AsyncClient
    port: int = AGENT_PORT
    tokens: Tokens = no_tokens
    _slots: FairSlots = field(default_factory=lambda: FairSlots(MAX_QUERIES))

    async def database(self, vm: JsonObject) -> DatabaseState | None:
        """See ``MemberAgents``."""
        return await self._ask(vm, "/database", DatabaseState)

    async def use(self, vm: JsonObject) -> GuestUse:
        """See ``MemberAgents``."""
        answer = await self._ask(vm, "/explain", _Explanation)
        metrics = (None if answer is None else answer.metrics) or _Metrics()
        return GuestUse(metrics.cores_busy, _bytes(metrics.mem_used), _bytes(metrics.mem_total), metrics.oom_kills)

    async def cpu_count(self, vm: JsonObject) -> AgentCpuCount | None:
        """See ``MemberAgents``."""
        answer = await self._ask(vm, "/explain", _Explanation)
        metrics = None if answer is None else answer.metrics
        if metrics is None or metrics.cpu_seconds is None or metrics.seen_seconds is None:
            return None
        return AgentCpuCount(Seconds(metrics.cpu_seconds), Seconds(metrics.seen_seconds))

    async def _ask(self, vm: JsonObject, path: str, kind: type[T]) -> T | None:
        try:
            # The address is from a VM's status, so accept only IP addresses.
            host = url_host(text(vm, "status", "podIP"))
            namespace = name_of(vm).namespace
            # The audience includes the namespace, so that an agent cannot reuse the token in another one.
            headers = bearer_header(await self.tokens(audience_of_agents(namespace)))
            # The timeout includes the wait, so that a group of a thousand silent members takes no longer.
            async with asyncio.timeout(_TIMEOUT), self._slots.slot(namespace):
                # The pod's owner controls the response, and all groups share this program.
                body = await bounded_body(self.http, f"http://{host}:{self.port}{path}", headers, LARGEST, _TIMEOUT)
            return None if body is None else msgspec.json.decode(body, type=kind)
        # Retried by the next reconcile.
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError, RecursionError):
            return None


def _bytes(text: str | None) -> Bytes | None:
    try:
        return None if text is None else Bytes.parse(text)
    except QuantityError:
        return None


SERVING_MAX_AGE: Final = Seconds(10.0)
"""Maximum age of a serving replica's state."""

CHANGING_MAX_AGE: Final = Seconds(1.9)
"""The same for a starting or draining replica, because the group waits for it."""


@dataclass(frozen=True, slots=True)
class _Query:
    """The last query of a database. ``answered_at`` is when it last succeeded, or the time of the first query."""

    at: Instant
    answered_at: Instant
    state: DatabaseState | None


class MemberObservations:
    """The last state of each database, and the load of each VM over a window."""

    def __init__(self, agents: MemberAgents, clock: Clock) -> None:
        self._agents = agents
        self._clock = clock
        self._queries: dict[str, _Query] = {}
        self._windows: dict[str, LoadWindow] = {}
        self._waited_at: dict[str, Instant] = {}

    async def observe(self, vms: Iterable[tuple[JsonObject, Seconds]]) -> dict[str, DatabaseObservation]:
        """States of the databases in ``vms``, by UID. Each VM comes with the maximum age of its state."""
        now = self._clock.now()
        by_uid = {uid_of(vm): (vm, max_age) for vm, max_age in vms}
        earlier = self._queries
        stale = [vm for uid, (vm, max_age) in by_uid.items() if uid not in earlier or now - earlier[uid].at > max_age]
        answers = await asyncio.gather(*(self._agents.database(vm) for vm in stale))
        for vm, answer in zip(stale, answers, strict=True):
            before = self._queries.get(uid_of(vm))
            # If it has never answered, it has been silent since the first query.
            answered_at = now if answer is not None or before is None else before.answered_at
            self._queries[uid_of(vm)] = _Query(now, answered_at, answer)
        return {
            uid: DatabaseObservation(last.state, None if last.state is not None else Seconds(now - last.answered_at))
            for uid, last in ((uid, self._queries[uid]) for uid in by_uid)
        }

    async def loads(self, vms: Iterable[JsonObject], span: Seconds) -> dict[str, float | None]:
        """Mean busy CPUs of each VM over the last ``span``, by UID; None if unknown."""
        serving, asked_at = list(vms), self._clock.now()
        # An agent that does not respond is not waited for each time.
        queried = [vm for vm in serving if asked_at - self._waited_at.get(uid_of(vm), _NEVER) > SERVING_MAX_AGE]
        answers = await asyncio.gather(*(self._count(vm) for vm in queried))
        # Take the time after the responses, so that a slow agent's count is not dated too early.
        now = self._clock.now()
        for vm, answer in zip(queried, answers, strict=True):
            before = self._windows.get(uid_of(vm), LoadWindow(span))
            # The group's spec may have changed the window.
            self._windows[uid_of(vm)] = replace(before, span=span).after(answer, now)
        return {uid_of(vm): self._windows.get(uid_of(vm), LoadWindow(span)).mean(now) for vm in serving}

    async def _count(self, vm: JsonObject) -> AgentCpuCount | None:
        began = self._clock.now()
        answer = await self._agents.cpu_count(vm)
        if answer is None and self._clock.now() - began > _QUICK:
            self._waited_at[uid_of(vm)] = began
        return answer

    def drop_load(self, uid: str) -> None:
        """Drop the counts of a VM that does not serve, because booting and copying is not the load of clients."""
        self._windows.pop(uid, None)

    def drop(self, uid: str) -> None:
        """Drop a deleted VM."""
        self._queries.pop(uid, None)
        self._waited_at.pop(uid, None)
        self.drop_load(uid)
