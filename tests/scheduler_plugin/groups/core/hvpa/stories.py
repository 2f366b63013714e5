"""Common parts of the HVPA tests: one container, ``app``, with round numbers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from scheduler_plugin.groups.core.hvpa.policy import decide
from scheduler_plugin.groups.core.hvpa.spec import ContainerPolicy, HvpaMode, HvpaSpec, ScalingTimes
from scheduler_plugin.groups.core.workload import (
    NOTHING,
    ContainerRecommendation,
    HorizontalRecommendation,
    OutOfMemory,
    Recommendations,
    ReplicaBounds,
    ResourceList,
    SizeBounds,
    SizedContainer,
    VerticalRecommendation,
    Workload,
    WorkloadDecision,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MEGA = 1_000_000
ONE_TO_TEN = ReplicaBounds(1, 10)


def sized(cpu: int | None = None, memory: int | None = None) -> ResourceList:
    """So many thousandths of a vCPU and megabytes."""
    return NOTHING.with_value("cpu", cpu).with_value("memory", None if memory is None else memory * MEGA)


def running(replicas: int, requests: ResourceList = NOTHING, limits: ResourceList = NOTHING) -> Workload:
    return Workload(replicas, replicas, (SizedContainer("app", requests, limits),))


def wanted(
    replicas: int | None = None, target: ResourceList | None = None, uncapped: ResourceList = NOTHING
) -> Recommendations:
    horizontal = None if replicas is None else HorizontalRecommendation(replicas, 1, 10)
    if target is None:
        return Recommendations(horizontal)
    return Recommendations(
        horizontal, VerticalRecommendation((ContainerRecommendation("app", target, uncapped=uncapped),))
    )


def spec_for(mode: HvpaMode, minimum: ResourceList = NOTHING, maximum: ResourceList = NOTHING) -> HvpaSpec:
    return HvpaSpec(ONE_TO_TEN, mode, containers=(ContainerPolicy("app", SizeBounds(minimum, maximum)),))


def decided(
    spec: HvpaSpec, workload: Workload, recommended: Recommendations, memory: ScalingTimes | None = None
) -> WorkloadDecision:
    return decide(spec, workload, recommended, memory or ScalingTimes(), NOON)[0]


def requests(decision: WorkloadDecision) -> ResourceList:
    """The requests that are written; nothing if there are none."""
    return decision.containers[0].requests if decision.containers else NOTHING


def out_of_memory(workload: Workload, *containers: str) -> Workload:
    """The workload after these containers, or all, were killed because they ran out of memory."""
    names = containers or [each.name for each in workload.containers]
    return replace(workload, out_of_memory=tuple(OutOfMemory(name, NOON) for name in names))
