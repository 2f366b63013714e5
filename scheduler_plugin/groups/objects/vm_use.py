"""Use of VMs as input of the recommenders, and recommendations in the form of HPA and VPA status.

The recommendations are stored in an annotation, because the cluster's HPA controller writes the status of every HPA.

The maximum of a VM counts as its request. Its agent gives it less while it needs less, so only use near the maximum
shows that another VM is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from protocol.guest.sleep import is_asleep
from protocol.kubernetes.conditions import condition, condition_of, is_condition_true
from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    annotations_of,
    child,
    integer,
    is_terminating,
    items,
    name_of,
    text,
    uid_of,
)
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_RECOMMENDATION
from protocol.units import Bytes, MilliCpu, QuantityError
from protocol.virtual_machine import InvalidObjectError, parse_virtual_machine
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.recommender.horizontal import HorizontalRules, MetricTarget, ReplicaUse
from scheduler_plugin.groups.core.replicas.members import Role, member_name
from scheduler_plugin.groups.core.workload import (
    HorizontalRecommendation,
    ReplicaBounds,
    ResourceList,
    VerticalRecommendation,
)
from scheduler_plugin.groups.objects.autoscalers import least_replicas
from scheduler_plugin.groups.objects.targets import write_amounts
from scheduler_plugin.groups.objects.vm_group import MOST_REPLICAS
from scheduler_plugin.groups.objects.writes import is_owned_by


def target_vms(target: JsonObject, vms: Mapping[ObjectName, JsonObject]) -> list[JsonObject]:
    """The VMs of ``target``: a VM itself, or the replicas of a group of VMs, without terminating ones."""
    if text(target, "kind") == "VirtualMachine":
        return [target]
    group = name_of(target)
    # By name, because ``vms`` may be 100,000. Twice the maximum, because terminating replicas still use their numbers.
    names = (member_name(group.name, Role.REPLICA, ordinal) for ordinal in range(MOST_REPLICAS * 2))
    replicas = (vms.get(ObjectName(group.namespace, name)) for name in names)
    return [vm for vm in replicas if vm is not None and is_owned_by(vm, target) and not is_terminating(vm)]


@dataclass(frozen=True, slots=True)
class GuestUse:
    """An agent's report on its guest; None is unknown.

    ``memory`` cannot be reclaimed without swapping. ``kills`` is the number of processes OOM-killed since boot.
    """

    cores_busy: float | None = None
    memory: Bytes | None = None
    memory_total: Bytes | None = None
    kills: int | None = None


def uses(vms: Iterable[JsonObject], reports: Mapping[str, GuestUse]) -> Iterator[tuple[ReplicaUse, ResourceList]]:
    """Yield the use of each readable VM for both recommenders; ``reports`` are by UID."""
    for vm in vms:
        try:
            max_cpu = parse_virtual_machine(vm).bounds.max.cpu
        except InvalidObjectError:
            continue
        # A sleeping VM counts as ready, but its agent has only old data.
        sleeps = is_asleep(vm)
        use = GuestUse() if sleeps else reports.get(uid_of(vm), GuestUse())
        busy = None if use.cores_busy is None else MilliCpu.cores(use.cores_busy)
        # Without this condition a running VM counts as ready.
        available = condition_of(vm, "Available")
        runs = is_condition_true(vm, "Available") if available else text(vm, "status", "phase") == "Running"
        yield (
            ReplicaUse(None if busy is None else busy.value, max_cpu.value, runs or sleeps),
            ResourceList(busy, use.memory),
        )


def rules_of(hpa: JsonObject) -> HorizontalRules:
    """Bounds and CPU metrics of the HPA's spec; agents report no other metrics."""
    minimum = least_replicas(hpa)
    bounds = ReplicaBounds(minimum, max(minimum, integer(hpa, "spec", "maxReplicas")))
    return HorizontalRules(bounds, tuple(_targets(hpa)))


def _targets(hpa: JsonObject) -> Iterator[MetricTarget]:
    for metric in items(hpa, "spec", "metrics"):
        source = child(metric, "resource") or child(metric, "containerResource")
        target = child(source, "target")
        if text(source, "name") != "cpu":
            continue
        try:
            value = MilliCpu.parse(text(target, "averageValue")).value if "averageValue" in target else None
        except QuantityError:
            continue
        yield MetricTarget(integer(target, "averageUtilization") or None, value)


def hpa_status(hpa: JsonObject, current: int, recommendation: HorizontalRecommendation | None) -> Json:
    """HPA status with the recommendation, as its controller writes it; None if nothing was measured."""
    if recommendation is None:
        unknown = condition(hpa, "ScalingActive", "False", "FailedGetResourceMetric", texts.AGENTS_SILENT)
        return {"conditions": [unknown]}
    limit = ("True", "TooManyReplicas") if recommendation.limited else ("False", "DesiredWithinRange")
    conditions = [
        condition(hpa, "ScalingActive", "True", "ValidMetricFound", texts.FROM_AGENTS),
        condition(hpa, "ScalingLimited", *limit, ""),
    ]
    # Without metrics, because the cluster's HPA controller compares runners with pod requests, but agents
    # compare guests with VM maxima.
    counts = {"currentReplicas": current, "desiredReplicas": recommendation.desired}
    return {**counts, "currentMetrics": [], "conditions": conditions}


def vpa_status(recommendation: VerticalRecommendation) -> Json:
    """VPA status with the recommendation."""
    rows = [
        {
            "containerName": container.name,
            "target": write_amounts(container.target),
            "lowerBound": write_amounts(container.lower),
            "upperBound": write_amounts(container.upper),
            "uncappedTarget": write_amounts(container.uncapped),
        }
        for container in recommendation.containers
    ]
    return {"recommendation": {"containerRecommendations": rows}}


def recommendation_annotation(status: JsonObject) -> Json:
    """The annotation that stores ``status``.

    >>> recommendation_annotation({"desiredReplicas": 2})
    {'autoscaling.neon.tech/recommendation': '{"desiredReplicas":2}'}
    """
    return {ANNOTATION_RECOMMENDATION: json.dumps(status, separators=(",", ":"), sort_keys=True)}


def has_recommendation(obj: JsonObject) -> bool:
    """Return True if the object has our annotation."""
    return ANNOTATION_RECOMMENDATION in annotations_of(obj)


def with_annotated_status(obj: JsonObject) -> JsonObject:
    """Merge our annotation over the object's status; without a readable annotation it is unchanged."""
    try:
        annotated = json.loads(annotations_of(obj).get(ANNOTATION_RECOMMENDATION, "{}"))
    except (ValueError, RecursionError):
        return obj
    if not isinstance(annotated, dict) or not annotated:
        return obj
    # Ours takes precedence over the cluster's controllers.
    return {**obj, "status": {**child(obj, "status"), **annotated}}
