"""The use of VMs in the recommenders' words, and their recommendations in those of an HPA's and a VPA's status.

They go into an annotation, because the cluster's HPA controller writes the status of every HPA.

A VM counts as requesting its maximum: its agent gives it less while it needs less, so use over the maximum says whether
one more VM is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from protocol.guest.sleep import is_asleep
from protocol.kubernetes.conditions import condition, condition_of, holds
from protocol.kubernetes.objects import Json, JsonObject, annotations_of, child, items, name_of, text, uid_of, whole
from protocol.names import ANNOTATION_RECOMMENDATION
from protocol.units import Bytes, MilliCpu, QuantityError
from protocol.virtual_machine import InvalidObjectError, parse_virtual_machine
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.recommender.horizontal import HorizontalRules, MetricTarget, ReplicaUse
from scheduler_plugin.groups.core.replicas.members import Role, role_of
from scheduler_plugin.groups.core.workload import (
    HorizontalRecommendation,
    ReplicaBounds,
    ResourceList,
    VerticalRecommendation,
)
from scheduler_plugin.groups.objects.autoscalers import least_replicas
from scheduler_plugin.groups.objects.targets import write_amounts
from scheduler_plugin.groups.objects.writes import is_owned_by


def vms_of(target: JsonObject, vms: Iterable[JsonObject]) -> list[JsonObject]:
    """The VMs that ``target`` consists of: itself, or the replicas that a group of VMs owns."""
    if text(target, "kind") == "VirtualMachine":
        return [target]
    group, owned = name_of(target).name, [vm for vm in vms if is_owned_by(vm, target)]
    return [vm for vm in owned if (role := role_of(group, name_of(vm).name)) and role[0] is Role.REPLICA]


@dataclass(frozen=True, slots=True)
class GuestUse:
    """An agent's report of its guest: busy CPUs, memory that cannot be given back without swapping, all that it has,
    and how many processes its kernel has killed for lack of it since boot. None is not known.
    """

    cores_busy: float | None = None
    memory: Bytes | None = None
    memory_total: Bytes | None = None
    kills: int | None = None


def uses(vms: Iterable[JsonObject], reports: Mapping[str, GuestUse]) -> Iterator[tuple[ReplicaUse, ResourceList]]:
    """The use of each VM that can be read, for an HPA's calculation and for a VPA's histogram; ``reports`` by UID."""
    for vm in vms:
        try:
            most = parse_virtual_machine(vm).bounds.max.cpu
        except InvalidObjectError:
            continue
        # A VM that sleeps serves, and its agent knows no more of its guest than what it saw last.
        sleeps = is_asleep(vm)
        use = GuestUse() if sleeps else reports.get(uid_of(vm), GuestUse())
        busy = None if use.cores_busy is None else MilliCpu.cores(use.cores_busy)
        # Without a condition that says if its guest serves, a VM that runs counts.
        available = condition_of(vm, "Available")
        runs = holds(vm, "Available") if available else text(vm, "status", "phase") == "Running"
        yield (
            ReplicaUse(None if busy is None else busy.value, most.value, runs or sleeps),
            ResourceList(busy, use.memory),
        )


def rules_of(hpa: JsonObject) -> HorizontalRules:
    """Rules of the HPA's spec about CPU; agents report no other metrics."""
    least = least_replicas(hpa)
    bounds = ReplicaBounds(least, max(least, whole(hpa, "spec", "maxReplicas")))
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
        yield MetricTarget("cpu", whole(target, "averageUtilization") or None, value)


def hpa_status(hpa: JsonObject, current: int, found: HorizontalRecommendation | None) -> Json:
    """The status of an HPA for that recommendation, as its controller writes it; None: nothing could be measured."""
    if found is None:
        unknown = condition(hpa, "ScalingActive", "False", "FailedGetResourceMetric", texts.AGENTS_SILENT)
        return {"conditions": [unknown]}
    limit = ("True", "TooManyReplicas") if found.limited else ("False", "DesiredWithinRange")
    conditions = [
        condition(hpa, "ScalingActive", "True", "ValidMetricFound", texts.FROM_AGENTS),
        condition(hpa, "ScalingLimited", *limit, ""),
    ]
    # Without figures, whatever the cluster's own HPA controller says: it measures the runners against the requests of
    # their pods, and the agents measure guests against the maxima of their VMs.
    counts = {"currentReplicas": current, "desiredReplicas": found.desired}
    return {**counts, "currentMetrics": [], "conditions": conditions}


def vpa_status(found: VerticalRecommendation) -> Json:
    """The status of a VPA that recommends that."""
    rows = [
        {
            "containerName": container.name,
            "target": write_amounts(container.target),
            "lowerBound": write_amounts(container.lower),
            "upperBound": write_amounts(container.upper),
            "uncappedTarget": write_amounts(container.uncapped),
        }
        for container in found.containers
    ]
    return {"recommendation": {"containerRecommendations": rows}}


def note(status: JsonObject) -> Json:
    """The annotation that says ``status``.

    >>> note({"desiredReplicas": 2})
    {'autoscaling.neon.tech/recommendation': '{"desiredReplicas":2}'}
    """
    return {ANNOTATION_RECOMMENDATION: json.dumps(status, separators=(",", ":"), sort_keys=True)}


def has_note(found: JsonObject) -> bool:
    """Return True if our recommender has said something of the object."""
    return ANNOTATION_RECOMMENDATION in annotations_of(found)


def as_noted(found: JsonObject) -> JsonObject:
    """The object with our note merged over its status; unchanged without a readable note."""
    try:
        noted = json.loads(annotations_of(found).get(ANNOTATION_RECOMMENDATION, "{}"))
    except (ValueError, RecursionError):
        return found
    if not isinstance(noted, dict) or not noted:
        return found
    # The note wins over what the cluster's own controllers wrote.
    return {**found, "status": {**child(found, "status"), **noted}}
