"""How many replicas a VPA's target describes: it comes from past use, and there may have been other replicas then.

Rules that hold here:

- After scaling out a target stays the same for hours or days. Until it has come down to what the present replicas
  explain, or has risen, it describes the earlier replicas: so nothing runs away to ``maxReplicas``.
- After scaling in a target rises within hours. Until then it describes the most replicas of that time.
- So a total lies between two numbers. Scaling out believes the smaller one, scaling in and sizes the larger one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Final

from scheduler_plugin.groups.core.hvpa.spec import HvpaSpec, PastReplicas, PastTarget, ScalingTimes
from scheduler_plugin.groups.core.hvpa.wishes import sized_containers
from scheduler_plugin.groups.core.running_pods import followed, waits_for
from scheduler_plugin.groups.core.workload import Recommendations, Resource, Workload

RISES_WITHIN: Final = timedelta(hours=4)
"""A 90th percentile with a half-life of a day follows a rise when a tenth of its weight is new: in 3.7 hours."""

MOST_COUNTS: Final = 32
"""This many changes of the replicas are remembered within that time."""

_EXPLAINED: Final = Fraction(105, 100)  # a bucket of VPA's histogram is 5 % wide


def remembered(
    memory: ScalingTimes, spec: HvpaSpec, workload: Workload, recommendations: Recommendations, now: datetime
) -> ScalingTimes:
    """``memory`` with the targets and the pods as they are now.

    While decisions wait for pods, few of them may serve: a target that rises then describes these few, and any other
    target those before.
    """
    memory = replace(memory, pods=followed(memory.pods, workload.pods, now))
    waits = bool(waits_for(memory.pods, workload.pods, now))
    targets = _targets(memory, spec, workload, recommendations, waits=waits)
    return replace(memory, targets=targets, counts=_counts(memory, workload, now))


def _targets(
    memory: ScalingTimes, spec: HvpaSpec, workload: Workload, recommendations: Recommendations, *, waits: bool
) -> tuple[PastTarget, ...]:
    # The fewest replicas that may explain the target, so that scaling out believes the smaller total.
    fewest = max(1, min([workload.serving, *(past.ready for past in memory.pods.past)]))
    previous = {(past_target.container, past_target.resource): past_target for past_target in memory.targets}
    if recommendations.vertical is None:
        return memory.targets
    return tuple(
        _followed(
            previous.get((container.name, resource)),
            PastTarget(container.name, resource, target.value, fewest),
            waits=waits,
        )
        for container, recommended in sized_containers(spec, workload, recommendations)
        for resource, target in recommended.uncapped.over(recommended.target)
    )


def _followed(old: PastTarget | None, new: PastTarget, *, waits: bool) -> PastTarget:
    # A target that rises describes the present replicas.
    if old is None or new.target > old.target:
        return new
    # Once the total (target times replicas) is no larger than before, the present replicas explain the target.
    is_explained = new.target * new.replicas <= old.target * old.replicas * _EXPLAINED
    return new if is_explained and not waits else old


def _counts(memory: ScalingTimes, workload: Workload, now: datetime) -> tuple[PastReplicas, ...]:
    """The present count and since when, after earlier larger ones; smaller ones say nothing about the maximum."""
    larger = [past for past in memory.counts if past.replicas > workload.replicas]
    same = next((past for past in memory.counts if past.replicas == workload.replicas), None)
    entries = [*larger, same or PastReplicas(now, workload.replicas)]
    # An entry ends when the next one begins; the last one still holds.
    ended = [later.since for later in entries[1:]]
    recent = [past for past, end in zip(entries, ended, strict=False) if timedelta(0) <= now - end < RISES_WITHIN]
    return (*recent[: MOST_COUNTS - 1], entries[-1])


def described(memory: ScalingTimes, container: str, resource: Resource, replicas: int) -> tuple[int, int]:
    """The fewest and the most replicas that the target of this container may describe, while there are ``replicas``."""
    explained = (past.replicas for past in memory.targets if (past.container, past.resource) == (container, resource))
    # `replicas` twice, so that `min` has two arguments even without a memory.
    most = max((past.replicas for past in memory.counts), default=replicas)
    return min(replicas, *explained, replicas), max(replicas, most)
