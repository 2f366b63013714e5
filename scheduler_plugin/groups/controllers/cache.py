"""What the program knows of the cluster: all objects of the kinds that its controllers look at, kept by informers.

Rules that hold here:

- Objects are kept as raw JSON, without the fields that no group reads. Whoever needs one decodes it and reports what is
  wrong with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from protocol.kubernetes.api import KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, child
from protocol.kubernetes.resources import PODS, REPLICA_SETS, Resource
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.runtime.kubernetes.watches.kinds import FactChange, Kind, WatchReport
from scheduler_plugin.groups.objects.target_pods import kept_pod
from scheduler_plugin.groups.objects.targets import kept_by

Listener = Callable[[FactChange[Json]], None]
_NONE: Final[Mapping[ObjectName, Json]] = {}


class Cache:
    """The objects of several kinds. Listeners are called in order and only take notes."""

    def __init__(self, kinds: Iterable[Resource], report: WatchReport) -> None:
        self._listeners: dict[Resource, list[Listener]] = {}
        self._listed: set[Resource] = set()
        # `dict.fromkeys` drops kinds that are named twice and keeps their order.
        self._informers = {kind: self._informer(kind, report) for kind in dict.fromkeys(kinds)}
        self.synced = asyncio.Event()

    def _informer(self, kind: Resource, report: WatchReport) -> FactInformer[Json]:
        # Optional: a kind that the cluster lacks counts as empty, so the program runs without VPAs.
        watched: Kind[Json] = Kind(kind.plural, kind.path(), partial(worth_keeping, kind), is_optional=True)
        return FactInformer(watched, lambda change: self._changed(kind, change), report)

    @property
    def missing(self) -> list[str]:
        """The kinds that have not been listed yet."""
        return sorted(kind.plural for kind in self._informers if kind not in self._listed)

    def lacks(self, kind: Resource) -> bool:
        """Return True if the cluster has no such kind."""
        informer = self._informers.get(kind)
        return informer is not None and informer.is_missing

    def objects(self, kind: Resource) -> Mapping[ObjectName, Json]:
        """All objects of a kind by name. Do not change them."""
        informer = self._informers.get(kind)
        return _NONE if informer is None else informer.facts

    def get(self, kind: Resource, name: ObjectName) -> Json | None:
        """One object; None if there is none."""
        return self.objects(kind).get(name)

    def listen(self, kind: Resource, listener: Listener) -> None:
        """Calls ``listener`` with every later change of an object of that kind."""
        self._listeners.setdefault(kind, []).append(listener)

    def learn(self, kind: Resource, found: JsonObject) -> None:
        """Takes the object that the API returned for a write."""
        informer = self._informers.get(kind)
        if informer is not None:
            # The next look must not see the object as it was before our own write.
            informer.learn(found)

    def read_again(self) -> None:
        """The cluster's store was restored: all is listed again."""
        for informer in self._informers.values():
            informer.read_again()

    async def run(self, api: KubernetesApi, clock: Clock) -> None:
        """Keeps all kinds up to date, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for kind, informer in self._informers.items():
                tasks.create_task(informer.run(api, clock, partial(self._was_listed, kind)))

    def _was_listed(self, kind: Resource) -> None:
        self._listed.add(kind)
        # Decide nothing before every kind has been listed: a target that is not listed yet looks deleted.
        if not self.missing:
            self.synced.set()

    def _changed(self, kind: Resource, change: FactChange[Json]) -> None:
        for listener in self._listeners.get(kind, ()):
            listener(change)


def worth_keeping(kind: Resource, found: JsonObject) -> Json:
    """The object without its ``managedFields``; only the metadata of a Deployment's ReplicaSet; only the fields of a
    pod that sizes and kills are read from.

    A cluster has up to ten old ReplicaSets for each Deployment, of 20 KiB each in memory, and none is ever scaled.
    """
    if kind is PODS:
        return kept_pod(found)
    # `managedFields` can be larger than the rest of the object, and only a fight needs it.
    metadata = {name: value for name, value in child(found, "metadata").items() if name != "managedFields"}
    has_keeper = kind is REPLICA_SETS and kept_by(found)
    return {"metadata": metadata} if has_keeper else {**found, "metadata": metadata}
