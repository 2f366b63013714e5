"""A model of a group whose pods follow orders with a delay, and whose metrics lag behind.

Pods get a new size by a rolling update, when they are deleted, or in place; excess replicas are removed immediately.
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
    """The way in which pods get a new size."""

    ROLLING = "rolling"
    ON_DELETE = "on-delete"
    IN_PLACE = "in-place"


@dataclass(frozen=True, slots=True)
class Lags:
    """Delays and faults of pods and metrics.

    A pod becomes ready ``start`` seconds after its creation, metrics are ``metrics`` seconds old, and an in-place
    resize takes ``resize`` seconds. With on-delete, a pod is deleted every ``deletes`` seconds. In-place resizes above
    ``largest`` thousandths of a vCPU are refused. ``broken`` pods never become ready, and ``flapping`` ones are ready
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
class LaggingPod:
    """A pod: its size in thousandths of a vCPU, and the times of its creation and of its pending resize request.

    ``slot`` is the lowest number that was free at its creation.
    """

    serial: int
    slot: int
    size: int
    made: float
    resizes_since: float | None = None


@dataclass(slots=True)
class LaggingGroup:
    """The pods of a group, which follow the order of ``replicas`` of ``size``."""

    lags: Lags
    replicas: int
    size: int
    pods: list[LaggingPod] = field(default_factory=list)
    now: float = 0.0
    _template: int = 0
    _serial: int = 0
    _deleted: float = 0.0
    _measured: list[tuple[float, dict[int, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Starts with all pods ready."""
        self._template = self.size
        for _ in range(self.replicas):
            self._make(-inf)

    def order(self, replicas: int, size: int) -> None:
        """Orders replicas of a size; changes that take no time happen immediately."""
        self.replicas, self.size = replicas, size
        self._settle()

    def advance(self, now: float, demand: float) -> None:
        """Advances to ``now``; from then on the ready pods share ``demand`` thousandths of a vCPU."""
        self.now = now
        self._settle()
        ready = self.ready
        # The measured use may exceed the request.
        use = {pod.serial: round(demand / len(ready)) for pod in ready}
        # Metrics show the last old measurement now, and the newer ones later.
        old = [measurement for measurement in self._measured if measurement[0] <= now - self.lags.metrics]
        self._measured = [*old[-1:], *self._measured[len(old) :], (now, use)]

    @property
    def ready(self) -> list[LaggingPod]:
        """The ready pods."""
        return [pod for pod in self.pods if self._is_ready(pod)]

    @property
    def capacity(self) -> int:
        """Total size of the ready pods in thousandths of a vCPU."""
        return sum(pod.size for pod in self.ready)

    @property
    def difference(self) -> str:
        """The difference between the pods and the order; empty if there is none."""
        if len(self.pods) != self.replicas:
            return f"there are {len(self.pods)} pods of {self.replicas}"
        unsized = sum(pod.size != self.size for pod in self.pods)
        if unsized:
            return f"{unsized} of {self.replicas} pods have another size"
        ready = len(self.ready)
        return f"{ready} of {self.replicas} pods are ready" if ready < self.replicas else ""

    @property
    def is_refused(self) -> bool:
        """True if a node has refused an in-place resize."""
        return self.lags.rollout is Rollout.IN_PLACE and any(
            pod.resizes_since is not None and self.size > self.lags.largest for pod in self.pods
        )

    def running(self) -> RunningPods:
        """The pods in the form of policies."""
        ready, every = self.ready, [pod.size for pod in self.pods]
        sizes = [pod.size for pod in ready] or every
        refused = (_container(max(every)),) if self.is_refused and max(every) < self.size else ()
        return RunningPods(len(ready), (_container(sum(sizes) // len(sizes)),), self.difference, refused)

    def measured(self) -> list[ReplicaUse]:
        """The metrics of each pod for an HPA."""
        use = self._old_use()
        ready = {pod.serial for pod in self.ready}
        # A newer pod has no measurement yet.
        return [ReplicaUse(use.get(pod.serial), pod.size, pod.serial in ready) for pod in self.pods]

    @property
    def measured_load(self) -> int | None:
        """The load of all pods together at the time of the metrics, also of pods that have been removed since; None
        without metrics.
        """
        use = self._old_use()
        return sum(use.values()) if use else None

    def _old_use(self) -> dict[int, int]:
        # Use the first measurement until it is old enough.
        (_, first), *_ = self._measured
        old_uses = [use for at, use in self._measured if at <= self.now - self.lags.metrics]
        return old_uses[-1] if old_uses else first

    def _make(self, at: float) -> None:
        taken = {pod.slot for pod in self.pods}
        slot = next(slot for slot in count() if slot not in taken)
        # With in-place resizes the template does not change, so new pods are resized after their creation.
        size = self._template if self.lags.rollout is Rollout.IN_PLACE else self.size
        self.pods.append(LaggingPod(self._serial, slot, size, at))
        self._serial += 1

    def _is_ready(self, pod: LaggingPod) -> bool:
        lags = self.lags
        if self.now - pod.made < lags.start or pod.slot < lags.broken:
            return False
        flaps = pod.slot < lags.broken + lags.flapping
        return not (flaps and self.now // lags.flap % 2)

    def _settle(self) -> None:
        """Creates, deletes and resizes pods, as far as possible now."""
        self._remove(len(self.pods) - self._max_pods())
        if self.lags.rollout is Rollout.IN_PLACE:
            self._resize()
        elif self.lags.rollout is Rollout.ON_DELETE:
            self._delete_one()
        else:
            self._roll()
        while len(self.pods) < self.replicas:
            self._make(self.now)

    def _max_pods(self) -> int:
        """Maximum number of pods: a rolling update may add a quarter, rounded up."""
        is_rolling = self.lags.rollout is Rollout.ROLLING and any(pod.size != self.size for pod in self.pods)
        # Floor division of the negative rounds the quarter up.
        return self.replicas - (-self.replicas // 4 if is_rolling else 0)

    def _remove(self, number: int) -> None:
        """Deletes pods: first those that are not ready, then the newest."""
        for _ in range(number):
            self.pods.remove(max(self.pods, key=lambda pod: (not self._is_ready(pod), pod.serial)))

    def _resize(self) -> None:
        for pod in self.pods:
            if pod.size == self.size:
                pod.resizes_since = None
            elif pod.resizes_since is None:
                pod.resizes_since = self.now
            elif self.now - pod.resizes_since >= self.lags.resize and self.size <= self.lags.largest:
                pod.size, pod.resizes_since = self.size, None

    def _delete_one(self) -> None:
        old = [pod for pod in self.pods if pod.size != self.size]
        if old and self.now - self._deleted >= self.lags.deletes:
            self.pods.remove(old[0])
            self._deleted = self.now

    def _roll(self) -> None:
        """A step of a rolling update: deletes old pods if enough stay ready, and creates new ones up to the maximum."""
        for pod in list(self._old()):
            stays = len(self.ready) - self._is_ready(pod)
            # At most a quarter of the replicas may be unavailable.
            if not self._is_ready(pod) or stays >= self.replicas - self.replicas // 4:
                self.pods.remove(pod)
        for _ in list(self._old()):
            if len(self.pods) < self._max_pods():
                self._make(self.now)

    def _old(self) -> Iterator[LaggingPod]:
        return (pod for pod in self.pods if pod.size != self.size)


def _container(size: int) -> SizedContainer:
    return SizedContainer(NAME, ResourceList(MilliCpu(size)))
