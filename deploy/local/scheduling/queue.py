"""kube-scheduler's scheduling queue as a pure state machine: order of attempts, and retries with backoff.

A pod is in one state: ready (FIFO), in flight, or waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol.backoff import Backoff
from protocol.messages import ObjectName
from protocol.units import Instant, Seconds

# As in kube-scheduler: 1 s, doubled with every failed attempt, at most 10 s.
BACKOFF: Final = Backoff(Seconds(1.0), Seconds(10.0), spread=0.5)
# Retry after five minutes anyway, in case an event was missed.
MAX_WAIT: Final = Seconds(300.0)


class AttemptFailure(StrEnum):
    """The reason why an attempt to schedule a pod failed."""

    NO_NODE = "no node"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class _WaitingPod:
    backoff_ends: Instant
    retry_at: Instant
    """Time of the next attempt without an event; equal to ``backoff_ends`` if no event is needed."""
    is_woken: bool = False


@dataclass(frozen=True, slots=True)
class _Attempts:
    """Number of attempts that found no node, and of errors since the last such attempt."""

    without_node: int = 0
    errors: int = 0

    def plus(self, failure: AttemptFailure) -> _Attempts:
        if failure is AttemptFailure.ERROR:
            return _Attempts(self.without_node, self.errors + 1)
        return _Attempts(self.without_node + 1)


class SchedulingQueue:
    """The queue of pods without a node. ``now`` must be monotonic."""

    def __init__(self) -> None:
        self._ready: dict[ObjectName, None] = {}
        self._in_flight: dict[ObjectName, int] = {}  # and the number of events before the attempt
        self._waiting: dict[ObjectName, _WaitingPod] = {}
        self._attempts: dict[ObjectName, _Attempts] = {}
        self._events = 0

    def add(self, pod: ObjectName) -> None:
        """Add a pod; no effect if it is queued already."""
        if pod not in self._in_flight and pod not in self._waiting:
            self._ready.setdefault(pod)

    def forget(self, pod: ObjectName) -> None:
        """Remove a pod that was bound or deleted."""
        for pods in (self._ready, self._in_flight, self._waiting, self._attempts):
            pods.pop(pod, None)

    def take(self, now: Instant) -> ObjectName | None:
        """Take the pod to schedule now, which becomes in flight; None if no pod is ready."""
        self._move_due(now)
        pod = next(iter(self._ready), None)
        if pod is not None:
            del self._ready[pod]
        else:
            # Pods woken by an event may skip their backoff, but only if no other pod is ready.
            woken = [candidate for candidate, waiting in self._waiting.items() if waiting.is_woken]
            pod = min(woken, key=lambda candidate: self._waiting[candidate].backoff_ends, default=None)
            if pod is not None:
                del self._waiting[pod]
        if pod is not None:
            self._in_flight[pod] = self._events
        return pod

    def failed(self, pod: ObjectName, failure: AttemptFailure, now: Instant, jitter: float) -> None:
        """Queue ``pod`` again after a failed attempt. No effect if it is not in flight (deleted meanwhile)."""
        events_before = self._in_flight.pop(pod, None)
        if events_before is None:
            return
        self._attempts[pod] = count = self._attempts.get(pod, _Attempts()).plus(failure)
        backoff_ends = Instant(now + BACKOFF.delay(count.errors or count.without_node, jitter))
        # The attempt may have missed an event that happened meanwhile.
        is_woken = failure is AttemptFailure.NO_NODE and events_before != self._events
        # After an error or a rejected bind, only the backoff must pass.
        needs_event = failure is AttemptFailure.NO_NODE and not is_woken
        retry_at = Instant(now + MAX_WAIT) if needs_event else backoff_ends
        self._waiting[pod] = _WaitingPod(backoff_ends, retry_at, is_woken)

    def wake(self) -> None:
        """Wake the unschedulable pods: after a change in the cluster, they may fit."""
        self._events += 1
        for pod, waiting in self._waiting.items():
            # If the times are equal, the pod needs no event.
            if waiting.retry_at != waiting.backoff_ends:
                self._waiting[pod] = _WaitingPod(waiting.backoff_ends, waiting.backoff_ends, is_woken=True)

    def next_ready(self) -> Instant | None:
        """Time at which ``take`` returns a pod without further events; -inf if now, None if never."""
        if self._ready or any(waiting.is_woken for waiting in self._waiting.values()):
            return Instant(float("-inf"))
        return min((waiting.retry_at for waiting in self._waiting.values()), default=None)

    def _move_due(self, now: Instant) -> None:
        due = [pod for pod, waiting in self._waiting.items() if waiting.retry_at <= now]
        # Pods that become ready together are ordered by due time.
        for pod in sorted(due, key=lambda candidate: self._waiting[candidate].retry_at):
            del self._waiting[pod]
            self._ready[pod] = None
