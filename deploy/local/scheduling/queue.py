"""Order in which pods are tried, and the time when a refused one is tried again: kube-scheduler's queue as a pure state
machine.

A pod is in one place: ready, in flight, or waiting. The longest ready goes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol.backoff import Backoff
from protocol.messages import ObjectName
from protocol.units import Instant, Seconds

# As in kube-scheduler: 1 s, doubled with every failed attempt, at most 10 s. The jitter is drawn by the caller.
BACKOFF: Final = Backoff(Seconds(1.0), Seconds(10.0), spread=0.5)
# In case an event was missed, a pod that has waited for five minutes is tried again without one.
LONGEST_WAIT: Final = Seconds(300.0)


class AttemptFailure(StrEnum):
    """Failure of an attempt to place a pod."""

    NO_NODE = "no node"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class _Waiting:
    backoff_over: Instant
    tried_again_at: Instant
    """When it becomes ready without any event; the end of its back-off if it needs none."""
    is_woken: bool = False


@dataclass(frozen=True, slots=True)
class _Count:
    """Attempts that found no node, and those that broke since."""

    without_node: int = 0
    broken: int = 0

    def with_one(self, failure: AttemptFailure) -> _Count:
        if failure is AttemptFailure.ERROR:
            return _Count(self.without_node, self.broken + 1)
        # An attempt that did not break resets the count of those that did.
        return _Count(self.without_node + 1)


class SchedulingQueue:
    """The pods that want a node. ``now`` never goes back."""

    def __init__(self) -> None:
        self._ready: dict[ObjectName, None] = {}
        self._in_flight: dict[ObjectName, int] = {}  # and the events before each attempt
        self._waiting: dict[ObjectName, _Waiting] = {}
        self._attempts: dict[ObjectName, _Count] = {}
        self._events = 0

    def add(self, pod: ObjectName) -> None:
        """A pod wants a node. One that is in the queue already keeps its place."""
        if pod not in self._in_flight and pod not in self._waiting:
            self._ready.setdefault(pod)

    def forget(self, pod: ObjectName) -> None:
        """The pod has a node, or is gone."""
        for place in (self._ready, self._in_flight, self._waiting, self._attempts):
            place.pop(pod, None)

    def take(self, now: Instant) -> ObjectName | None:
        """The pod to try now, which is in flight from here on; None if there is none."""
        self._ripen(now)
        pod = next(iter(self._ready), None)
        if pod is not None:
            del self._ready[pod]
        else:
            # A pod that an event has woken is tried before its back-off is over only if no other pod is ready.
            woken = [candidate for candidate, waiting in self._waiting.items() if waiting.is_woken]
            pod = min(woken, key=lambda candidate: self._waiting[candidate].backoff_over, default=None)
            if pod is not None:
                del self._waiting[pod]
        if pod is not None:
            # The count of events tells later whether one came while the attempt was in flight.
            self._in_flight[pod] = self._events
        return pod

    def failed(self, pod: ObjectName, failure: AttemptFailure, now: Instant, jitter: float) -> None:
        """The attempt in flight did not place ``pod``. No effect if it is not in flight (it is gone)."""
        events_before = self._in_flight.pop(pod, None)
        if events_before is None:
            return
        self._attempts[pod] = count = self._attempts.get(pod, _Count()).with_one(failure)
        over = Instant(now + BACKOFF.delay(count.broken or count.without_node, jitter))
        # An event during the attempt counts: the attempt may not have seen what changed.
        is_woken = failure is AttemptFailure.NO_NODE and events_before != self._events
        # A pod whose attempt broke (an error, a refused bind) needs no event, only all of its back-off.
        needs_event = failure is AttemptFailure.NO_NODE and not is_woken
        self._waiting[pod] = _Waiting(over, Instant(now + LONGEST_WAIT) if needs_event else over, is_woken)

    def wake(self) -> None:
        """Something changed in the cluster that may have made room for the pods that no node could take."""
        self._events += 1
        for pod, waiting in self._waiting.items():
            # Equal times mark a pod that needs no event: it is woken already, or its attempt broke.
            if waiting.tried_again_at != waiting.backoff_over:
                self._waiting[pod] = _Waiting(waiting.backoff_over, waiting.backoff_over, is_woken=True)

    def next_ready(self) -> Instant | None:
        """The time when ``take`` next has a pod without further events; None if never, past if it has one now."""
        if self._ready or any(waiting.is_woken for waiting in self._waiting.values()):
            return Instant(float("-inf"))
        return min((waiting.tried_again_at for waiting in self._waiting.values()), default=None)

    def _ripen(self, now: Instant) -> None:
        ripe = [pod for pod, waiting in self._waiting.items() if waiting.tried_again_at <= now]
        # Sorted, so that of pods that become ready together the one that was due first goes first.
        for pod in sorted(ripe, key=lambda candidate: self._waiting[candidate].tried_again_at):
            del self._waiting[pod]
            self._ready[pod] = None
