"""What a Tortoise wants, what is seen of its target, and what it must not forget (S3.2, S3.3, S3.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from fractions import Fraction
from math import ceil, floor
from typing import TypeVar

from protocol.units import Amount
from scheduler_plugin.groups.core.tortoise.autoscaler import Autoscaler, Place, Policies, Scaling
from scheduler_plugin.groups.core.tortoise.configuration import SLOT_DECAY, Configuration
from scheduler_plugin.groups.core.tortoise.phases import Phase, ResourcePhase, ResourceState, TortoiseMode
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

A = TypeVar("A", bound=Amount)


def maximum(old: A, target: A, upper: A) -> A:
    """The ``old`` maximum while it lies between ``target`` and ``upper`` bound, both exclusive; otherwise ``target``.

    Beyond ``upper`` the recommender itself is sure that it is too much.
    """
    return old if target < old < upper else target


def learned(old: ResourceList, said: ContainerRecommendation) -> ResourceList:
    """The maxima of one container after ``said``; what it leaves out stays as it was.

    Without an upper bound a maximum only rises: nothing says that it is too much.
    """
    maxima = old
    for resource, target in said.target:
        previous, upper = old[resource], said.upper[resource]
        highest = target if previous is None else maximum(previous, target, upper) if upper else max(previous, target)
        maxima = maxima.with_value(resource, highest.value)
    return maxima


def proposed(replicas: int, configuration: Configuration) -> ReplicaBounds:
    """The bounds that this many replicas (>= 0) alone suggest for their slot.

    A minimum below ``minimum_min_replicas`` becomes that; a maximum below it becomes its counterpart.
    """
    least = configuration.minimum_min_replicas
    low, high = (
        configuration.min_replicas_recommendation_multiplier,
        configuration.max_replicas_recommendation_multiplier,
    )
    minimum, maximum = ceil(replicas * low), ceil(replicas * high)
    # The counterpart keeps the ratio between the two multipliers.
    return ReplicaBounds(max(minimum, least), maximum if maximum >= least else floor(least * high / low))


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """The least and the most number of replicas of each slot."""

    least: SlotMemory
    most: SlotMemory

    @classmethod
    def empty(cls, layout: SlotLayout) -> ReplicaMemory:
        """Nothing is known yet."""
        return cls(SlotMemory(layout), SlotMemory(layout))

    def learned(self, replicas: int, configuration: Configuration, now: datetime) -> ReplicaMemory:
        """The memory after this many replicas were seen."""
        proposal = proposed(replicas, configuration)
        return ReplicaMemory(
            self.least.learned(proposal.min, SLOT_DECAY, now), self.most.learned(proposal.max, SLOT_DECAY, now)
        )

    def at(self, now: datetime) -> ReplicaBounds | None:
        """Recommendation of the slot of ``now``; None if nothing is known."""
        least, most = self.least.at(now), self.most.at(now)
        return None if least is None or most is None else ReplicaBounds(least, most)

    def laid_out(self, layout: SlotLayout) -> ReplicaMemory:
        """The same memory in another layout."""
        return ReplicaMemory(self.least.laid_out(layout), self.most.laid_out(layout))


def capped(bounds: ReplicaBounds, configuration: Configuration, max_replicas: int | None) -> ReplicaBounds:
    """``bounds`` within the cluster's caps and the Tortoise's own ``max_replicas``."""
    most = min(bounds.max, configuration.maximum_max_replicas)
    most = most if max_replicas is None else min(most, max_replicas)
    # `most` caps both, so the minimum is never above the maximum.
    return ReplicaBounds(min(bounds.min, configuration.maximum_min_replicas, most), most)


def step_back(current: int, recommended: int, factor: Fraction) -> tuple[int, bool]:
    """The least number of replicas one step after an emergency, and whether that was the last step.

    Each step keeps ``factor`` (0..1) of ``current``, rounded down; the last one arrives at ``recommended``.

    >>> step_back(95, 5, Fraction("0.95")), step_back(5, 5, Fraction("0.95"))
    ((90, False), (5, True))
    """
    reduced = floor(current * factor)
    # The last step lands on the recommendation, never below it.
    return (recommended, True) if recommended > reduced else (reduced, False)


@dataclass(frozen=True, slots=True)
class Spec:
    """One Tortoise's spec, and the cluster's ``configuration``. ``autoscaler`` names an HPA; None: one of its own.

    ``policies`` is None if they follow from the HPA. ``sizes`` bounds containers by name.
    """

    configuration: Configuration = field(default_factory=Configuration)
    mode: TortoiseMode = TortoiseMode.OFF
    autoscaler: str | None = None
    policies: Policies | None = None
    sizes: Mapping[str, SizeBounds] = field(default_factory=dict)
    max_replicas: int | None = None


@dataclass(frozen=True, slots=True)
class ObservedAutoscalers:
    """Objects beside the workload: the HPA, the VPA's recommendation, and since when the HPA lacks metrics."""

    autoscaler: Autoscaler | None = None
    vertical: VerticalRecommendation | None = None
    metrics_missing_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class TortoiseMemory:
    """All that a restart must not forget; stored in the Tortoise's status.

    ``recommended`` holds the maxima of what was recommended, by container. ``targets_at``: when target utilisations
    last changed. ``too_many_since``: since when there are too many replicas, or when containers last grew for that.
    ``shrunk_at``: when a container was last lowered. ``stepped_at``: the last step back after an emergency.
    ``blind_since``: since when the HPA is known to lack metrics, if its own time for that is in the future.
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
        """That of a new Tortoise."""
        return cls(ReplicaMemory.empty(configuration.layout))

    def works(self, place: Place) -> bool:
        """Return True if enough is known of that resource to scale it."""
        return place in self.resources and self.resources[place].state is ResourceState.WORKING

    def with_blindness(self, since: datetime | None, now: datetime) -> TortoiseMemory:
        """After a look at an HPA that lacks metrics ``since`` then (None: it has them)."""
        if since is None or since <= now:
            return replace(self, blind_since=None)
        # A time in the future comes from another clock, so the time of the first look counts instead.
        return replace(self, blind_since=now if self.blind_since is None else min(self.blind_since, now))

    def with_replicas(self, replicas: int, configuration: Configuration, now: datetime) -> TortoiseMemory:
        """After this many replicas were seen."""
        return replace(self, replicas=self.replicas.learned(replicas, configuration, now))

    def with_recommendation(self, vertical: VerticalRecommendation | None) -> TortoiseMemory:
        """After a look at the VPA; containers that have no policy any more are forgotten."""
        names = {container for container, _ in self.policies}
        recommendation = vertical or VerticalRecommendation()
        maxima = {
            # A container of which the VPA says nothing keeps its maxima.
            name: learned(
                self.recommended.get(name, NOTHING), recommendation.container(name) or ContainerRecommendation(name)
            )
            for name in sorted(names)
        }
        return replace(self, recommended={name: sizes for name, sizes in maxima.items() if sizes})

    def with_kills(self, workload: Workload) -> TortoiseMemory:
        """After containers ran out of memory: more is recommended, also in an emergency."""
        maxima = dict(self.recommended)
        for kill in workload.out_of_memory:
            container = workload.container(kill.container) or SizedContainer(kill.container)
            # Without a limit the request is the best guess at what the container had.
            had = container.limits.memory or container.sizes.memory
            if had is not None and self.policies.get((kill.container, "memory"), Scaling.OFF) is not Scaling.OFF:
                sizes = maxima.get(kill.container, NOTHING)
                # A kill never lowers an earlier recommendation.
                needed = max(after_kill(had).value, 0 if sizes.memory is None else sizes.memory.value)
                maxima[kill.container] = sizes.with_value("memory", needed)
        return replace(self, recommended=maxima)
