"""The policies for groups: plain HPA, vertical only, HVPA's modes, and Tortoise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Final
from zoneinfo import ZoneInfo

from protocol.units import MilliCpu, Seconds
from scheduler_plugin.groups.core.hvpa import spec as hvpa
from scheduler_plugin.groups.core.hvpa.modes import stages
from scheduler_plugin.groups.core.hvpa.policy import decide as decide_hvpa
from scheduler_plugin.groups.core.recommender import horizontal, vertical
from scheduler_plugin.groups.core.tortoise import decide as tortoise
from scheduler_plugin.groups.core.tortoise.autoscaler import Autoscaler, ContainerTarget, Scaling
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.tortoise_memory import (
    ObservedAutoscalers,
    Spec,
    TortoiseMemory,
    TortoiseMode,
)
from scheduler_plugin.groups.core.workload import (
    HorizontalRecommendation,
    MeasuredUse,
    Recommendations,
    ReplicaBounds,
    ResourceList,
    SizeBounds,
    SizedContainer,
    VerticalRecommendation,
    Workload,
)
from scheduler_plugin.groups.objects.hvpa.decoding import SETTLE_RESTARTING
from scripts.autoscale.replay.groups.group_model import (
    REPLICAS,
    GroupObservation,
    GroupPlayer,
    OrderedReplicas,
    ReplicaShape,
)
from scripts.autoscale.replay.groups.lagging_group import NAME

TARGET: Final = 80
"""The HPA's target utilization in percent."""


class Recommenders:
    """An HPA and a VPA for a group: the HPA's rule, and the VPA's percentiles with a history that decays over a day."""

    def __init__(self) -> None:
        # All players use these two: HPA's rule, and VPA's percentiles, whose history decays over a day.
        self._desired_counts = horizontal.DesiredCounts()
        self._history: vertical.History = {}

    def replicas(self, observation: GroupObservation, bounds: ReplicaBounds, target: int) -> HorizontalRecommendation:
        """The HPA's desired replicas."""
        uses = observation.uses
        rules = horizontal.HorizontalRules(bounds, (horizontal.MetricTarget(utilization=target),))
        recommendation, self._desired_counts = horizontal.recommended(
            rules, observation.replicas, uses, self._desired_counts, observation.now.timestamp()
        )
        # As in Kubernetes, pods that are not ready do not count.
        measured = [replica_use.used for replica_use in uses if replica_use.used is not None and replica_use.ready]
        # Without a measurement the HPA keeps the number of replicas.
        if recommendation is None or not measured:
            return HorizontalRecommendation(observation.replicas, bounds.min, bounds.max)
        need = Fraction(sum(measured) * 100, len(measured) * target)
        return replace(recommendation, uses=(MeasuredUse("cpu", need),))

    def sizes(self, observation: GroupObservation) -> VerticalRecommendation | None:
        """The VPA's recommended size of each replica."""
        # A VPA has samples of pods that have been removed since, and none yet of newer ones.
        uses = [] if observation.load is None else [ResourceList(MilliCpu(observation.load))]
        self._history = vertical.observed(self._history, NAME, uses, observation.now.timestamp())
        return vertical.recommended(self._history, observation.replicas)


def workload(observation: GroupObservation) -> Workload:
    """The group in the form of policies."""
    container = SizedContainer(NAME, ResourceList(MilliCpu(observation.size)))
    return Workload(observation.replicas, observation.ready, (container,), pods=observation.pods)


def plain_hpa(shape: ReplicaShape) -> Callable[[GroupObservation], OrderedReplicas]:
    """Only an HPA: replicas of the usual size."""
    recommenders = Recommenders()
    return lambda observation: OrderedReplicas(
        recommenders.replicas(observation, REPLICAS, TARGET).desired, shape.usual
    )


def vertical_only(_: ReplicaShape) -> Callable[[GroupObservation], OrderedReplicas]:
    """Only a VPA: two replicas, which are resized to the target once their size is outside the bounds."""
    recommenders = Recommenders()

    def decide(observation: GroupObservation) -> OrderedReplicas:
        recommendation = recommenders.sizes(observation)
        container = None if recommendation is None else recommendation.container(NAME)
        # The VPA recommends nothing until it has a history.
        if container is None or container.target.cpu is None:
            return OrderedReplicas(REPLICAS.min, observation.size)
        lower, upper = container.lower.cpu or container.target.cpu, container.upper.cpu or container.target.cpu
        # Like the VPA's updater: a size within the bounds is not worth a restart.
        inside = lower <= MilliCpu(observation.size) <= upper and observation.replicas == REPLICAS.min
        return OrderedReplicas(REPLICAS.min, observation.size if inside else container.target.cpu.value)

    return decide


class HvpaPlayer:
    """HVPA in one of its modes."""

    def __init__(self, mode: hvpa.HvpaMode, shape: ReplicaShape) -> None:
        sizes = SizeBounds(ResourceList(MilliCpu(shape.minimum)), ResourceList(MilliCpu(shape.maximum)))
        usual, double = ResourceList(MilliCpu(shape.usual)), ResourceList(MilliCpu(shape.usual * 2))
        self._recommenders, self._memory = Recommenders(), hvpa.ScalingTimes()
        self._spec = hvpa.HvpaSpec(
            replicas=REPLICAS,
            mode=mode,
            intervals=stages(REPLICAS, 4, 10, [Fraction(1), Fraction("0.4"), Fraction(0)]),
            effective=hvpa.EffectiveIntervals((hvpa.ScalingInterval(4, usual), hvpa.ScalingInterval(None, double))),
            containers=(hvpa.ContainerPolicy(bounds=sizes),),
            desired_by_utilization=("cpu",),
            settle=SETTLE_RESTARTING if mode is hvpa.HvpaMode.EFFECTIVE_INTERVALS else Seconds(0.0),
        )

    def __call__(self, observation: GroupObservation) -> OrderedReplicas:
        """Decides after an observation."""
        recommendations = Recommendations(
            self._recommenders.replicas(observation, REPLICAS, TARGET), self._recommenders.sizes(observation)
        )
        # The decision is made by the code that runs in clusters.
        decision, self._memory = decide_hvpa(
            self._spec, workload(observation), recommendations, self._memory, observation.now
        )
        return _ordered(observation, decision.replicas, decision.containers)


class TortoisePlayer:
    """A Tortoise, the HPA that it manages, and the VPA that it uses."""

    def __init__(self, shape: ReplicaShape) -> None:
        configuration = Configuration(
            gathering_data_period_type="daily",
            time_zone=ZoneInfo("UTC"),
            minimum_min_replicas=REPLICAS.min,
            maximum_max_replicas=REPLICAS.max,
            preferred_max_replicas=REPLICAS.max // 2,
            minimum_cpu_request=MilliCpu(shape.minimum),
            maximum_cpu_request=MilliCpu(shape.maximum),
        )
        self._spec = Spec(configuration, TortoiseMode.AUTO, policies={(NAME, "cpu"): Scaling.HORIZONTAL})
        self._memory, self._recommenders = TortoiseMemory.empty(configuration), Recommenders()
        self._hpa = Autoscaler(REPLICAS.min, REPLICAS.max, (ContainerTarget(NAME, "cpu", TARGET),))

    def __call__(self, observation: GroupObservation) -> OrderedReplicas:
        """Decides after an observation: first the Tortoise, then its HPA."""
        observed = ObservedAutoscalers(self._hpa, self._recommenders.sizes(observation))
        result, self._memory = tortoise.decide(
            self._spec, workload(observation), observed, self._memory, observation.now
        )
        # None if the Tortoise does not change its HPA.
        self._hpa = result.autoscaler or self._hpa
        bounds = ReplicaBounds(self._hpa.min, self._hpa.max)
        desired = self._recommenders.replicas(observation, bounds, self._hpa.target(NAME, "cpu") or TARGET).desired
        return _ordered(observation, desired, result.decision.containers)


def _ordered(
    observation: GroupObservation, replicas: int | None, containers: tuple[SizedContainer, ...]
) -> OrderedReplicas:
    sizes = [container.requests.cpu.value for container in containers if container.requests.cpu is not None]
    return OrderedReplicas(
        observation.replicas if replicas is None else replicas, sizes[0] if sizes else observation.size
    )


GROUP_PLAYERS: Final[Mapping[str, GroupPlayer]] = {
    "hvpa": partial(HvpaPlayer, hvpa.HvpaMode.EFFECTIVE_INTERVALS),
    "tortoise": TortoisePlayer,
    "hpa": plain_hpa,
    "vertical": vertical_only,
    "hvpa-hpa-preferred": partial(HvpaPlayer, hvpa.HvpaMode.HPA_PREFERRED),
    "hvpa-hpa-biased": partial(HvpaPlayer, hvpa.HvpaMode.HPA_BIASED),
    "hvpa-vpa-biased": partial(HvpaPlayer, hvpa.HvpaMode.VPA_BIASED),
    "hvpa-mixed": partial(HvpaPlayer, hvpa.HvpaMode.MIXED),
    "hvpa-weights": partial(HvpaPlayer, hvpa.HvpaMode.WEIGHT_BASED),
}
"""All policies for groups, by name."""
