"""Resizes running pods in place to the sizes of their group, through ``pods/resize`` (S1.1).

All pods of the target get the same sizes, each as often as it differs: a pod that is made again has the template's
sizes and is resized again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.backoff import Backoff, Retries
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import JsonObject, is_leaving, name_of, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import PODS
from protocol.units import Instant, Seconds
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.controllers.cache import Cache
from scheduler_plugin.groups.controllers.controller import PASSING, Writer
from scheduler_plugin.groups.core.disputes import Disputes
from scheduler_plugin.groups.core.workload import SizedContainer
from scheduler_plugin.groups.core.writes import Write
from scheduler_plugin.groups.objects.pods import is_pending, resize_pod, why_pending

PATIENCE: Final = Seconds(300.0)
REFUSED: Final = Backoff(Seconds(15.0), PATIENCE)
"""How long a pod whose resize was refused is left alone."""

_OVERLOADED: Final = frozenset({RefusalKind.TOO_MANY_REQUESTS, RefusalKind.UNAVAILABLE})
"""Refusals that are not about the pod: the whole group waits."""


@dataclass(frozen=True, slots=True)
class _Unresized:
    """A pod that is left alone ``until`` then, and ``why`` it does not have its size."""

    until: Instant
    pod: str
    why: str


@dataclass(frozen=True, slots=True)
class _Refusal(_Unresized):
    retries: Retries


@dataclass(slots=True)
class PodResizer:
    """Resizes the pods of one target at a time. ``pods`` gives a target's. Raises as ``Writer``."""

    writer: Writer
    cache: Cache
    pods: Callable[[JsonObject], Sequence[JsonObject]]
    disputes: Disputes
    _withdrawn: dict[str, _Unresized] = field(default_factory=dict)
    _refusals: dict[str, _Refusal] = field(default_factory=dict)

    async def bring(self, target: JsonObject, sizes: tuple[SizedContainer, ...]) -> str:
        """Asks every pod of ``target`` that differs for ``sizes``; returns which do not get them and why, else
        nothing.

        A refusal that only says that the cache is behind is raised once all other pods have been asked.
        """
        if not sizes:
            # Without sizes of its own the group leaves running pods to their template.
            return ""
        # Taken once, so that all pods of one round are judged by the same time.
        now, behind = self.writer.clock.now(), None
        pods = [pod for pod in self.pods(target) if not is_leaving(pod)]
        self._forget(now)
        for pod in pods:
            self.disputes.look(PODS, pod, now)
            write = self._wanted(pod, sizes, now)
            if write is None or self._is_fought_over(pod, write, now):
                continue
            try:
                after = await self.writer.do(write)
                self.cache.learn(PODS, after)
                self.disputes.wrote(write, after, now)
                self._refusals.pop(uid_of(pod), None)
            except ApiRefusedError as error:
                if error.kind in _OVERLOADED:
                    # The API server is overloaded; asking for the other pods would make that worse.
                    raise
                if error.kind in PASSING:
                    # A conflict or a pod that is gone: the cache is behind. The other pods are still asked.
                    behind = error
                else:
                    # Any other refusal is about this pod alone and must not hold up the others.
                    self._refuse(pod, str(error), now)
        if behind is not None:
            raise behind
        unresized = {**self._withdrawn, **self._refusals}
        problems = [problem for pod in pods if (problem := unresized.get(uid_of(pod))) is not None]
        # They come in the order of their names, so the text is stable.
        return texts.not_resized([problem.pod for problem in problems], problems[0].why) if problems else ""

    def _wanted(self, pod: JsonObject, sizes: tuple[SizedContainer, ...], now: Instant) -> Write | None:
        """The resize to request of the pod now; None if it has its size, or is left alone for a while."""
        uid = uid_of(pod)
        refusal = self._refusals.get(uid)
        # While the pod is pending it goes on, so that its wish is withdrawn.
        if (uid in self._withdrawn and not is_pending(pod)) or (refusal is not None and now < refusal.until):
            return None
        write = resize_pod(pod, sizes)
        if write is None:
            # The pod has its size, so the next refusal starts with a short pause again.
            self._refusals.pop(uid, None)
        elif is_pending(pod):
            # A resize that the kubelet cannot carry out would hold up others on its node, so the write withdraws it;
            # it is tried again after `PATIENCE`.
            self._withdrawn[uid] = _Unresized(Instant(now + PATIENCE), name_of(pod).name, why_pending(pod))
        return write

    def _is_fought_over(self, pod: JsonObject, write: Write, now: Instant) -> bool:
        """Return True if another writer keeps overwriting the pod's sizes, so that it is left alone for a while."""
        until = self.disputes.held_until(write, now)
        if until is not None:
            why = texts.OVERWRITTEN
            self._withdrawn[uid_of(pod)] = _Unresized(until, name_of(pod).name, why)
        return until is not None

    def _refuse(self, pod: JsonObject, why: str, now: Instant) -> None:
        previous = self._refusals.get(uid_of(pod))
        retries = Retries(REFUSED) if previous is None else previous.retries
        # Jitter spreads the retries of pods that were refused together.
        until = Instant(now + retries.failed(self.writer.clock.jitter()))
        self._refusals[uid_of(pod)] = _Refusal(until, name_of(pod).name, why, retries)

    def _forget(self, now: Instant) -> None:
        """Drops withdrawn wishes whose time is over, and refusals of pods that are gone."""
        self._withdrawn = {uid: wish for uid, wish in self._withdrawn.items() if wish.until > now}
        # A pod that still exists is asked again once its pause is over, so an older refusal belongs to one that is
        # gone.
        self._refusals = {uid: refusal for uid, refusal in self._refusals.items() if refusal.until + PATIENCE > now}
