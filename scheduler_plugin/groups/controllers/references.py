"""Which groups refer to which objects, and which pods a target has: what to reconcile when one of them changes, and
which groups scale the same target.

Pods come from one watch of the whole cluster; a target's are found through one of its labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from protocol.kubernetes.objects import Json, JsonObject, child, labels_of, name_of, texts
from protocol.kubernetes.resources import PODS, Resource
from protocol.messages import ObjectName
from scheduler_plugin.cluster.watches.kinds import FactChange
from scheduler_plugin.groups.controllers.cache import Cache
from scheduler_plugin.groups.objects.pods import killed_in, selects

Key = tuple[str, str, ObjectName]
"""API group, kind and name of an object."""


@dataclass(frozen=True, order=True, slots=True)
class Claimant:
    """A group that scales a target, ordered by age."""

    created: str
    kind: str
    namespace: str
    name: str

    @property
    def object_name(self) -> ObjectName:
        """Its name."""
        return ObjectName(self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class References:
    """The references of all groups, by group and by object."""

    def __init__(self) -> None:
        self._of_group: dict[tuple[str, ObjectName], tuple[Claimant, Key | None, frozenset[Key]]] = {}
        self._by_object: dict[Key, set[tuple[str, ObjectName]]] = {}
        self._autoscalers: dict[Key, set[Key]] = {}
        self._written_by: dict[Key, Key] = {}

    def set(self, group: Claimant, target: Key | None, others: Iterable[Key] = ()) -> None:
        """Replace the references of the group."""
        # A group whose target has changed must not stay listed at the old one.
        self.drop(group.kind, group.object_name)
        group_key = (group.kind, group.object_name)
        keys = frozenset(others) | (frozenset() if target is None else {target})
        self._of_group[group_key] = (group, target, keys)
        for key in keys:
            self._by_object.setdefault(key, set()).add(group_key)

    def drop(self, kind: str, name: ObjectName) -> None:
        """The group is gone."""
        record = self._of_group.pop((kind, name), None)
        for key in () if record is None else record[2]:
            of_key = self._by_object[key]
            of_key.discard((kind, name))
            # Empty sets would pile up for every object that ever was a target.
            if not of_key:
                del self._by_object[key]

    def target_of(self, kind: str, name: ObjectName) -> Key | None:
        """Target of the group, if known."""
        record = self._of_group.get((kind, name))
        return None if record is None else record[1]

    def targets_in(self, namespace: str) -> frozenset[Key]:
        """Targets of a namespace's groups."""
        targets = (target for _, target, _ in self._of_group.values())
        return frozenset(key for key in targets if key is not None and key[2].namespace == namespace)

    def groups_at(self, key: Key) -> list[tuple[str, ObjectName]]:
        """Kind and name of every group that refers to the object."""
        return sorted(self._by_object.get(key, ()), key=str)

    def rivals(self, kind: str, name: ObjectName) -> list[str]:
        """Kind and name of every other group that scales the same target, the oldest first."""
        record = self._of_group.get((kind, name))
        if record is None or record[1] is None:
            return []
        return [str(claimant) for claimant in self._claimants(record[1]) if claimant != record[0]]

    def targeting(self, key: Key) -> list[str]:
        """Kind and name of every group that scales the object, the oldest first."""
        return [str(claimant) for claimant in self._claimants(key)]

    def _claimants(self, key: Key) -> list[Claimant]:
        claims = (self._of_group[group] for group in self._by_object.get(key, ()))
        # Oldest first, by the order of `Claimant`: the message names the same rivals at each look.
        return sorted(claimant for claimant, target, _ in claims if target == key)

    def note_autoscaler(self, autoscaler: Key, target: Key | None) -> None:
        """Update the target of an HPA or a VPA; None if it is gone."""
        before = self._written_by.pop(autoscaler, None)
        if before is not None:
            self._autoscalers[before].discard(autoscaler)
            if not self._autoscalers[before]:
                del self._autoscalers[before]
        if target is not None:
            self._written_by[autoscaler] = target
            self._autoscalers.setdefault(target, set()).add(autoscaler)

    def autoscalers_at(self, key: Key, kind: Resource) -> list[ObjectName]:
        """Every HPA, or every VPA, that is about the object."""
        return sorted((name for _, of_kind, name in self._autoscalers.get(key, ()) if of_kind == kind.kind), key=str)


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
        self._by_label: dict[Label, set[ObjectName]] = {}
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
            candidates = [self._by_label.get((namespace, key, value), set()) for key, value in labels.items()]
            # A pod has to carry all of the labels, so the shortest list is enough to look through.
            yield from min(candidates, key=len)
        else:
            # A selector with `matchExpressions` alone names no label to look up.
            yield from (name for name in self._cache.objects(PODS) if name.namespace == namespace)

    def _changed(self, change: FactChange[Json]) -> None:
        before = _labels(change.name, change.before)
        after = _labels(change.name, change.after)
        for label in before - after:
            of_label = self._by_label[label]
            of_label.discard(change.name)
            # Without this the index would keep every label value that ever existed, such as each pod-template-hash.
            if not of_label:
                del self._by_label[label]
        for label in after - before:
            self._by_label.setdefault(label, set()).add(change.name)
        # Only new kills: a pod's status repeats the last one in every event.
        if change.after is not None and set(killed_in(change.after)) - set(killed_in(change.before or {})):
            self._on_kill(change.after)


def _labels(name: ObjectName, pod: JsonObject | None) -> set[Label]:
    return set() if pod is None else {(name.namespace, key, value) for key, value in labels_of(pod).items()}
