"""Spec of a Tortoise, observations of its target, its memory, and its phases (S3.2, S3.3, S3.6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fractions import Fraction
from math import ceil, floor
from typing import Final, TypeVar

from protocol.units import Amount
from scheduler_plugin.groups.core.tortoise.autoscaler import Autoscaler, Place, Policies, Scaling
from scheduler_plugin.groups.core.tortoise.configuration import SLOT_DECAY, Configuration
from scheduler_plugin.groups.core.tortoise.slots import SlotLayout, SlotMemory
from scheduler_plugin.groups.core.workload import (
    NOTHING,
    ContainerRecommendation,
    ReplicaBounds,
    ResourceList,
    SizeBounds,
    SizedContainer,
    VerticalRecommendation,
    Workload,
    after_kill,
)


class TortoiseMode(StrEnum):
    """``spec.updateMode``. With ``Off``, changes are only reported."""

    OFF = "Off"
    AUTO = "Auto"
    EMERGENCY = "Emergency"


class Phase(StrEnum):
    """``status.tortoisePhase``."""

    INITIALIZING = "Initializing"
    GATHERING_DATA = "GatheringData"
    PARTLY_WORKING = "PartlyWorking"
    WORKING = "Working"
    EMERGENCY = "Emergency"
    BACK_TO_NORMAL = "BackToNormal"

    @property
    def learns(self) -> bool:
        """True if observations show the need: not during an emergency, nor while returning from one."""
        return self not in (Phase.EMERGENCY, Phase.BACK_TO_NORMAL)


class ResourceState(StrEnum):
    """State of one resource of one container."""

    OFF = "Off"
    GATHERING_DATA = "GatheringData"
    WORKING = "Working"


@dataclass(frozen=True, slots=True)
class ResourcePhase:
    """State of one resource of one container, and since when."""

    state: ResourceState
    since: datetime


@dataclass(frozen=True, slots=True)
class PhaseInputs:
    """Inputs of the next phase, other than the previous one.

    ``ready`` is True if there are recommendations, ``metrics_missing`` if metrics have been missing for longer than the
    grace period, ``out_of_memory`` after recent OOM kills that more replicas or memory would prevent.
    """

    mode: TortoiseMode
    has_horizontal: bool
    ready: bool = True
    metrics_missing: bool = False
    out_of_memory: bool = False

    @property
    def is_emergency(self) -> bool:
        """True if the workload should have its maximum replica count."""
        is_alarming = self.metrics_missing or self.out_of_memory
        return self.mode is TortoiseMode.EMERGENCY or (self.mode is TortoiseMode.AUTO and is_alarming)


def is_missing(since: datetime | None, grace: timedelta, now: datetime) -> bool:
    """Return True if metrics have been missing since ``since``, longer than the grace period; None: not missing."""
    return since is not None and now - since >= grace


def is_within(at: datetime, grace: timedelta, now: datetime) -> bool:
    """Return True if ``at`` is less than ``grace`` ago, or ahead by a clock difference of up to ``grace``."""
    return abs(now - at) < grace


def has_passed(span: timedelta, since: datetime | None, now: datetime) -> bool:
    """Return True if ``span`` has passed since ``since``; a future time comes from another clock and is ignored."""
    return since is None or since > now or now - since >= span


_MAY_RAISE_ALARM: Final = frozenset({Phase.PARTLY_WORKING, Phase.WORKING, Phase.BACK_TO_NORMAL})
"""Phases with enough data for an emergency."""


def next_phase(phase: Phase | None, states: Collection[ResourceState], inputs: PhaseInputs) -> Phase:
    """The phase after ``phase``, which is None for a new Tortoise."""
    following = _next(phase, states, inputs)
    # Other phases have too little data for an emergency.
    return (
        Phase.EMERGENCY
        if inputs.is_emergency and inputs.has_horizontal and following in _MAY_RAISE_ALARM
        else following
    )


def _next(phase: Phase | None, states: Collection[ResourceState], inputs: PhaseInputs) -> Phase:
    match phase:
        case None:
            return Phase.INITIALIZING
        case Phase.INITIALIZING:
            return Phase.GATHERING_DATA if inputs.ready else phase
        case Phase.EMERGENCY:
            return phase if inputs.is_emergency else Phase.BACK_TO_NORMAL
        case Phase.BACK_TO_NORMAL:
            # Without an HPA, or with mode Off, there are no steps to take.
            return phase if inputs.has_horizontal and inputs.mode is not TortoiseMode.OFF else Phase.WORKING
    return by_states(states) or phase


def by_states(states: Collection[ResourceState]) -> Phase | None:
    """The phase that follows from the states of the resources; None if nothing is scaled."""
    gathering, working = ResourceState.GATHERING_DATA in states, ResourceState.WORKING in states
    if gathering and working:
        return Phase.PARTLY_WORKING
    return Phase.WORKING if working else Phase.GATHERING_DATA if gathering else None


def resource_phases(
    old: Mapping[Place, ResourcePhase], policies: Policies, gathering: timedelta, now: datetime
) -> dict[Place, ResourcePhase]:
    """Update the phase of every resource. New ones gather data first; removed ones are dropped."""
    return {place: _resource_phase(old.get(place), policy, gathering, now) for place, policy in policies.items()}


def _resource_phase(old: ResourcePhase | None, policy: Scaling, gathering: timedelta, now: datetime) -> ResourcePhase:
    if policy is Scaling.OFF:
        return old if old is not None and old.state is ResourceState.OFF else ResourcePhase(ResourceState.OFF, now)
    if old is None or old.state is ResourceState.OFF:
        return ResourcePhase(ResourceState.GATHERING_DATA, now)
    # A working resource stays so, even if the period is made longer.
    if old.state is not ResourceState.GATHERING_DATA:
        return old
    # A future date comes from another clock, so start again.
    if old.since > now:
        return ResourcePhase(ResourceState.GATHERING_DATA, now)
    return ResourcePhase(ResourceState.WORKING, now) if now - old.since >= gathering else old


A = TypeVar("A", bound=Amount)


def maximum(old: A, target: A, upper: A) -> A:
    """The new maximum: ``old`` if it is between ``target`` and ``upper`` (exclusive), otherwise ``target``.

    Above ``upper`` the recommender is certain that ``old`` is too much.
    """
    return old if target < old < upper else target


def learned(old: ResourceList, recommendation: ContainerRecommendation) -> ResourceList:
    """Update the maxima of one container with ``recommendation``; missing resources stay.

    Without an upper bound a maximum can only rise.
    """
    maxima = old
    for resource, target in recommendation.target:
        previous, upper = old[resource] or target, recommendation.upper[resource]
        highest = maximum(previous, target, upper) if upper else max(previous, target)
        maxima = maxima.with_value(resource, highest.value)
    return maxima


def proposed(replicas: int, configuration: Configuration) -> ReplicaBounds:
    """Replica bounds that follow from one observed replica count (>= 0).

    The minimum is at least ``minimum_min_replicas``; a maximum below that is derived from ``minimum_min_replicas``.
    """
    lowest = configuration.minimum_min_replicas
    low, high = (
        configuration.min_replicas_recommendation_multiplier,
        configuration.max_replicas_recommendation_multiplier,
    )
    minimum, maximum = ceil(replicas * low), ceil(replicas * high)
    # In the ratio of the multipliers.
    return ReplicaBounds(max(minimum, lowest), maximum if maximum >= lowest else floor(lowest * high / low))


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """Minimum and maximum replica count of each slot."""

    min: SlotMemory
    max: SlotMemory

    @classmethod
    def empty(cls, layout: SlotLayout) -> ReplicaMemory:
        """Without data."""
        return cls(SlotMemory(layout), SlotMemory(layout))

    def learned(self, replicas: int, configuration: Configuration, now: datetime) -> ReplicaMemory:
        """Update the slot at ``now`` with this replica count."""
        proposal = proposed(replicas, configuration)
        return ReplicaMemory(
            self.min.learned(proposal.min, SLOT_DECAY, now), self.max.learned(proposal.max, SLOT_DECAY, now)
        )

    def at(self, now: datetime) -> ReplicaBounds | None:
        """Recommended bounds in the slot at ``now``; None without data."""
        minimum, maximum = self.min.at(now), self.max.at(now)
        return None if minimum is None or maximum is None else ReplicaBounds(minimum, maximum)

    def converted_to(self, layout: SlotLayout) -> ReplicaMemory:
        """Convert to another layout."""
        return ReplicaMemory(self.min.converted_to(layout), self.max.converted_to(layout))


def capped(bounds: ReplicaBounds, configuration: Configuration, max_replicas: int | None) -> ReplicaBounds:
    """Cap ``bounds`` at the cluster's maxima and the Tortoise's ``max_replicas``."""
    maximum = min(bounds.max, configuration.maximum_max_replicas)
    maximum = maximum if max_replicas is None else min(maximum, max_replicas)
    return ReplicaBounds(min(bounds.min, configuration.maximum_min_replicas, maximum), maximum)


def step_back(current: int, recommended: int, factor: Fraction) -> tuple[int, bool]:
    """Return the minimum replica count after one more step back from an emergency, and whether it was the last step.

    Each step multiplies the count by ``factor`` (0..1) and rounds down, until it reaches ``recommended``.

    >>> step_back(95, 5, Fraction("0.95")), step_back(5, 5, Fraction("0.95"))
    ((90, False), (5, True))
    """
    reduced = floor(current * factor)
    # The last step is the recommendation.
    return (recommended, True) if recommended > reduced else (reduced, False)


@dataclass(frozen=True, slots=True)
class Spec:
    """Spec of one Tortoise, and the cluster's ``configuration``.

    ``autoscaler`` is the name of an attached HPA, None if the Tortoise has its own. ``policies`` is None if they follow
    from the HPA. ``sizes`` are bounds by container.
    """

    configuration: Configuration = field(default_factory=Configuration)
    mode: TortoiseMode = TortoiseMode.OFF
    autoscaler: str | None = None
    policies: Policies | None = None
    sizes: Mapping[str, SizeBounds] = field(default_factory=dict)
    max_replicas: int | None = None


@dataclass(frozen=True, slots=True)
class ObservedAutoscalers:
    """The HPA, the VPA's recommendation, and since when the HPA lacks metrics."""

    autoscaler: Autoscaler | None = None
    vertical: VerticalRecommendation | None = None
    metrics_missing_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class TortoiseMemory:
    """Persistent memory, stored in the Tortoise's status.

    ``recommended`` are maximum recommendations by container. ``targets_at`` is the last change of target utilisations,
    ``shrunk_at`` the last decrease of a container, ``stepped_at`` the last step back from an emergency.
    ``too_many_since`` is since when there have been too many replicas, or the last growth of containers because of
    that. ``metrics_missing_since`` is set only if the HPA's own time is in the future.
    """

    replicas: ReplicaMemory
    phase: Phase | None = None
    policies: Policies = field(default_factory=dict)
    resources: Mapping[Place, ResourcePhase] = field(default_factory=dict)
    recommended: Mapping[str, ResourceList] = field(default_factory=dict)
    targets_at: datetime | None = None
    too_many_since: datetime | None = None
    shrunk_at: datetime | None = None
    stepped_at: datetime | None = None
    metrics_missing_since: datetime | None = None

    @classmethod
    def empty(cls, configuration: Configuration) -> TortoiseMemory:
        """Memory of a new Tortoise."""
        return cls(ReplicaMemory.empty(configuration.layout))

    def works(self, place: Place) -> bool:
        """Return True if there is enough data to scale that resource."""
        return place in self.resources and self.resources[place].state is ResourceState.WORKING

    def with_missing_metrics(self, since: datetime | None, now: datetime) -> TortoiseMemory:
        """Record that the HPA has been without metrics since ``since``; None if it has metrics."""
        if since is None or since <= now:
            return replace(self, metrics_missing_since=None)
        # A future time comes from another clock: use the time of the first observation.
        return replace(
            self,
            metrics_missing_since=now if self.metrics_missing_since is None else min(self.metrics_missing_since, now),
        )

    def with_recommendation(self, vertical: VerticalRecommendation | None) -> TortoiseMemory:
        """Update the maxima with the VPA's recommendation; containers without a policy are dropped."""
        names = {container for container, _ in self.policies}
        recommendation = vertical or VerticalRecommendation()
        maxima = {
            # Keep the maxima of containers without a recommendation.
            name: learned(
                self.recommended.get(name, NOTHING), recommendation.container(name) or ContainerRecommendation(name)
            )
            for name in sorted(names)
        }
        return replace(self, recommended={name: sizes for name, sizes in maxima.items() if sizes})

    def with_kills(self, workload: Workload) -> TortoiseMemory:
        """Raise the recommended memory of OOM-killed containers, also in an emergency."""
        maxima = dict(self.recommended)
        for kill in workload.out_of_memory:
            container = workload.container(kill.container) or SizedContainer(kill.container)
            # Without a limit use the request.
            current = container.limits.memory or container.sizes.memory
            if current is not None and self.policies.get((kill.container, "memory"), Scaling.OFF) is not Scaling.OFF:
                sizes = maxima.get(kill.container, NOTHING)
                # Never lower an earlier recommendation.
                needed = max(after_kill(current).value, 0 if sizes.memory is None else sizes.memory.value)
                maxima[kill.container] = sizes.with_value("memory", needed)
        return replace(self, recommended=maxima)
