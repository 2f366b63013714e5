"""What the controllers of groups have in common: a queue of names, a few workers that reconcile them, and writes, each
within the time that the Lease leaves. No write is retried here.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, child, name_of, uid_of, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import MERGE_PATCH, STRATEGIC_PATCH, Resource
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import Leadership, NotLeadingError
from protocol.runtime.kubernetes.work_queue import WorkQueue
from protocol.units import Seconds
from scheduler_plugin.cluster.events import EventRecord, event_body
from scheduler_plugin.groups.controllers.cache import Cache
from scheduler_plugin.groups.core.writes import Write, difference
from scheduler_plugin.groups.telemetry import GroupsTelemetry

PASSING: Final = frozenset({RefusalKind.CONFLICT, RefusalKind.ALREADY_EXISTS, RefusalKind.NOT_FOUND})
"""Refusals that only say that the cache was behind."""

TIMEOUT: Final = Seconds(3.0)
COMPONENT: Final = "autoscale-groups"
NO_DRY_RUN: Final = "does not support dry run"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Writer:
    """Each method raises ``NotLeadingError``, ``ApiRefusedError`` or ``ApiUnknownError`` (see ``cluster.api``).

    ``report(what, outcome)`` is called for every write: ``done``, ``refused`` or ``unknown``.
    """

    api: KubernetesApi
    leadership: Leadership
    clock: Clock
    report: Callable[[str, str], None]

    async def do(self, write: Write) -> JsonObject:
        """Carries out one write; returns the object, or its Scale, as it is now."""
        return await self._call(write.what, _creation(write.path, write.body) if write.creates else _patch(write))

    async def rehearse(self, write: Write) -> None:
        """Asks whether the API would accept a patch, and changes nothing (``dryRun``).

        An admission webhook without support for dry runs refuses the request; then only the write itself can tell.
        """
        try:
            await self._call("rehearsal", _patch(write, {"dryRun": "All"}))
        except ApiRefusedError as error:
            if NO_DRY_RUN not in str(error):
                raise

    async def delete(self, resource: Resource, found: JsonObject) -> None:
        """Deletes the object as it was ``found``; 409 if it has changed, or another one has taken its name."""
        name = name_of(found)
        # A process may stall between checking the Lease and sending, and wake when another one leads. The preconditions
        # make the API refuse to delete anything newer.
        preconditions: Json = {"uid": uid_of(found), "resourceVersion": version_of(found)}
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        path = resource.path(name.namespace, name.name)
        await self._call("delete", ApiCall("DELETE", path, TIMEOUT, body=body, content_type=JSON))

    async def tell(self, event: EventRecord) -> None:
        """Records an event; one that is refused is dropped. Raises ``ApiUnknownError`` and ``NotLeadingError``."""
        body = event_body(event, micro_timestamp(self.clock.wall()), COMPONENT)
        try:
            await self._call("event", _creation(event.path, dict(body)))
        # Events only inform; a refused one must not stop a scaling.
        except ApiRefusedError:
            return

    async def _call(self, what: str, call: ApiCall) -> JsonObject:
        # No longer than the Lease is ours: a later request could overlap with a successor's writes.
        in_time = call.within(self.leadership.allowed(call.timeout))
        try:
            response = await self.api.call(in_time)
        except ApiError as error:
            # Unknown: a request without an answer may still have been carried out.
            self.report(what, "refused" if isinstance(error, ApiRefusedError) else "unknown")
            raise
        self.report(what, "done")
        return response


def _creation(path: str, body: Json) -> ApiCall:
    # A creation cannot have a version as a precondition. Names are fixed, so the API refuses a second one; a late one
    # is collected with its owner, which is named by UID.
    return ApiCall("POST", path, TIMEOUT, body=body, content_type=JSON)


def _patch(write: Write, query: Mapping[str, str] | None = None) -> ApiCall:
    # Containers are a list: a JSON merge patch would replace all of them, a strategic one finds them by name.
    kind = STRATEGIC_PATCH if write.merges_lists else MERGE_PATCH
    return ApiCall("PATCH", write.path, TIMEOUT, query=query or {}, body=write.guarded_body, content_type=kind)


# More than one, so that a group whose look waits for the API does not hold up all others.
WORKERS: Final = 4


@dataclass(frozen=True, slots=True)
class GroupsContext:
    """Objects that all controllers share. ``interval`` is the time between reconciles of a group, in seconds."""

    cache: Cache
    writer: Writer
    clock: Clock
    telemetry: GroupsTelemetry
    interval: Callable[[], Seconds]


class QueuedController(ABC):
    """Looks at the groups of one ``kind``, each by itself; subclasses implement ``reconcile``."""

    def __init__(self, context: GroupsContext, kind: Resource) -> None:
        self.kind = kind
        self._context = context
        self._queue = WorkQueue(context.clock)

    def enqueue(self, name: ObjectName) -> None:
        """Queues one group."""
        self._queue.add(name)

    def enqueue_all(self) -> None:
        """Queues every group."""
        for name in self._context.cache.objects(self.kind):
            self._queue.add(name)

    async def run(self) -> None:
        """Works until cancelled."""
        # Before the first list every target would seem to be missing.
        await self._context.cache.synced.wait()
        async with asyncio.TaskGroup() as workers:
            for _ in range(WORKERS):
                # Errors of the API and a lost Lease are expected; any other exception is logged too. Both are retried.
                workers.create_task(self._queue.serve(self.reconcile, (ApiError, NotLeadingError)))

    async def _do(self, write: Write) -> Json:
        """Carries out one write; returns the object as it is now, which the cache learns. Raises as ``Writer``."""
        written = dict(await self._context.writer.do(write))
        self._context.cache.learn(write.resource, written)
        return written

    async def _write_status(self, group: JsonObject, wanted: Json) -> JsonObject:
        """Writes what differs; returns the group after that."""
        changed = difference(child(group, "status"), wanted)
        if not changed:
            return group
        body: Json = {"status": changed}
        return await self._do(Write("status", self.kind, name_of(group), body, "status", version_of(group)))

    def _count(self, outcome: str) -> None:
        self._context.telemetry.reconciles.labels(self.kind.kind, outcome).inc()

    @abstractmethod
    async def reconcile(self, name: ObjectName) -> None:
        """Looks at one group and writes what is due. Raises ``ApiError`` and ``NotLeadingError``."""
