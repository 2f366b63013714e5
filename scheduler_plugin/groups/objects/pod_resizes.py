"""In-place resizes of pods: refusals by the kubelet or the API server, and retries (pure).

A resize that cannot be applied blocks the pod's next one, and a deferred one reserves room on its node, so it is
reverted to the actual sizes. A refusal of CPU does not block memory, nor the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from protocol.backoff import Backoff
from protocol.kubernetes.objects import Json, JsonObject, child, has_finished, items, name_of, text, version_of
from protocol.kubernetes.refusals import Refusal, RefusalKind
from protocol.kubernetes.resources import PODS
from protocol.pod_database import DEFERRED, ERROR
from protocol.pod_database import objection_of as kubelet_objection
from protocol.units import Amount, Seconds
from scheduler_plugin.groups.core.workload import RESOURCES, Resource, SizedContainer, by_name
from scheduler_plugin.groups.objects.targets import read_amounts, read_container, write_container
from scheduler_plugin.groups.objects.writes import Write

PATIENCE: Final = Seconds(300.0)
# Room may become free at any time, but Infeasible and Error last until someone changes something.
_DEFERRED: Final = Backoff(PATIENCE, PATIENCE, spread=0.0)
_FAILED: Final = Backoff(PATIENCE, Seconds(3600.0), spread=0.0)
REFUSED: Final = Backoff(Seconds(15.0), PATIENCE)
"""Backoff after a refusal by the API server."""
LONGEST: Final = _FAILED.cap
"""How long a refusal is remembered after its backoff."""

_NAMES: Final = re.compile(r"(?i)\bcpu\b|\bmemory\b")
_ADVICE: Final = {
    "cannot patch resource": "let the account of autoscale-groups patch pods/resize (upgrade the chart)",
    "exceeded quota": "raise the ResourceQuota of the namespace, or lower the group's maximum",
    " per Container": "raise the LimitRange of the namespace, or lower the group's maximum",
    " per Pod": "raise the LimitRange of the namespace, or lower the group's maximum",
    "": "a policy or webhook forbids it, or no node of this size exists: allow it, or lower the group's maximum",
}
"""Advice on a 403, by a part of its message; the first match applies."""


@dataclass(frozen=True, slots=True)
class PodResizeRefusal:
    """A refusal to resize a pod from ``actual`` to ``requested`` sizes; ``resources`` are those that it concerns.

    ``pause`` is the backoff. ``is_about_shrinks`` is False if growth in the same request explains the refusal.
    """

    # Not compared, because a quota's message includes the current usage.
    why: str = field(compare=False)
    resources: tuple[Resource, ...]
    requested: tuple[SizedContainer, ...]
    actual: tuple[SizedContainer, ...]
    pause: Backoff
    is_about_shrinks: bool = True

    def is_about(self, resource: Resource, desired: Sequence[SizedContainer]) -> bool:
        """Return True if ``desired`` changes ``resource`` at least as much as the refused request."""
        return any(
            self._reaches(has.requests[resource], requested.requests[resource], new.requests[resource])
            or self._reaches(has.limits[resource], requested.limits[resource], new.limits[resource])
            for new in desired
            if (has := by_name(self.actual, new.name)) and (requested := by_name(self.requested, new.name))
        )

    def _reaches(self, has: Amount | None, requested: Amount | None, new: Amount | None) -> bool:
        if requested is None or new is None:
            return False
        if _is_growth(has, requested):
            return requested.value <= new.value
        return self.is_about_shrinks and _is_growth(requested, has) and new.value <= requested.value


def _is_growth(before: Amount | None, after: Amount | None) -> bool:
    return after is not None and (0 if before is None else before.value) < after.value


def objection_of(pod: JsonObject) -> PodResizeRefusal | None:
    """The kubelet's refusal of the pod's present resize; None if it has not refused it."""
    objection = kubelet_objection(pod)
    if objection is None:
        return None
    requested, actual = _spec_sizes(pod), _actual(pod)
    resources = _about(objection.message, actual, requested)
    # The kubelet applies a resize as a whole, so a shrink of another container waits too.
    is_about_shrinks = objection.verdict == ERROR or not _grew(actual, requested, resources)
    pause = _DEFERRED if objection.verdict == DEFERRED else _FAILED
    return PodResizeRefusal(str(objection), resources, requested, actual, pause, is_about_shrinks)


def refused_by_api(pod: JsonObject, sizes: Sequence[SizedContainer], refusal: Refusal) -> PodResizeRefusal:
    """Describe the API server's refusal to resize ``pod`` to ``sizes``."""
    has = _spec_sizes(pod)
    requested = tuple(container.over(by_name(has, container.name)) for container in sizes)
    advice = f"; {_advice(refusal)}" if refusal.kind is RefusalKind.FORBIDDEN else ""
    resources = _about(refusal.message, has, requested)
    return PodResizeRefusal(f"{refusal}{advice}", resources, requested, has, REFUSED)


def _advice(refusal: Refusal) -> str:
    return next(advice for part, advice in _ADVICE.items() if part in refusal.message)


def reached(pod: JsonObject, sizes: Sequence[SizedContainer]) -> tuple[Resource, ...]:
    """Resources for which the pod's containers actually have ``sizes``, even if others were requested since."""
    actual = _actual(pod)
    # A container is not running yet.
    if any(by_name(actual, container.name) is None for container in sizes):
        return ()
    changed = _changed(actual, [container.over(by_name(actual, container.name)) for container in sizes])
    return tuple(resource for resource in RESOURCES if resource not in changed)


def _about(message: str, before: Sequence[SizedContainer], after: Sequence[SizedContainer]) -> tuple[Resource, ...]:
    """Changed resources that the message names; all changed ones if it names none."""
    named = {name.lower() for name in _NAMES.findall(message)}
    changed = _changed(before, after)
    return tuple(resource for resource in changed if resource in named) or changed


def _changed(before: Sequence[SizedContainer], after: Sequence[SizedContainer]) -> tuple[Resource, ...]:
    """Resources with changed requests or limits, CPU first."""
    return tuple(
        resource for resource in RESOURCES if any(was != now for was, now in _amounts(before, after, resource))
    )


def _grew(before: Sequence[SizedContainer], after: Sequence[SizedContainer], resources: Iterable[Resource]) -> bool:
    return any(_is_growth(was, now) for resource in resources for was, now in _amounts(before, after, resource))


def _amounts(
    before: Sequence[SizedContainer], after: Sequence[SizedContainer], resource: Resource
) -> Iterator[tuple[Amount | None, Amount | None]]:
    """Requests and limits, before and after, of containers in both."""
    pairs = ((was, container) for container in after if (was := by_name(before, container.name)) is not None)
    for was, now in pairs:
        yield was.requests[resource], now.requests[resource]
        yield was.limits[resource], now.limits[resource]


def _spec_sizes(pod: JsonObject) -> tuple[SizedContainer, ...]:
    return tuple(read_container(container, "spec.containers") for container in items(pod, "spec", "containers"))


def _actual(pod: JsonObject) -> tuple[SizedContainer, ...]:
    """Actual container sizes, if possible not from ``allocatedResources``, which has the new ones after a failure."""
    return tuple(
        SizedContainer(
            text(status, "name"),
            # Older kubelets have no `status.resources`.
            read_amounts(child(status, "resources", "requests"), "resources.requests").over(
                read_amounts(child(status, "allocatedResources"), "allocatedResources")
            ),
            read_amounts(child(status, "resources", "limits"), "resources.limits"),
        )
        for status in items(pod, "status", "containerStatuses")
    )


def without(sizes: Iterable[SizedContainer], resource: Resource) -> tuple[SizedContainer, ...]:
    """``sizes`` without ``resource``."""
    return tuple(
        replace(
            container,
            requests=container.requests.with_value(resource, None),
            limits=container.limits.with_value(resource, None),
        )
        for container in sizes
    )


def cpu_first(pod: JsonObject, sizes: Sequence[SizedContainer]) -> Sequence[SizedContainer]:
    """Leave memory out of ``sizes`` if CPU grows and memory shrinks: a failed shrink would block the growth."""
    has = _spec_sizes(pod)
    shrinks = [now for was, now in _amounts(has, sizes, "memory") if now is not None and _is_growth(now, was)]
    return without(sizes, "memory") if shrinks and _grew(has, sizes, ("cpu",)) else sizes


def grows(pod: JsonObject, sizes: Sequence[SizedContainer]) -> bool:
    """Return True if ``sizes`` give a container of the pod more of anything."""
    return _grew(_spec_sizes(pod), sizes, RESOURCES)


def resize_pod(pod: JsonObject, sizes: Sequence[SizedContainer]) -> Write | None:
    """The patch that requests ``sizes``; None if the pod requests them already, or has ended."""
    # The API server refuses to resize an ended pod.
    if has_finished(pod):
        return None
    present = _spec_sizes(pod)
    changes = [
        container
        for container in sizes
        if (has := by_name(present, container.name)) is not None and container.over(has) != has
    ]
    if not changes:
        return None
    body: Json = {"spec": {"containers": [write_container(container) for container in changes]}}
    # A strategic merge patch merges containers by name.
    return Write("pod", PODS, name_of(pod), body, "resize", version_of(pod), merges_lists=True)
