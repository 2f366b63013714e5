"""The pods of a workload as they are, and as they were when the present measurements were taken (pure).

Rules that hold here:

- An HPA's measurements are up to ``MEASURED_WITHIN`` old: they may describe any state of the pods in that time.
- Decisions wait for pods that differ from what was ordered, but not for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from scheduler_plugin.groups.core.workload import Resource, RunningPods, SizedContainer, by_name

MEASURED_WITHIN: Final = timedelta(seconds=90)
"""Metrics are up to 60 s old, and an HPA looks at them every 15 s."""

PATIENCE: Final = timedelta(minutes=5)
"""How long pods may differ before decisions go on: as long as the HPA controller gives a new pod to initialise."""

REFUSED_PATIENCE: Final = timedelta(minutes=1)
"""The same after a resize in place was refused: then waiting changes little."""

POSSIBLE_FOR: Final = timedelta(days=1)
"""How long after a refusal no more is ordered than pods could have then."""

MOST_PASTS: Final = 16


@dataclass(frozen=True, slots=True)
class PastPods:
    """This many ready pods of these mean ``sizes`` from ``since`` (an aware time) on."""

    since: datetime
    ready: int
    sizes: tuple[SizedContainer, ...] = ()


@dataclass(frozen=True, slots=True)
class Possible:
    """No pod could have more than ``most`` of a container's resource at ``at`` (an aware time)."""

    container: str
    resource: Resource
    most: int
    at: datetime


@dataclass(frozen=True, slots=True)
class PodsMemory:
    """Memory of the pods: the ``past``, the latest last; since when they differ; and what is possible."""

    past: tuple[PastPods, ...] = ()
    differ_since: datetime | None = None
    possible: tuple[Possible, ...] = ()

    def most(self, container: str, resource: Resource) -> int | None:
        """The most that pods can have of it; None if nothing was refused."""
        limits = (limit.most for limit in self.possible if (limit.container, limit.resource) == (container, resource))
        return next(limits, None)


def followed(memory: PodsMemory, pods: RunningPods | None, now: datetime) -> PodsMemory:
    """The memory with the pods as they are now. A time in the future proves nothing."""
    possible = tuple(limit for limit in memory.possible if timedelta(0) <= now - limit.at < POSSIBLE_FOR)
    if pods is None:
        return PodsMemory(possible=possible)
    since = memory.differ_since
    # A difference counts from when it began; a time in the future comes from another clock.
    since = None if not pods.difference else since if since is not None and since <= now else now
    updated = PodsMemory(_past(memory.past, pods, now), since, possible)
    # A refusal counts only once the patience is over: the kubelet may still find room.
    if waits_for(updated, pods, now) or not pods.difference:
        return updated
    refused = {
        (container.name, resource): Possible(container.name, resource, amount.value, now)
        for container in pods.refused
        for resource, amount in container.sizes
    }
    # A newer refusal replaces the older one for the same resource.
    remaining = tuple(limit for limit in possible if (limit.container, limit.resource) not in refused)
    return PodsMemory(updated.past, since, (*remaining, *refused.values()))


def waits_for(memory: PodsMemory, pods: RunningPods | None, now: datetime) -> str:
    """The difference of the pods from what was ordered, as long as decisions wait for it; else empty."""
    if pods is None or memory.differ_since is None:
        return ""
    patience = REFUSED_PATIENCE if pods.refused else PATIENCE
    return pods.difference if now - memory.differ_since < patience else ""


def _past(past: Sequence[PastPods], pods: RunningPods, now: datetime) -> tuple[PastPods, ...]:
    """The pods now, after those that a measurement may still describe."""
    before = past[-1] if past else None
    is_same = before is not None and (before.ready, before.sizes) == (pods.ready, pods.sizes)
    entries = [*past] if is_same else [*past, PastPods(now, pods.ready, pods.sizes)]
    # An entry ends when the next one begins; the last one still holds.
    ends = [later.since for later in entries[1:]]
    recent = [entry for entry, end in zip(entries, ends, strict=False) if timedelta(0) <= now - end < MEASURED_WITHIN]
    return (*recent, entries[-1])[-MOST_PASTS:]


def requested(sizes: Sequence[SizedContainer], container: str, resource: Resource) -> int:
    """The request of a pod of these sizes for one container."""
    sized = by_name(sizes, container)
    amount = None if sized is None else sized.sizes[resource]
    return 0 if amount is None else amount.value
