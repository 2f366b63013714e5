"""The pods of every target, found by their labels, and a callback for containers that run out of memory.

Pods come from one watch of the whole cluster; a target's are found through one of its labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from protocol.kubernetes.objects import Json, JsonObject, child, labels_of, name_of, texts
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.watches.kinds import FactChange
from scheduler_plugin.groups.controllers.cache import Cache
from scheduler_plugin.groups.objects.target_pods import killed_in, selects

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
