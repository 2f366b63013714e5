"""A group whose pods follow an order with a delay, and whose metrics lag behind.

A new size reaches pods by a rolling update, as pods are deleted, or in place; replicas that are not ordered go at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from math import inf
from typing import Final

from protocol.units import MilliCpu
from scheduler_plugin.groups.core.recommender.horizontal import ReplicaUse
from scheduler_plugin.groups.core.workload import ResourceList, RunningPods, SizedContainer

NAME: Final = "app"


class Rollout(StrEnum):
    """The way in which a new size reaches pods."""

    ROLLING = "rolling"
    ON_DELETE = "on-delete"
    IN_PLACE = "in-place"


@dataclass(frozen=True, slots=True)
class Lags:
    """Delays of pods and metrics behind what was ordered and needed.

    A pod is ready ``start`` seconds after it was made, what is measured is ``metrics`` seconds old, and a resize in
    place takes ``resize`` seconds. With on-delete, a pod is deleted every ``deletes`` seconds. In place no pod can have
    more than ``largest`` thousandths of a vCPU. ``broken`` pods crash again and again, and ``flapping`` ones are ready
    every other ``flap`` seconds.
    """

    start: float = 90.0
    metrics: float = 30.0
    rollout: Rollout = Rollout.ROLLING
    resize: float = 5.0
    deletes: float = inf
    largest: float = inf
    broken: int = 0
    flapping: int = 0
    flap: float = 45.0


@dataclass(slots=True)
class Pod:
    """One pod: its size in thousandths of a vCPU, when it was made, and when it was asked to have another size.

    ``slot`` is its place among the pods that there are: the first that was free.
    """

    serial: int
    slot: int
    size: int
    made: float
    asked: float | None = None


@dataclass(slots=True)
class LaggingGroup:
    """The pods of one group, which follow the order of ``replicas`` of ``size``."""

    lags: Lags
    replicas: int
    size: int
    pods: list[Pod] = field(default_factory=list)
    now: float = 0.0
    _template: int = 0
    _serial: int = 0
    _deleted: float = 0.0
    _measured: list[tuple[float, dict[int, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """All pods are there and ready."""
        self._template = self.size
        for _ in range(self.replicas):
            self._make(-inf)

    def order(self, replicas: int, size: int) -> None:
        """Orders this many replicas of such a size; what takes no time happens at once."""
        self.replicas, self.size = replicas, size
        self._settle()

    def advance(self, now: float, demand: float) -> None:
        """Time passes until ``now``; from then on the ready pods share ``demand`` thousandths of a vCPU."""
        self.now = now
        self._settle()
        ready = self.ready
        # Replicas share the demand evenly; their use is measured also above their request.
        use = {pod.serial: round(demand / len(ready)) for pod in ready}
        # The last one of the old measurements is what metrics show; all newer ones are shown later.
        old = [measurement for measurement in self._measured if measurement[0] <= now - self.lags.metrics]
        self._measured = [*old[-1:], *self._measured[len(old) :], (now, use)]

    @property
    def ready(self) -> list[Pod]:
        """The pods that serve."""
        return [pod for pod in self.pods if self._is_ready(pod)]

    @property
    def capacity(self) -> int:
        """Total size of the pods that serve, in thousandths of a vCPU."""
        return sum(pod.size for pod in self.ready)

    @property
    def difference(self) -> str:
        """The difference of the pods from the order; empty if there is none."""
        if len(self.pods) != self.replicas:
            return f"there are {len(self.pods)} pods of {self.replicas}"
        unsized = sum(pod.size != self.size for pod in self.pods)
        if unsized:
            return f"{unsized} of {self.replicas} pods have another size"
        ready = len(self.ready)
        return f"{ready} of {self.replicas} pods are ready" if ready < self.replicas else ""

    @property
    def is_refused(self) -> bool:
        """True if a node has refused a resize in place."""
        return self.lags.rollout is Rollout.IN_PLACE and any(
            pod.asked is not None and self.size > self.lags.largest for pod in self.pods
        )

    def running(self) -> RunningPods:
        """The pods as a group's policy sees them."""
        ready, every = self.ready, [pod.size for pod in self.pods]
        sizes = [pod.size for pod in ready] or every
        refused = (_container(max(every)),) if self.is_refused and max(every) < self.size else ()
        return RunningPods(len(ready), (_container(sum(sizes) // len(sizes)),), self.difference, refused)

    def measured(self) -> list[ReplicaUse]:
        """An HPA's view of each pod."""
        # Before the first measurement is old enough, the first stands in for it.
        (_, first), *_ = self._measured
        shown_uses = [use for at, use in self._measured if at <= self.now - self.lags.metrics]
        use = shown_uses[-1] if shown_uses else first
        ready = {pod.serial for pod in self.ready}
        # A pod that was made since then has no measurement yet.
        return [ReplicaUse(use.get(pod.serial), pod.size, pod.serial in ready) for pod in self.pods]

    def _make(self, at: float) -> None:
        taken = {pod.slot for pod in self.pods}
        slot = next(slot for slot in count() if slot not in taken)
        # With in-place resizes the template keeps the first size, so a new pod begins with it and is resized.
        size = self._template if self.lags.rollout is Rollout.IN_PLACE else self.size
        self.pods.append(Pod(self._serial, slot, size, at))
        self._serial += 1

    def _is_ready(self, pod: Pod) -> bool:
        lags = self.lags
        if self.now - pod.made < lags.start or pod.slot < lags.broken:
            return False
        flaps = pod.slot < lags.broken + lags.flapping
        return not (flaps and self.now // lags.flap % 2)

    def _settle(self) -> None:
        """Pods are made, deleted and resized, as far as that is possible now."""
        # A replica that is no longer ordered goes at once.
        self._take(len(self.pods) - self._most())
        if self.lags.rollout is Rollout.IN_PLACE:
            self._resize()
        elif self.lags.rollout is Rollout.ON_DELETE:
            self._delete_one()
        else:
            self._roll()
        while len(self.pods) < self.replicas:
            self._make(self.now)

    def _most(self) -> int:
        """This many pods may be there: a rolling update may add a quarter, rounded up."""
        is_rolling = self.lags.rollout is Rollout.ROLLING and any(pod.size != self.size for pod in self.pods)
        # Floor division of the negative rounds the quarter up.
        return self.replicas - (-self.replicas // 4 if is_rolling else 0)

    def _take(self, number: int) -> None:
        """Deletes this many pods: those that are not ready first, then the latest."""
        for _ in range(number):
            self.pods.remove(max(self.pods, key=lambda pod: (not self._is_ready(pod), pod.serial)))

    def _resize(self) -> None:
        for pod in self.pods:
            if pod.size == self.size:
                pod.asked = None
            elif pod.asked is None:
                pod.asked = self.now
            # A size that a node cannot give in place leaves the pod as it is.
            elif self.now - pod.asked >= self.lags.resize and self.size <= self.lags.largest:
                pod.size, pod.asked = self.size, None

    def _delete_one(self) -> None:
        old = [pod for pod in self.pods if pod.size != self.size]
        if old and self.now - self._deleted >= self.lags.deletes:
            self.pods.remove(old[0])
            self._deleted = self.now

    def _roll(self) -> None:
        """One wave: old pods go as far as enough stay ready, new ones come as far as there is room."""
        for pod in list(self._old()):
            stays = len(self.ready) - self._is_ready(pod)
            # A quarter of the replicas may be missing during a rolling update; a pod that is not ready is no loss.
            if not self._is_ready(pod) or stays >= self.replicas - self.replicas // 4:
                self.pods.remove(pod)
        for _ in list(self._old()):
            if len(self.pods) < self._most():
                self._make(self.now)

    def _old(self) -> Iterator[Pod]:
        return (pod for pod in self.pods if pod.size != self.size)


def _container(size: int) -> SizedContainer:
    return SizedContainer(NAME, ResourceList(MilliCpu(size)))
