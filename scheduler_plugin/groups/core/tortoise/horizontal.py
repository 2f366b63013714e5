"""Bounds and target utilization of the HPA (S3.1-S3.3, S3.6).

The target leaves headroom for peaks: the HPA sees the mean of all replicas, and a new replica needs time to start.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from protocol.units import Amount
from scheduler_plugin.groups.core.tortoise.autoscaler import Autoscaler, Place, Scaling, horizontal
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.tortoise_memory import (
    Phase,
    Spec,
    TortoiseMemory,
    capped,
    has_passed,
    proposed,
    step_back,
)
from scheduler_plugin.groups.core.workload import NOTHING, ReplicaBounds, Workload

A = TypeVar("A", bound=Amount)


def target_utilisation(recommended: A, request: A, current: int, configuration: Configuration) -> int:
    """Target in percent: 100 - (``recommended`` / ``request`` in percent - ``current``), within the configured range.

    ``request`` is above zero. ``current`` stays if the result is not within 1..100. Use is rounded up to whole percent.
    """
    used = -(-recommended.value * 100 // request.value)
    target = 100 - (used - current)
    valid = target if 0 < target <= 100 else current
    minimum, maximum = (
        configuration.minimum_target_resource_utilization,
        configuration.maximum_target_resource_utilization,
    )
    return max(minimum, min(maximum, valid))


def next_target(current: int, recommended: int, most_increase: int) -> int:
    """Next step from ``current`` to ``recommended``: down in one step, up by at most ``most_increase``.

    >>> next_target(50, 80, 5), next_target(78, 80, 5), next_target(80, 70, 5)
    (55, 80, 70)
    """
    # A lower target adds replicas, which is safe; a higher one removes them, so go in steps.
    return min(recommended, current + most_increase)


def base(
    spec: Spec, workload: Workload, hpa: Autoscaler | None, memory: TortoiseMemory, gone: Collection[Place] = ()
) -> Autoscaler | None:
    """The HPA with its metrics, before its bounds and targets are set; None for no HPA.

    ``gone`` are horizontally scaled resources of removed containers.
    """
    places, excluded = horizontal(memory.policies), spec.configuration.hpa_external_metric_exclusion_regex
    if spec.autoscaler is not None and hpa is not None:
        # Leave an attached HPA alone until enough is known.
        has_data = memory.phase not in (None, Phase.INITIALIZING, Phase.GATHERING_DATA)
        return _attached(hpa, workload, memory, gone, excluded) if has_data else hpa
    if not places:
        return None
    # A new HPA starts around the present replicas.
    bounds = capped(proposed(workload.replicas, spec.configuration), spec.configuration, spec.max_replicas)
    initial = hpa or Autoscaler(bounds.min, bounds.max)
    others = [place for place in memory.policies if place not in places]
    return initial.managing(places, [*others, *gone]).without(excluded)


def _attached(
    hpa: Autoscaler, workload: Workload, memory: TortoiseMemory, gone: Collection[Place], excluded: re.Pattern[str]
) -> Autoscaler:
    """An attached HPA with its metrics.

    A resource is converted to container metrics once there is enough data for all its containers. An HPA that loses its
    last metric is pinned to the present replica count, unless that is zero.
    """
    places = horizontal(memory.policies)
    gathering = {resource for name, resource in places if not memory.works((name, resource))}
    managed = [place for place in places if place[1] not in gathering]
    vertical = [
        place
        for place, policy in memory.policies.items()
        if policy is Scaling.VERTICAL and memory.works(place) and place[1] not in gathering
    ]
    updated = hpa.managing(managed, [*vertical, *gone]).without(excluded)
    # Without metrics the API server would default to 80 % CPU, so pin it to the present count.
    if updated.metrics or not hpa.metrics or not workload.replicas:
        return updated if updated.metrics else hpa
    pinned = Autoscaler(workload.replicas, workload.replicas)
    # Already pinned.
    return hpa if (hpa.min, hpa.max) == (pinned.min, pinned.max) else pinned


def is_ready(memory: TortoiseMemory) -> bool:
    """Return True if there is enough data to set the HPA's bounds and targets."""
    places = horizontal(memory.policies)
    # An emergency starts only with enough data.
    if memory.phase in (Phase.EMERGENCY, Phase.BACK_TO_NORMAL):
        return bool(places)
    return memory.phase is not Phase.INITIALIZING and any(memory.works(place) for place in places)


def with_range(
    hpa: Autoscaler, spec: Spec, replicas: int, memory: TortoiseMemory, now: datetime
) -> tuple[Autoscaler, TortoiseMemory]:
    """Return ``hpa`` with the replica bounds of this slot, or of an emergency, and the new memory."""
    configuration = spec.configuration
    bounds = memory.replicas.at(now) or proposed(replicas, configuration)
    recommended = capped(bounds, configuration, spec.max_replicas)
    if memory.phase is Phase.EMERGENCY:
        # An emergency removes no replicas.
        maximum = capped(
            ReplicaBounds(0, max(recommended.max, hpa.max, replicas)), configuration, spec.max_replicas
        ).max
        return replace(hpa, min=maximum, max=maximum), memory
    if memory.phase is not Phase.BACK_TO_NORMAL:
        return replace(hpa, min=recommended.min, max=recommended.max), memory
    return _stepping_back(hpa, recommended, configuration, memory, now)


def _stepping_back(
    hpa: Autoscaler, recommended: ReplicaBounds, configuration: Configuration, memory: TortoiseMemory, now: datetime
) -> tuple[Autoscaler, TortoiseMemory]:
    """Lower the minimum by one step per update interval; after the last one the phase is Working."""
    at = memory.stepped_at
    if not has_passed(configuration.tortoise_update_interval, at, now):
        # Between steps the minimum stays; the maximum may follow.
        return replace(hpa, max=max(hpa.min, recommended.max)), memory
    minimum, is_over = step_back(hpa.min, recommended.min, configuration.replica_reduction_factor)
    stepped = replace(memory, stepped_at=now)
    if is_over:
        stepped = replace(memory, stepped_at=None, phase=Phase.WORKING)
    return replace(hpa, min=minimum, max=max(minimum, recommended.max)), stepped


def with_targets(
    autoscaler: Autoscaler, configuration: Configuration, workload: Workload, memory: TortoiseMemory
) -> Autoscaler:
    """Set the targets that the recommendations imply, regardless of delays."""
    # At the maximum replica count utilization does not show the need.
    if workload.replicas >= configuration.maximum_max_replicas:
        return autoscaler
    for container, resource in horizontal(memory.policies):
        current, shape = autoscaler.target(container, resource), workload.container(container)
        request = None if shape is None else shape.sizes[resource]
        recommended = memory.recommended.get(container, NOTHING)[resource]
        if memory.works((container, resource)) and current is not None and request and recommended:
            target = target_utilisation(recommended, request, current, configuration)
            autoscaler = autoscaler.with_target(container, resource, target)
    return autoscaler


def next_targets(
    old: Autoscaler, desired: Autoscaler, configuration: Configuration, memory: TortoiseMemory, now: datetime
) -> tuple[Autoscaler, TortoiseMemory]:
    """Return ``desired`` with targets at most one step from ``old``, once per update interval, and the new memory.

    Lower targets wait too: each is computed from measurements under the old target, so without a pause they would fall
    to the minimum.
    """
    at = memory.targets_at
    allowed = has_passed(configuration.hpa_target_utilization_update_interval, at, now)
    updated = desired
    for container, resource in horizontal(memory.policies):
        current, target = old.target(container, resource), desired.target(container, resource)
        # A new metric has no old target.
        if current is not None and target is not None and target != current:
            max_increase = configuration.hpa_target_utilization_max_increase
            updated = updated.with_target(
                container, resource, next_target(current, target, max_increase) if allowed else current
            )
    changed = updated.metrics != old.metrics
    return updated, replace(memory, targets_at=now) if changed else memory
