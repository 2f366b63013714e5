"""Sizes of running and ended postgres pods, for the pods that replace them."""

from __future__ import annotations

from collections import Counter
from typing import Final, Never

import msgspec

from protocol.kubernetes.api import KubernetesApi
from protocol.kubernetes.objects import JsonObject, controller_of, text
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from protocol.pod_database import is_pod_database, parse_pod_database
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.runtime.kubernetes.watches.kinds import FactChange, Kind, WatchReport
from protocol.units import Instant, Resources, Seconds
from protocol.virtual_machine import InvalidObjectError
from scheduler_plugin.databases import OPTED_IN

REMEMBERED: Final = Seconds(3600.0)
"""How long an ended pod is remembered: longer than it takes to replace it in an upgrade or after the loss of a node."""

AT_MOST: Final = 4096
"""Maximum number of ended pods to remember. Beyond it, the namespace with most of them loses its oldest."""


class PodSize(msgspec.Struct, frozen=True):
    """Requests of a pod's postgres container, and the UID of the pod's controller (empty if none)."""

    owner: str
    size: Resources


class Predecessors:
    """Watches postgres pods while ``run`` is running, and remembers ended ones.

    They are in memory only, so after a restart there are no predecessors.
    """

    def __init__(self, clock: Clock, report: WatchReport) -> None:
        self._clock = clock
        kind: Kind[PodSize | None] = Kind(PODS, _read, labels=OPTED_IN)
        self._pods = FactInformer(kind, self._changed, report)
        # With the time of each end, in this order.
        self._ended: dict[ObjectName, tuple[PodSize, Instant]] = {}

    async def run(self, api: KubernetesApi) -> Never:
        """Watch until cancelled."""
        await self._pods.run(api, self._clock, lambda: None)

    def size_before(self, name: ObjectName, owner: str) -> Resources | None:
        """Size of the earlier pod of this name (StatefulSets reuse names), or of its controller's latest ended pod."""
        # The watch may not have reported the end of the old pod yet.
        if (pod := self._pods.facts.get(name)) is not None:
            return pod.size
        self._forget_old()
        if (ended := self._ended.get(name)) is not None:
            return ended[0].size
        # Only in the same namespace, because a pod's creator can name any owner.
        siblings = (
            pod.size
            for sibling, (pod, _) in reversed(self._ended.items())
            if owner and pod.owner == owner and sibling.namespace == name.namespace
        )
        return next(siblings, None)

    def _changed(self, change: FactChange[PodSize | None]) -> None:
        # Insert it as the last entry.
        self._ended.pop(change.name, None)
        if change.after is None and change.before is not None:
            self._ended[change.name] = change.before, self._clock.now()
            self._forget_old()

    def _forget_old(self) -> None:
        oldest = self._clock.now() - REMEMBERED
        while self._ended and next(iter(self._ended.values()))[1] < oldest:
            del self._ended[next(iter(self._ended))]
        if len(self._ended) > AT_MOST:
            # Otherwise, anyone who creates and deletes thousands of pods would displace all others' pods.
            largest, _ = Counter(name.namespace for name in self._ended).most_common(1)[0]
            del self._ended[next(name for name in self._ended if name.namespace == largest)]


def _read(pod: JsonObject) -> PodSize | None:
    if not is_pod_database(pod):
        return None
    try:
        return PodSize(text(controller_of(pod), "uid"), parse_pod_database(pod).use)
    except InvalidObjectError:
        return None
