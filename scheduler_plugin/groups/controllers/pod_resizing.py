"""Resizes running pods in place to the sizes of their group, through ``pods/resize`` (S1.1).

- All pods of the target get the same sizes, each as often as it differs: a pod that is made again has the template's
  sizes and is resized again.
- Of a database standbys grow first: the primary waits until the kubelets of those that are ready have done it or
  objected, and shrinks before them. So a failover finds no smaller standby.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.conditions import holds
from protocol.kubernetes.objects import JsonObject, is_leaving, name_of, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import PODS, Resource
from protocol.units import Instant
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.controllers.controller import PASSING, Cache, Writer
from scheduler_plugin.groups.controllers.disputes import Disputes
from scheduler_plugin.groups.core import workload
from scheduler_plugin.groups.core.workload import RESOURCES, SizedContainer, by_name
from scheduler_plugin.groups.objects.pod_resizes import (
    LONGEST,
    REFUSED,
    ResizeObjection,
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
"""Refusals that are not about the pod: the whole group waits."""


@dataclass(frozen=True, slots=True)
class _Hold:
    """Sizes of a pod that are left alone ``until`` then, and ``why``. Without ``objection`` that is all of them."""

    until: Instant
    why: str
    objection: ResizeObjection | None = None
    failures: int = 1


_Key = tuple[str, workload.Resource | None]
"""A pod's uid, and the resource that is left alone; None: the pod."""


@dataclass(slots=True)
class PodResizer:
    """Resizes the pods of one target at a time. ``pods`` gives a target's. Raises as ``Writer``."""

    writer: Writer
    cache: Cache
    pods: Callable[[JsonObject], Sequence[JsonObject]]
    disputes: Disputes
    _holds: dict[_Key, _Hold] = field(default_factory=dict)

    async def bring(self, target: JsonObject, kind: Resource, sizes: tuple[SizedContainer, ...]) -> str:
        """Asks every pod of ``target`` that differs for ``sizes``; returns which do not get them and why, else
        nothing.

        A refusal that only says that the cache is behind is raised once all other pods have been asked.
        """
        if not sizes:
            # Without sizes of its own the group leaves running pods to their template.
            return ""
        # Taken once, so that all pods of one round are judged by the same time.
        now, behind, unresized = self.writer.clock.now(), None, list[tuple[str, str]]()
        self._holds = {key: hold for key, hold in self._holds.items() if hold.until + LONGEST > now}
        pods = [pod for pod in self.pods(target) if not is_leaving(pod)]
        for pod in self._in_order(pods, primary_of(pods, kind), sizes, now):
            try:
                await self._bring(pod, sizes, now)
            except ApiRefusedError as error:
                # A conflict or a pod that is gone: the cache is behind, and the other pods are still asked. Of an API
                # server that is overloaded they are not.
                if error.kind not in PASSING:
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
        """``pods`` in the order in which they are resized, without a ``primary`` that has to wait."""
        standbys = [pod for pod in pods if pod is not primary]
        if primary is None:
            return pods
        if not grows(primary, sizes):
            return [primary, *standbys]
        return standbys if any(self._is_growing(pod, sizes, now) for pod in standbys) else [*standbys, primary]

    def _is_growing(self, pod: JsonObject, sizes: Sequence[SizedContainer], now: Instant) -> bool:
        """Return True if the pod's kubelet has neither given it ``sizes`` nor objected, and may do either soon."""
        is_answered = objection_of(pod) is not None or any(self._is_active(key, sizes, now) for key in self._of(pod))
        return holds(pod, "Ready") and not is_answered and reached(pod, sizes) != RESOURCES

    async def _bring(self, pod: JsonObject, sizes: tuple[SizedContainer, ...], now: Instant) -> None:
        self.disputes.look(PODS, pod, now)
        objection = objection_of(pod)
        if objection is None:
            self._drop_reached(pod, sizes)
            requested: Sequence[SizedContainer] = sizes
            for resource in RESOURCES:
                if self._is_active((uid_of(pod), resource), requested, now):
                    requested = without(requested, resource)
            requested = cpu_first(pod, requested)
        else:
            # Withdrawn at once: it blocks the pod's next resize, and a deferred one those of other pods, too.
            requested = tuple(has for has in objection.actual if by_name(sizes, has.name) is not None)
        write = resize_pod(pod, requested)
        if write is None or self._is_left_alone(pod, write, now):
            return
        earlier = self._of(pod)
        # Before the write, because its outcome may stay unknown.
        if objection is not None:
            self._hold(pod, objection.resources, objection, now)
        try:
            after = await self.writer.do(write)
        except ApiRefusedError as error:
            if error.kind in PASSING:
                # The objection may be out of date as well.
                self._holds = {key: hold for key, hold in self._holds.items() if key[0] != uid_of(pod)} | earlier
            if error.kind in _OVERLOADED or error.kind in PASSING:
                raise
            # Any other refusal is about this pod alone and must not hold up the others.
            refused = refused_by_api(pod, requested, error.refusal)
            self._hold(pod, refused.resources if objection is None else (None,), refused, now)
            return
        if objection is None:
            self._drop_refused(pod, sizes, now)
        self.cache.learn(PODS, after)
        self.disputes.wrote(write, after, now)

    def _is_active(self, key: _Key, sizes: Sequence[SizedContainer], now: Instant) -> bool:
        hold = self._holds.get(key)
        if hold is None or now >= hold.until:
            return False
        # An objection to more than is wanted now says nothing.
        return hold.objection is None or key[1] is None or hold.objection.is_about(key[1], sizes)

    def _of(self, pod: JsonObject) -> dict[_Key, _Hold]:
        """The holds of the pod, that of all its sizes first."""
        keys: list[_Key] = [(uid_of(pod), resource) for resource in (None, *RESOURCES)]
        return {key: self._holds[key] for key in keys if key in self._holds}

    def _drop_reached(self, pod: JsonObject, sizes: Sequence[SizedContainer]) -> None:
        """Drop the holds on sizes that the pod has: the resize was carried out after all."""
        holds = self._of(pod)
        # Most pods have no hold, and quantities take long to parse.
        resources = reached(pod, sizes) if holds else ()
        for key, hold in holds.items():
            _, resource = key
            if hold.objection is None:
                continue
            # A size that the pod has says nothing about an objection to a larger one.
            is_met = resource in resources and hold.objection.is_about(resource, sizes)
            if is_met or (resource is None and resources == RESOURCES):
                del self._holds[key]

    def _drop_refused(self, pod: JsonObject, sizes: Sequence[SizedContainer], now: Instant) -> None:
        """Drop the API server's refusals after a write that it accepted."""
        for key, hold in self._of(pod).items():
            # The write left out what is still held.
            if hold.objection is not None and hold.objection.pause == REFUSED and not self._is_active(key, sizes, now):
                del self._holds[key]

    def _is_left_alone(self, pod: JsonObject, write: Write, now: Instant) -> bool:
        """Return True if all sizes of the pod are left alone: another writer keeps overwriting them, or they cannot
        be put back.
        """
        until = self.disputes.held_until(write, now)
        if until is not None:
            self._holds[uid_of(pod), None] = _Hold(until, texts.OVERWRITTEN)
        return self._is_active((uid_of(pod), None), (), now)

    def _hold(
        self, pod: JsonObject, resources: Iterable[workload.Resource | None], objection: ResizeObjection, now: Instant
    ) -> None:
        for resource in resources:
            key = (uid_of(pod), resource)
            previous = self._holds.get(key)
            # A withdrawal that was not answered is sent again: still the same objection.
            if previous is not None and previous.objection == objection and now < previous.until:
                continue
            failures = 1
            if previous is not None and previous.objection is not None and previous.objection.pause == objection.pause:
                failures = previous.failures + 1
            until = Instant(now + objection.pause.delay(failures, self.writer.clock.jitter()))
            self._holds[key] = _Hold(until, objection.why, objection, failures)
