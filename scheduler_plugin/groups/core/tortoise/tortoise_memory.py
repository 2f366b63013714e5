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
    """``spec.updateMode``. Off: changes are only reported."""

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
        """True if observations show the need."""
        # Not during an emergency, nor on the way back.
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
class Circumstances:
    """Inputs of the phase besides the previous one.

    ``ready``: there are recommendations. ``metrics_missing``: for longer than the grace period. ``out_of_memory``:
    recent OOM kills that more replicas or memory can answer.
    """

    mode: TortoiseMode
    has_horizontal: bool
    ready: bool = True
    metrics_missing: bool = False
    out_of_memory: bool = False

    @property
    def is_emergency(self) -> bool:
        """True if the highest replica count ever should run."""
        is_alarming = self.metrics_missing or self.out_of_memory
        return self.mode is TortoiseMode.EMERGENCY or (self.mode is TortoiseMode.AUTO and is_alarming)


def is_missing(since: datetime | None, grace: timedelta, now: datetime) -> bool:
    """Return True if metrics missing since ``since`` (None: present) exceed the grace period."""
    return since is not None and now - since >= grace


def is_within(at: datetime, grace: timedelta, now: datetime) -> bool:
    """Return True if ``at`` is less than ``grace`` ago, or ahead by a clock difference of up to ``grace``."""
    return abs(now - at) < grace


def has_passed(span: timedelta, since: datetime | None, now: datetime) -> bool:
    """Return True if ``span`` has passed since ``since``; a future time is from another clock and proves nothing."""
    return since is None or since > now or now - since >= span


_MAY_RAISE_ALARM: Final = frozenset({Phase.PARTLY_WORKING, Phase.WORKING, Phase.BACK_TO_NORMAL})
"""Phases with enough data for an emergency."""


def next_phase(phase: Phase | None, states: Collection[ResourceState], circumstances: Circumstances) -> Phase:
    """The phase after ``phase`` (None: new Tortoise)."""
    following = _next(phase, states, circumstances)
    # Other phases have too little data for an emergency.
    return (
        Phase.EMERGENCY
        if circumstances.is_emergency and circumstances.has_horizontal and following in _MAY_RAISE_ALARM
        else following
    )


def _next(phase: Phase | None, states: Collection[ResourceState], circumstances: Circumstances) -> Phase:
    match phase:
        case None:
            return Phase.INITIALIZING
        case Phase.INITIALIZING:
            return Phase.GATHERING_DATA if circumstances.ready else phase
        case Phase.EMERGENCY:
            return phase if circumstances.is_emergency else Phase.BACK_TO_NORMAL
        case Phase.BACK_TO_NORMAL:
            # Otherwise there are no steps back.
            return (
                phase if circumstances.has_horizontal and circumstances.mode is not TortoiseMode.OFF else Phase.WORKING
            )
    return by_states(states) or phase


def by_states(states: Collection[ResourceState]) -> Phase | None:
    """The phase by the states of the resources; None if nothing is scaled."""
    gathering, working = ResourceState.GATHERING_DATA in states, ResourceState.WORKING in states
    if gathering and working:
        return Phase.PARTLY_WORKING
    return Phase.WORKING if working else Phase.GATHERING_DATA if gathering else None


def resource_phases(
    old: Mapping[Place, ResourcePhase], policies: Policies, gathering: timedelta, now: datetime
) -> dict[Place, ResourcePhase]:
    """The phase of every resource: new ones gather data first. Removed containers are dropped."""
    return {place: _resource_phase(old.get(place), policy, gathering, now) for place, policy in policies.items()}


def _resource_phase(old: ResourcePhase | None, policy: Scaling, gathering: timedelta, now: datetime) -> ResourcePhase:
    if policy is Scaling.OFF:
        return old if old is not None and old.state is ResourceState.OFF else ResourcePhase(ResourceState.OFF, now)
    if old is None or old.state is ResourceState.OFF:
        return ResourcePhase(ResourceState.GATHERING_DATA, now)
    # It stays working if the period gets longer.
    if old.state is not ResourceState.GATHERING_DATA:
        return old
    # A future date is from another clock: gather again.
    if old.since > now:
        return ResourcePhase(ResourceState.GATHERING_DATA, now)
    return ResourcePhase(ResourceState.WORKING, now) if now - old.since >= gathering else old


A = TypeVar("A", bound=Amount)


def maximum(old: A, target: A, upper: A) -> A:
    """The ``old`` maximum while it is between ``target`` and ``upper``, exclusive; otherwise ``target``.

    Above ``upper`` the recommender is sure that it is too much.
    """
    return old if target < old < upper else target


def learned(old: ResourceList, recommendation: ContainerRecommendation) -> ResourceList:
    """The maxima of one container updated by ``recommendation``; missing resources stay.

    Without an upper bound a maximum only rises.
    """
    maxima = old
    for resource, target in recommendation.target:
        previous, upper = old[resource] or target, recommendation.upper[resource]
        highest = maximum(previous, target, upper) if upper else max(previous, target)
        maxima = maxima.with_value(resource, highest.value)
    return maxima


def proposed(replicas: int, configuration: Configuration) -> ReplicaBounds:
    """Bounds of a slot by this replica count (>= 0) alone.

    A minimum below ``minimum_min_replicas`` becomes that; a maximum below it becomes its counterpart.
    """
    least = configuration.minimum_min_replicas
    low, high = (
        configuration.min_replicas_recommendation_multiplier,
        configuration.max_replicas_recommendation_multiplier,
    )
    minimum, maximum = ceil(replicas * low), ceil(replicas * high)
    # The counterpart keeps the ratio of the multipliers.
    return ReplicaBounds(max(minimum, least), maximum if maximum >= least else floor(least * high / low))


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """Minimum and maximum replica count of each slot."""

    least: SlotMemory
    most: SlotMemory

    @classmethod
    def empty(cls, layout: SlotLayout) -> ReplicaMemory:
        """Without data."""
        return cls(SlotMemory(layout), SlotMemory(layout))

    def learned(self, replicas: int, configuration: Configuration, now: datetime) -> ReplicaMemory:
        """The memory updated with this replica count."""
        proposal = proposed(replicas, configuration)
        return ReplicaMemory(
            self.least.learned(proposal.min, SLOT_DECAY, now), self.most.learned(proposal.max, SLOT_DECAY, now)
        )

    def at(self, now: datetime) -> ReplicaBounds | None:
        """Recommendation of the slot of ``now``; None without data."""
        least, most = self.least.at(now), self.most.at(now)
        return None if least is None or most is None else ReplicaBounds(least, most)

    def laid_out(self, layout: SlotLayout) -> ReplicaMemory:
        """Converted to another layout."""
        return ReplicaMemory(self.least.laid_out(layout), self.most.laid_out(layout))


def capped(bounds: ReplicaBounds, configuration: Configuration, max_replicas: int | None) -> ReplicaBounds:
    """``bounds`` within the cluster's caps and the Tortoise's ``max_replicas``."""
    most = min(bounds.max, configuration.maximum_max_replicas)
    most = most if max_replicas is None else min(most, max_replicas)
    # `most` caps both.
    return ReplicaBounds(min(bounds.min, configuration.maximum_min_replicas, most), most)


def step_back(current: int, recommended: int, factor: Fraction) -> tuple[int, bool]:
    """Minimum replica count one step after an emergency, and whether it was the last step.

    Each step keeps ``factor`` (0..1) of ``current``, rounded down, until ``recommended``.

    >>> step_back(95, 5, Fraction("0.95")), step_back(5, 5, Fraction("0.95"))
    ((90, False), (5, True))
    """
    reduced = floor(current * factor)
    # The last step is the recommendation.
    return (recommended, True) if recommended > reduced else (reduced, False)


@dataclass(frozen=True, slots=True)
class Spec:
    """Spec of one Tortoise, and the cluster's ``configuration``. ``autoscaler`` is an attached HPA; None: its own.

    ``policies`` is None if they follow from the HPA. ``sizes`` are bounds by container.
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

    ``recommended`` are maxima of recommendations, by container. ``targets_at``: last change of targets.
    ``too_many_since``: since when there are too many replicas, or the last growth of containers because of that.
    ``shrunk_at``: last decrease of a container. ``stepped_at``: last step back after an emergency. ``blind_since``:
    since when the HPA lacks metrics, if its own time for that is in the future.
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
    blind_since: datetime | None = None

    @classmethod
    def empty(cls, configuration: Configuration) -> TortoiseMemory:
        """Memory of a new Tortoise."""
        return cls(ReplicaMemory.empty(configuration.layout))

    def works(self, place: Place) -> bool:
        """Return True if there is enough data to scale that resource."""
        return place in self.resources and self.resources[place].state is ResourceState.WORKING

    def with_blindness(self, since: datetime | None, now: datetime) -> TortoiseMemory:
        """Updated with an HPA that lacks metrics since ``since`` (None: it has them)."""
        if since is None or since <= now:
            return replace(self, blind_since=None)
        # A future time is from another clock: use the time of the first observation.
        return replace(self, blind_since=now if self.blind_since is None else min(self.blind_since, now))

    def with_recommendation(self, vertical: VerticalRecommendation | None) -> TortoiseMemory:
        """Updated with the VPA; containers without a policy are dropped."""
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
        """Updated with OOM kills: more is recommended, also in an emergency."""
        maxima = dict(self.recommended)
        for kill in workload.out_of_memory:
            container = workload.container(kill.container) or SizedContainer(kill.container)
            # Without a limit use the request.
            had = container.limits.memory or container.sizes.memory
            if had is not None and self.policies.get((kill.container, "memory"), Scaling.OFF) is not Scaling.OFF:
                sizes = maxima.get(kill.container, NOTHING)
                # Never lower an earlier recommendation.
                needed = max(after_kill(had).value, 0 if sizes.memory is None else sizes.memory.value)
                maxima[kill.container] = sizes.with_value("memory", needed)
        return replace(self, recommended=maxima)
