"""The policy of a Tortoise (S3.1-S3.6).

It sets an HPA's bounds and targets, and the HPA sets the replicas. No resource is changed until enough data has been
gathered for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.tortoise import horizontal, vertical
from scheduler_plugin.groups.core.tortoise.autoscaler import Autoscaler, Scaling, effective
from scheduler_plugin.groups.core.tortoise.autoscaler import horizontal as horizontal_places
from scheduler_plugin.groups.core.tortoise.tortoise_memory import (
    ObservedAutoscalers,
    Phase,
    PhaseInputs,
    Spec,
    TortoiseMemory,
    TortoiseMode,
    is_missing,
    is_within,
    next_phase,
    resource_phases,
)
from scheduler_plugin.groups.core.tortoise.vertical import ReplicaCounts, Resize, bounds_of
from scheduler_plugin.groups.core.workload import (
    OutOfMemory,
    Rule,
    SizeBounds,
    SizedContainer,
    WithheldChange,
    Workload,
    WorkloadDecision,
)


@dataclass(frozen=True, slots=True)
class TortoiseDecision:
    """Changes to write: the containers of ``decision``, and the HPA ``autoscaler`` (None for no HPA).

    ``autoscaler`` equals the observed one if nothing changes. ``proposed`` and ``sizes`` are the HPA and the requests
    regardless of delays and mode, for the status. ``unresolved_kills`` are sentences about containers that run out of
    memory and cannot get more.
    """

    decision: WorkloadDecision
    autoscaler: Autoscaler | None
    proposed: Autoscaler | None
    sizes: tuple[SizedContainer, ...]
    unresolved_kills: tuple[str, ...] = ()


def decide(
    spec: Spec, workload: Workload, observed: ObservedAutoscalers, memory: TortoiseMemory, now: datetime
) -> tuple[TortoiseDecision, TortoiseMemory]:
    """Return the decision at ``now`` (aware), and the new memory."""
    # Learn in every mode, so that a Tortoise has a memory when it is switched on.
    before, memory = memory, _learned(spec, workload, observed, memory, now)
    # A removed container leaves a metric in the HPA.
    gone = [place for place in horizontal_places(before.policies) if workload.container(place[0]) is None]
    desired = horizontal.base(spec, workload, observed.autoscaler, memory, gone)
    autoscaler, proposed, memory = _with_numbers(desired, spec, workload, memory, now)
    changes, memory = _sized(spec, workload, desired, memory, now)
    containers, withheld, after = vertical.written(changes, memory, now)
    explanation = tuple(_explained(spec, memory, proposed, changes))
    unresolved_kills = tuple(
        texts.KILLED.format(kill=kill, pods=pods, replicas=workload.replicas, why=why)
        for kill, pods, why in _kills(spec, workload, memory, now)
        if why
    )
    if spec.mode is TortoiseMode.OFF:
        dry = WorkloadDecision(
            withheld=tuple(_dry_run_changes(changes, observed.autoscaler, autoscaler)), explanation=explanation
        )
        # The observed HPA, so that nothing is written.
        return TortoiseDecision(dry, observed.autoscaler, proposed, _sizes(changes), unresolved_kills), memory
    decision = WorkloadDecision(containers=containers, withheld=tuple(withheld), explanation=explanation)
    return TortoiseDecision(decision, autoscaler, proposed, _sizes(changes), unresolved_kills), after


def _learned(
    spec: Spec, workload: Workload, observed: ObservedAutoscalers, memory: TortoiseMemory, now: datetime
) -> TortoiseMemory:
    configuration = spec.configuration
    attached = observed.autoscaler if spec.autoscaler is not None else None
    # While an attached HPA is missing, the policies that follow from it are unknown, so keep the old ones.
    is_lost = spec.autoscaler is not None and observed.autoscaler is None and spec.policies is None
    policies = memory.policies if is_lost else effective(spec.policies, workload.containers, attached)
    resources = resource_phases(memory.resources, policies, configuration.gathering, now)
    memory = replace(memory, policies=policies, resources=resources).with_missing_metrics(
        observed.metrics_missing_since, now
    )
    missing_since = memory.metrics_missing_since or observed.metrics_missing_since
    missing = is_missing(missing_since, configuration.emergency_mode_grace_period, now)
    # If the container's memory may grow, more replicas take the load until it has grown. OOM kills in many pods mean
    # too much load for all; a leak in one of twenty pods is only reported.
    kills = _kills(spec, workload, memory, now)
    killed = any(not why or _are_many(pods, workload.replicas) for _, pods, why in kills)
    inputs = PhaseInputs(spec.mode, bool(horizontal_places(policies)), observed.vertical is not None, missing, killed)
    phase = next_phase(memory.phase, [resource.state for resource in resources.values()], inputs)
    memory = replace(memory, phase=phase, replicas=memory.replicas.converted_to(configuration.layout))
    # Do not learn in an emergency, nor while pods crash: an HPA then adds more, so the count does not show the need.
    if phase.learns and workload.ready * 2 >= workload.replicas:
        replicas = memory.replicas.learned(workload.ready, configuration, now)
        memory = replace(memory, replicas=replicas).with_recommendation(observed.vertical)
    return memory.with_kills(workload)


def _with_numbers(
    desired: Autoscaler | None, spec: Spec, workload: Workload, memory: TortoiseMemory, now: datetime
) -> tuple[Autoscaler | None, Autoscaler | None, TortoiseMemory]:
    """Return the HPA to write, the one regardless of delays, and the new memory."""
    # Without enough data the HPA keeps its numbers.
    if desired is None or not horizontal.is_ready(memory):
        return desired, desired, memory
    ranged, memory = horizontal.with_range(desired, spec, workload.replicas, memory, now)
    learns = memory.phase is not None and memory.phase.learns
    proposed = horizontal.with_targets(ranged, spec.configuration, workload, memory) if learns else ranged
    autoscaler, after = horizontal.next_targets(desired, proposed, spec.configuration, memory, now)
    # With mode Off no targets are written, so do not record a change.
    return autoscaler, proposed, memory if spec.mode is TortoiseMode.OFF else after


def _sized(
    spec: Spec, workload: Workload, autoscaler: Autoscaler | None, memory: TortoiseMemory, now: datetime
) -> tuple[list[Resize], TortoiseMemory]:
    configuration, hpa_min = spec.configuration, None if autoscaler is None else autoscaler.min
    grows, memory = vertical.growth_due(memory, configuration, workload.replicas, hpa_min, now)
    numbers = ReplicaCounts(
        workload.replicas, hpa_min, configuration.minimum_min_replicas, configuration.preferred_max_replicas, grows
    )
    places = horizontal_places(memory.policies)
    targets = {place: None if autoscaler is None else autoscaler.target(*place) for place in places}
    return list(vertical.resizes(spec, workload, memory, numbers, targets)), memory


def _sizes(changes: Iterable[Resize]) -> tuple[SizedContainer, ...]:
    containers: dict[str, SizedContainer] = {}
    for change in changes:
        name, resource = change.place
        container = containers.get(name, SizedContainer(name))
        containers[name] = SizedContainer(name, container.requests.with_value(resource, change.decision.size))
    return tuple(containers.values())


def _dry_run_changes(
    changes: Iterable[Resize], before: Autoscaler | None, hpa: Autoscaler | None
) -> Iterable[WithheldChange]:
    """Yield the changes that are not written because the mode is Off."""
    message = texts.UPDATE_MODE_OFF
    for change in changes:
        if change.decision.size != change.request.value:
            size = type(change.request)(change.decision.size)
            yield WithheldChange("/".join(change.place), size, change.request, Rule.UPDATE_MODE, message)
    if hpa is not None and (before is None or (hpa.min, hpa.max) != (before.min, before.max)):
        yield WithheldChange("minReplicas", hpa.min, None if before is None else before.min, Rule.UPDATE_MODE, message)
        yield WithheldChange("maxReplicas", hpa.max, None if before is None else before.max, Rule.UPDATE_MODE, message)


_PHRASES: Final = {
    Phase.INITIALIZING: texts.INITIALIZING,
    Phase.GATHERING_DATA: texts.GATHERING_DATA,
    Phase.EMERGENCY: texts.EMERGENCY,
    Phase.BACK_TO_NORMAL: texts.BACK_TO_NORMAL,
}


def _explained(
    spec: Spec, memory: TortoiseMemory, proposed: Autoscaler | None, changes: Iterable[Resize]
) -> Iterator[str]:
    if spec.mode is TortoiseMode.EMERGENCY and memory.phase is not Phase.EMERGENCY:
        why = texts.MANY_UNKNOWN if horizontal_places(memory.policies) else texts.NOTHING_HORIZONTAL
        yield texts.NO_EMERGENCY.format(why=why)
    phase = _PHRASES.get(memory.phase or Phase.INITIALIZING, texts.WORKING)
    yield phase if proposed is None else texts.BETWEEN.format(phase=phase, bounds=proposed)
    for change in changes:
        if change.decision.size != change.request.value:
            size = type(change.request)(change.decision.size)
            yield texts.SIZE_CHANGE.format(container="/".join(change.place), change=change, size=size)


def _kills(spec: Spec, workload: Workload, memory: TortoiseMemory, now: datetime) -> list[tuple[OutOfMemory, int, str]]:
    """Recent OOM kills, each with the number of pods and the reason why the container's memory cannot grow."""
    grace = spec.configuration.emergency_mode_grace_period
    return [
        (kill, kill.pods_since(now - grace), _memory_limit_reason(spec, workload, memory, kill))
        for kill in workload.out_of_memory
        if is_within(kill.at, grace, now)
    ]


def _are_many(pods: int, replicas: int) -> bool:
    """Return True if this is more than a third of all pods, and more than one unless there is only one.

    >>> [_are_many(pods, 20) for pods in (1, 6, 7)], _are_many(1, 1), _are_many(1, 2)
    ([False, False, True], True, False)
    """
    return pods * 3 > replicas and (pods > 1 or replicas <= 1)


def _memory_limit_reason(spec: Spec, workload: Workload, memory: TortoiseMemory, kill: OutOfMemory) -> str:
    """The reason why the container's memory cannot grow; empty if it can."""
    container = workload.container(kill.container)
    size = None if container is None else container.sizes.memory
    if size is None:
        return texts.NO_MEMORY_SIZE
    if memory.policies.get((kill.container, "memory"), Scaling.OFF) is Scaling.OFF:
        return texts.MEMORY_OFF
    if not memory.works((kill.container, "memory")):
        return texts.MEMORY_GATHERING
    _, maximum = bounds_of(spec.sizes.get(kill.container, SizeBounds()), spec.configuration.sizes, "memory")
    return texts.MEMORY_AT_MOST.format(size=size) if size.value >= maximum else ""
