"""Resizes running pods in place to the sizes of their group, by ``pods/resize`` (S1.1).

- All pods of the target get the same sizes. A recreated pod starts with the template's sizes and is resized again.
- Standbys of a database grow before the primary, which waits until the kubelets of ready standbys have applied or
  refused the resize, for ``PATIENCE`` at most: older kubelets do neither. The primary shrinks first. So a failover
  hardly ever finds a smaller standby.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.conditions import is_condition_true
from protocol.kubernetes.objects import JsonObject, is_terminating, name_of, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import PODS, Resource
from protocol.units import Instant
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.controllers.controller import STALE_CACHE, Cache, Writer
from scheduler_plugin.groups.controllers.disputes import Disputes
from scheduler_plugin.groups.core import workload
from scheduler_plugin.groups.core.workload import RESOURCES, SizedContainer, by_name
from scheduler_plugin.groups.objects.pod_resizes import (
    LONGEST,
    PATIENCE,
    REFUSED,
    PodResizeRefusal,
    cpu_first,
    grows,
    objection_of,
    reached,
    refused_by_api,
    resize_pod,
    without,
)
from scheduler_plugin.groups.objects.pods import primary_of
from scheduler_plugin.groups.objects.writes import Write

_OVERLOADED: Final = frozenset({RefusalKind.TOO_MANY_REQUESTS, RefusalKind.UNAVAILABLE})
"""Refusals that do not concern the pod: the whole group waits."""


@dataclass(frozen=True, slots=True)
class _Hold:
    """A pause in resizing a pod, and the reason ``why``. Without ``objection`` it covers all sizes."""

    until: Instant
    why: str
    objection: PodResizeRefusal | None = None
    failures: int = 1


_Key = tuple[str, workload.Resource | None]
"""A pod's UID, and the resource that is not resized; None for all."""


@dataclass(slots=True)
class PodResizer:
    """Resizes the pods of targets. ``pods`` returns a target's pods. Raises like ``Writer``."""

    writer: Writer
    cache: Cache
    pods: Callable[[JsonObject], Sequence[JsonObject]]
    disputes: Disputes
    _holds: dict[_Key, _Hold] = field(default_factory=dict)
    _growing: dict[str, Instant] = field(default_factory=dict)
    """Since when each standby, by UID, has been growing."""

    async def resize_pods(self, target: JsonObject, kind: Resource, sizes: tuple[SizedContainer, ...]) -> str:
        """Resize the pods of ``target`` to ``sizes``; without ``sizes`` they keep their template's sizes.

        Return which pods cannot be resized, and why; empty if all can. A refusal because of a stale cache is raised
        after the other pods were resized.
        """
        if not sizes:
            return ""
        # One time for the whole round.
        now, behind, unresized = self.writer.clock.now(), None, list[tuple[str, str]]()
        self._holds = {key: hold for key, hold in self._holds.items() if hold.until + LONGEST > now}
        self._growing = {uid: since for uid, since in self._growing.items() if since + LONGEST > now}
        pods = [pod for pod in self.pods(target) if not is_terminating(pod)]
        for pod in self._in_order(pods, primary_of(pods, kind), sizes, now):
            try:
                await self._resize_pod(pod, sizes, now)
            except ApiRefusedError as error:
                # A conflict or deleted pod means a stale cache: continue with the others. Stop if the API server is
                # overloaded.
                if error.kind not in STALE_CACHE:
                    raise
                behind = error
            active = (hold for key, hold in self._of(pod).items() if self._is_active(key, sizes, now))
            unresized += [(name_of(pod).name, hold.why) for hold in active][:1]
        if behind is not None:
            raise behind
        return texts.not_resized([pod for pod, _ in unresized], unresized[0][1]) if unresized else ""

    def _in_order(
        self, pods: list[JsonObject], primary: JsonObject | None, sizes: Sequence[SizedContainer], now: Instant
    ) -> list[JsonObject]:
        """``pods`` in the order in which to resize them, without the ``primary`` if it must wait."""
        standbys = [pod for pod in pods if pod is not primary]
        if primary is None:
            return pods
        if not grows(primary, sizes):
            return [primary, *standbys]
        # Of all standbys, because each has its own time.
        growing = [pod for pod in standbys if self._is_growing(pod, sizes, now)]
        return standbys if growing else [*standbys, primary]

    def _is_growing(self, pod: JsonObject, sizes: Sequence[SizedContainer], now: Instant) -> bool:
        """Return True if the pod's kubelet has neither applied nor refused ``sizes``, but may do so soon."""
        is_answered = objection_of(pod) is not None or any(self._is_active(key, sizes, now) for key in self._of(pod))
        if is_answered or not is_condition_true(pod, "Ready") or reached(pod, sizes) == RESOURCES:
            self._growing.pop(uid_of(pod), None)
            return False
        return now - self._growing.setdefault(uid_of(pod), now) < PATIENCE

    async def _resize_pod(self, pod: JsonObject, sizes: tuple[SizedContainer, ...], now: Instant) -> None:
        self.disputes.check(PODS, pod, now)
        objection = objection_of(pod)
        if objection is None:
            self._drop_reached(pod, sizes)
            requested: Sequence[SizedContainer] = sizes
            for resource in RESOURCES:
                if self._is_active((uid_of(pod), resource), requested, now):
                    requested = without(requested, resource)
            requested = cpu_first(pod, requested)
        else:
            # Revert immediately: it blocks the pod's next resize and, if deferred, reserves room on the node.
            requested = tuple(has for has in objection.actual if by_name(sizes, has.name) is not None)
        write = resize_pod(pod, requested)
        if write is None or self._is_paused(pod, write, now):
            return
        earlier = self._of(pod)
        # Before the write, because its outcome may remain unknown.
        if objection is not None:
            self._hold(pod, objection.resources, objection, now)
        try:
            after = await self.writer.do(write)
        except ApiRefusedError as error:
            if error.kind in STALE_CACHE:
                # The objection may be stale too.
                self._holds = {key: hold for key, hold in self._holds.items() if key[0] != uid_of(pod)} | earlier
            if error.kind in _OVERLOADED or error.kind in STALE_CACHE:
                raise
            # Other refusals concern this pod only.
            refused = refused_by_api(pod, requested, error.refusal)
            self._hold(pod, refused.resources if objection is None else (None,), refused, now)
            return
        if objection is None:
            self._drop_refused(pod, sizes, now)
        self.cache.learn(PODS, after)
        self.disputes.record(write, after, now)

    def _is_active(self, key: _Key, sizes: Sequence[SizedContainer], now: Instant) -> bool:
        hold = self._holds.get(key)
        if hold is None or now >= hold.until:
            return False
        # It does not matter if less is desired now.
        return hold.objection is None or key[1] is None or hold.objection.is_about(key[1], sizes)

    def _of(self, pod: JsonObject) -> dict[_Key, _Hold]:
        """Holds on the pod; the one on all sizes comes first."""
        keys: list[_Key] = [(uid_of(pod), resource) for resource in (None, *RESOURCES)]
        return {key: self._holds[key] for key in keys if key in self._holds}

    def _drop_reached(self, pod: JsonObject, sizes: Sequence[SizedContainer]) -> None:
        """Drop holds on sizes that the pod has reached after all."""
        holds = self._of(pod)
        # Fast path: most pods have no hold.
        resources = reached(pod, sizes) if holds else ()
        for key, hold in holds.items():
            _, resource = key
            if hold.objection is None:
                continue
            # A hold on a larger size stays.
            is_met = resource in resources and hold.objection.is_about(resource, sizes)
            if is_met or (resource is None and resources == RESOURCES):
                del self._holds[key]

    def _drop_refused(self, pod: JsonObject, sizes: Sequence[SizedContainer], now: Instant) -> None:
        """Drop refusals of the API server after it accepted a write."""
        for key, hold in self._of(pod).items():
            # A hold that is still active was not part of the write.
            if hold.objection is not None and hold.objection.pause == REFUSED and not self._is_active(key, sizes, now):
                del self._holds[key]

    def _is_paused(self, pod: JsonObject, write: Write, now: Instant) -> bool:
        """Return True if no size of the pod may be written: another writer overwrites them, or a revert was refused."""
        until = self.disputes.paused_until(write, now)
        if until is not None:
            self._holds[uid_of(pod), None] = _Hold(until, texts.OVERWRITTEN)
        return self._is_active((uid_of(pod), None), (), now)

    def _hold(
        self, pod: JsonObject, resources: Iterable[workload.Resource | None], objection: PodResizeRefusal, now: Instant
    ) -> None:
        for resource in resources:
            key = (uid_of(pod), resource)
            previous = self._holds.get(key)
            # The same objection, because a revert is tried again.
            if previous is not None and previous.objection == objection and now < previous.until:
                continue
            failures = 1
            if previous is not None and previous.objection is not None and previous.objection.pause == objection.pause:
                failures = previous.failures + 1
            until = Instant(now + objection.pause.delay(failures, self.writer.clock.jitter()))
            self._holds[key] = _Hold(until, objection.why, objection, failures)
