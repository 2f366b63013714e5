"""What a Tortoise wants, what is seen of its target, and what it must not forget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from scheduler_plugin.groups.core.out_of_memory import after_kill
from scheduler_plugin.groups.core.tortoise.autoscaler import Autoscaler
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.phases import Phase, ResourcePhase, ResourceState, TortoiseMode
from scheduler_plugin.groups.core.tortoise.recommendation_maximum import learned
from scheduler_plugin.groups.core.tortoise.replica_range import ReplicaMemory
from scheduler_plugin.groups.core.tortoise.scaling_policy import Place, Policies, Scaling
from scheduler_plugin.groups.core.workload import (
    NOTHING,
    ContainerRecommendation,
    ResourceList,
    SizeBounds,
    SizedContainer,
    VerticalRecommendation,
    Workload,
)


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
