"""Caches, writes guarded by the Lease, and work queues of all controllers.

- Cached objects are JSON without unused fields. The code that uses them decodes them and reports errors.
- Each write ends before the Lease expires. Writes are not retried here.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from prometheus_client import Counter

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, child, controller_of, name_of, uid_of, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import (
    HORIZONTAL_AUTOSCALERS,
    HVPAS,
    MERGE_PATCH,
    PODS,
    REPLICA_SETS,
    STRATEGIC_PATCH,
    TORTOISES,
    Resource,
)
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.events import EventRecord, event_body
from protocol.runtime.kubernetes.lease import Leadership, NotLeadingError
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.runtime.kubernetes.watches.kinds import FactChange, Kind, WatchReport
from protocol.runtime.kubernetes.work_queue import WorkQueue
from protocol.units import Seconds
from scheduler_plugin.groups.objects.pods import trimmed_pod, trimmed_workload
from scheduler_plugin.groups.objects.targets import TEMPLATED
from scheduler_plugin.groups.objects.writes import Write, difference, scalable_owner
from scheduler_plugin.groups.settings import GroupsSettings
from scheduler_plugin.groups.telemetry import GroupsTelemetry

Listener = Callable[[FactChange[Json]], None]
_NONE: Final[Mapping[ObjectName, Json]] = {}


class Cache:
    """Cached objects of several kinds. Listeners run in order, and must return quickly."""

    def __init__(self, kinds: Iterable[Resource], report: WatchReport) -> None:
        self._listeners: dict[Resource, list[Listener]] = {}
        self._listed: set[Resource] = set()
        # `dict.fromkeys` drops duplicates. Optional: a missing kind counts as empty, so that the program runs without
        # VPAs.
        self._informers: dict[Resource, FactInformer[Json]] = {
            kind: FactInformer(
                Kind(kind, partial(trimmed, kind), is_optional=True),
                partial(self._changed, kind),
                report,
            )
            for kind in dict.fromkeys(kinds)
        }
        self.synced = asyncio.Event()

    @property
    def missing(self) -> list[str]:
        """Kinds that have not been listed yet."""
        return sorted(kind.plural for kind in self._informers if kind not in self._listed)

    def lacks(self, kind: Resource) -> bool:
        """Return True if the cluster has no such kind."""
        informer = self._informers.get(kind)
        return informer is not None and informer.is_missing

    def objects(self, kind: Resource) -> Mapping[ObjectName, Json]:
        """All objects of a kind by name. Do not modify them."""
        informer = self._informers.get(kind)
        return _NONE if informer is None else informer.facts

    def get(self, kind: Resource, name: ObjectName) -> Json | None:
        """One object; None if missing."""
        return self.objects(kind).get(name)

    def listen(self, kind: Resource, listener: Listener) -> None:
        """Call ``listener`` on every later change of an object of that kind."""
        self._listeners.setdefault(kind, []).append(listener)

    def learn(self, kind: Resource, obj: JsonObject) -> None:
        """Cache the object that the API server returned for a write, so that the next reconcile sees it."""
        informer = self._informers.get(kind)
        if informer is not None:
            informer.learn(obj)

    def read_again(self) -> None:
        """List all kinds again, because etcd was restored."""
        for informer in self._informers.values():
            informer.read_again()

    @property
    def kinds(self) -> Collection[Resource]:
        """The cached kinds."""
        return self._informers.keys()

    async def refresh(self, kind: Resource) -> None:
        """Return once a list that started after this call is complete: it includes all earlier writes.

        ``run`` must be running.
        """
        await self._informers[kind].refresh()

    async def run(self, api: KubernetesApi, clock: Clock) -> None:
        """Run all watches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for kind, informer in self._informers.items():
                tasks.create_task(informer.run(api, clock, partial(self._was_listed, kind)))

    def _was_listed(self, kind: Resource) -> None:
        self._listed.add(kind)
        if not self.missing:
            self.synced.set()

    def _changed(self, kind: Resource, change: FactChange[Json]) -> None:
        for listener in self._listeners.get(kind, ()):
            listener(change)


def trimmed(kind: Resource, obj: JsonObject) -> Json:
    """The object with only the fields to cache: without ``managedFields``, of pods only sizes and OOM kills, of pod
    templates only sizes.

    Of a Deployment's ReplicaSets only the metadata: there are up to ten old ones of 20 KiB each, never scaled by us.
    """
    if kind is PODS:
        return trimmed_pod(obj)
    # `managedFields` can be larger than the rest, and only conflicts need it.
    metadata = {name: value for name, value in child(obj, "metadata").items() if name != "managedFields"}
    if kind in TEMPLATED:
        # Of the owners only the controller matters. A tenant's workload may have thousands, and tens of thousands of
        # labels.
        owner = controller_of(obj)
        metadata = {name: value for name, value in metadata.items() if name not in {"labels", "ownerReferences"}}
        metadata |= {"ownerReferences": [owner]} if owner else {}
    if kind is REPLICA_SETS and scalable_owner(obj):
        return {"metadata": metadata}
    return {**(trimmed_workload(obj) if kind in TEMPLATED else obj), "metadata": metadata}


STALE_CACHE: Final = frozenset({RefusalKind.CONFLICT, RefusalKind.ALREADY_EXISTS, RefusalKind.NOT_FOUND})
"""Refusals that only mean that the cache was stale."""

TIMEOUT: Final = Seconds(3.0)
COMPONENT: Final = "autoscale-groups"
NO_DRY_RUN: Final = "does not support dry run"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes to the API server while this process leads.

    All methods raise ``NotLeadingError``, ``ApiRefusedError`` or ``ApiUnknownError``. ``writes`` counts writes by kind
    and outcome: ``done``, ``refused`` or ``unknown``.
    """

    api: KubernetesApi
    leadership: Leadership
    clock: Clock
    writes: Counter

    async def do(self, write: Write) -> JsonObject:
        """Send a write; return the new object, or the Scale for ``/scale``."""
        return await self._call(write.what, _creation(write.path, write.body) if write.creates else _patch(write))

    async def dry_run(self, write: Write) -> None:
        """Send a patch as a dry run.

        If a webhook does not support dry runs, nothing is raised: only the write itself can tell.
        """
        try:
            await self._call("rehearsal", _patch(write, {"dryRun": "All"}))
        except ApiRefusedError as error:
            if NO_DRY_RUN not in str(error):
                raise

    async def delete(self, resource: Resource, obj: JsonObject) -> None:
        """Delete the object; the API server returns 409 if it has changed or was replaced."""
        name = name_of(obj)
        # A process may stall after it has checked the Lease, and continue while another one leads. The preconditions
        # protect newer objects.
        preconditions: Json = {"uid": uid_of(obj), "resourceVersion": version_of(obj)}
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        path = resource.path(name.namespace, name.name)
        await self._call("delete", ApiCall("DELETE", path, TIMEOUT, body=body, content_type=JSON))

    async def create_event(self, event: EventRecord) -> None:
        """Create an event; one that cannot be written is dropped. Raises ``NotLeadingError``."""
        body = event_body(event, micro_timestamp(self.clock.wall()), COMPONENT)
        try:
            await self._call("event", _creation(event.path, body))
        # It must not prevent a scaling: events may be in a store of their own, which may be down.
        except ApiError:
            return

    async def _call(self, what: str, call: ApiCall) -> JsonObject:
        # Within the Lease, because a later request could overlap with a successor's writes.
        in_time = call.within(self.leadership.allowed(call.timeout))
        try:
            response = await self.api.call(in_time)
        except ApiError as error:
            # Without a response the outcome is unknown: the API server may have executed the request.
            self.writes.labels(what, "refused" if isinstance(error, ApiRefusedError) else "unknown").inc()
            raise
        self.writes.labels(what, "done").inc()
        return response


def _creation(path: str, body: Json) -> ApiCall:
    # A creation has no precondition. Names are fixed, so a second creation is refused. A late one is garbage-collected
    # with its owner, which is referred to by UID.
    return ApiCall("POST", path, TIMEOUT, body=body, content_type=JSON)


def _patch(write: Write, query: Mapping[str, str] | None = None) -> ApiCall:
    # A strategic merge patch merges containers by name; a JSON merge patch would replace the list.
    kind = STRATEGIC_PATCH if write.merges_lists else MERGE_PATCH
    return ApiCall("PATCH", write.path, TIMEOUT, query=query or {}, body=write.guarded_body, content_type=kind)


REPLICA_WRITERS: Final = (HVPAS, TORTOISES, HORIZONTAL_AUTOSCALERS)
"""Kinds whose objects may write the replicas of any target."""


@dataclass(slots=True)
class GroupsContext:
    """Objects shared by all controllers. ``settings`` can change at any time.

    ``listed_in`` is the last term of leadership in which each kind was listed.
    """

    cache: Cache
    writer: Writer
    clock: Clock
    telemetry: GroupsTelemetry
    settings: GroupsSettings
    listed_in: dict[Resource, int] = field(default_factory=dict)

    def acts(self, *kinds: Resource) -> bool:
        """Return True while this process leads and its caches of ``kinds`` have everything that earlier leaders wrote.

        Only the kinds that a group depends on, so that a kind which cannot be listed stops no other group.
        """
        leadership = self.writer.leadership
        return leadership.leads and all(self.listed_in.get(kind) == leadership.term for kind in kinds)

    @property
    def interval(self) -> Seconds:
        """Interval between reconciles of a group."""
        return Seconds(self.settings.interval_seconds)


class QueuedController(ABC):
    """Reconciles groups of one ``kind``; subclasses implement ``reconcile``."""

    workers: int = 4
    """More than one, so that a slow group does not block the others."""
    waiting_workers: int = 0
    """See ``WorkQueue``."""

    def __init__(self, context: GroupsContext, kind: Resource) -> None:
        self.kind = kind
        self._context = context
        self._queue = WorkQueue(context.clock, self.waiting_workers)

    def enqueue(self, name: ObjectName) -> None:
        """Queue one group."""
        self._queue.add(name)

    def enqueue_all(self) -> None:
        """Queue every group."""
        for name in self._context.cache.objects(self.kind):
            self._queue.add(name)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self.workers):
                # API errors and a lost Lease are expected; other exceptions are logged. All are retried.
                workers.create_task(self._queue.serve(self.reconcile, (ApiError, NotLeadingError)))

    async def _do(self, write: Write) -> Json:
        """Send a write, and cache and return the new object. Raises like ``Writer``."""
        written = dict(await self._context.writer.do(write))
        self._context.cache.learn(write.resource, written)
        return written

    async def _write_status(self, group: JsonObject, desired: Json) -> JsonObject:
        changed = difference(child(group, "status"), desired)
        if not changed:
            return group
        body: Json = {"status": changed}
        return await self._do(Write("status", self.kind, name_of(group), body, "status", version_of(group)))

    def _count(self, outcome: str) -> None:
        self._context.telemetry.reconciles.labels(self.kind.kind, outcome).inc()

    @abstractmethod
    async def reconcile(self, name: ObjectName) -> None:
        """Reconcile one group. Raises ``ApiError`` and ``NotLeadingError``."""
