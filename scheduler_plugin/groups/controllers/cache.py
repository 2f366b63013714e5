"""What the program knows of the cluster: objects of the kinds that its controllers look at, kept by informers; which
groups refer to which objects; and which pods a target has.

Rules that hold here:

- Objects are kept as raw JSON, without the fields that no group reads. Whoever needs one decodes it and reports what is
  wrong with it.
- Pods come from one watch of the whole cluster; a target's are found through one of its labels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from protocol.kubernetes.api import KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, child, labels_of, name_of, selects, texts
from protocol.kubernetes.resources import PODS, REPLICA_SETS, Resource
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.runtime.kubernetes.watches.kinds import FactChange, Kind, WatchReport
from scheduler_plugin.groups.objects.pods import kept_pod, killed_in
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


Key = tuple[str, str, ObjectName]
"""API group, kind and name of an object."""


GroupKey = tuple[str, ObjectName]
"""Kind and name of a group."""

K = TypeVar("K")
V = TypeVar("V")


class Index(Generic[K, V]):
    """Values by key, each under any number of keys; a key without values is dropped, or they would pile up."""

    def __init__(self) -> None:
        self._at: dict[K, set[V]] = {}

    def at(self, key: K) -> Set[V]:
        """The values at ``key``."""
        return self._at.get(key, frozenset())

    def __iter__(self) -> Iterator[K]:
        """The keys that have values."""
        return iter(self._at)

    def move(self, value: V, before: Iterable[K], after: Iterable[K]) -> None:
        """Moves ``value`` from the keys ``before`` to those ``after``."""
        old, new = set(before), set(after)
        for key in old - new:
            values = self._at.get(key, set())
            values.discard(value)
            if not values:
                self._at.pop(key, None)
        for key in new:
            self._at.setdefault(key, set()).add(value)


class _Reference(NamedTuple):
    created: str
    target: Key | None
    keys: frozenset[Key]


class References:
    """The references of all groups, by group and by object."""

    def __init__(self) -> None:
        self._of_group: dict[GroupKey, _Reference] = {}
        self._by_object: Index[Key, GroupKey] = Index()

    def set(self, group: GroupKey, created: str, target: Key | None, others: Iterable[Key] = ()) -> None:
        """Replace the references of the group, which was ``created`` then."""
        # A group whose target has changed must not stay listed at the old one.
        self.drop(group)
        keys = frozenset(others) | (frozenset() if target is None else {target})
        self._of_group[group] = _Reference(created, target, keys)
        self._by_object.move(group, (), keys)

    def drop(self, group: GroupKey) -> None:
        """The group is gone."""
        record = self._of_group.pop(group, None)
        self._by_object.move(group, () if record is None else record.keys, ())

    def target_of(self, group: GroupKey) -> Key | None:
        """Target of the group, if known."""
        record = self._of_group.get(group)
        return None if record is None else record.target

    def targets_in(self, namespace: str) -> frozenset[Key]:
        """Targets of a namespace's groups."""
        targets = (record.target for record in self._of_group.values())
        return frozenset(key for key in targets if key is not None and key[2].namespace == namespace)

    def groups_at(self, key: Key) -> list[GroupKey]:
        """Every group that refers to the object."""
        return sorted(self._by_object.at(key), key=str)

    def scaling(self, key: Key | None, but: GroupKey | None = None) -> list[str]:
        """Kind and name of every group that scales the object, the oldest first, without one of them."""
        groups = () if key is None else self._by_object.at(key)
        # Oldest first: the message names the same groups at each look.
        claims = sorted((self._of_group[group].created, *group) for group in groups if group != but)
        return [f"{kind} {name.name}" for _, kind, name in claims if self._of_group[kind, name].target == key]


def key_of(resource: Resource, name: ObjectName) -> Key:
    """Key by which an object is referred to."""
    return resource.group, resource.kind, name


Label = tuple[str, str, str]
"""Namespace, key and value."""


class PodIndex:
    """All pods that the cache knows. ``on_kill`` is called with a pod in which a container ran out of memory."""

    def __init__(self, cache: Cache, on_kill: Callable[[JsonObject], None]) -> None:
        self._cache = cache
        self._on_kill = on_kill
        self._by_label: Index[Label, ObjectName] = Index()
        cache.listen(PODS, self._changed)

    def of(self, target: JsonObject) -> list[Json]:
        """The pods of a Deployment, StatefulSet or ReplicaSet, by name."""
        selector = child(target, "spec", "selector")
        names = sorted(self._candidates(name_of(target).namespace, texts(selector, "matchLabels")), key=str)
        pods = (self._cache.get(PODS, name) for name in names)
        return [pod for pod in pods if pod is not None and selects(selector, labels_of(pod))]

    def _candidates(self, namespace: str, labels: dict[str, str]) -> Iterator[ObjectName]:
        """The pods with the rarest of ``labels``; without any, all of the namespace."""
        if labels:
            candidates = [self._by_label.at((namespace, key, value)) for key, value in labels.items()]
            # A pod has to carry all of the labels, so the shortest list is enough to look through.
            yield from min(candidates, key=len)
        else:
            # A selector with `matchExpressions` alone names no label to look up.
            yield from (name for name in self._cache.objects(PODS) if name.namespace == namespace)

    def _changed(self, change: FactChange[Json]) -> None:
        before, after = (_labels(change.name, pod) for pod in (change.before, change.after))
        self._by_label.move(change.name, before, after)
        # Only new kills: a pod's status repeats the last one in every event.
        if change.after is not None and set(killed_in(change.after)) - set(killed_in(change.before or {})):
            self._on_kill(change.after)


def _labels(name: ObjectName, pod: JsonObject | None) -> set[Label]:
    return set() if pod is None else {(name.namespace, key, value) for key, value in labels_of(pod).items()}
