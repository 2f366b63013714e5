"""HPAs and VPAs: their recommendations, specs for our own, and the HPA of a Tortoise (S1.1, S3.1, S3.6).

Our HPA targets the group itself: the HPA controller writes its desired count to the group's ``/scale``, which has no
effect, and the group scales the real target. Our VPA has ``updateMode: "Off"``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from fractions import Fraction
from typing import Final

from protocol.kubernetes import resources as kinds
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, JsonObject, child, integer, items, text
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS
from protocol.kubernetes.timestamps import parse_datetime
from scheduler_plugin.groups.core.tortoise.autoscaler import (
    Autoscaler,
    ContainerTarget,
    Metric,
    OtherMetric,
    ResourceTarget,
)
from scheduler_plugin.groups.core.workload import (
    RESOURCES,
    ContainerRecommendation,
    HorizontalRecommendation,
    MeasuredUse,
    Resource,
    VerticalRecommendation,
)
from scheduler_plugin.groups.objects.targets import TargetRef, api_group, read_amounts


def horizontal_of(hpa: JsonObject) -> HorizontalRecommendation | None:
    """The HPA's recommendation; None before its first evaluation, or while ``ScalingActive`` is False."""
    status = child(hpa, "status")
    desired = status.get("desiredReplicas")
    # False: the HPA computes nothing, usually without metrics, so its desired count is stale.
    if not isinstance(desired, int) or inactive_reason(hpa) or integer(hpa, "spec", "maxReplicas") < 1:
        return None
    limited = condition_of(hpa, "ScalingLimited")
    utilisations = _utilisations(hpa)
    return HorizontalRecommendation(
        desired=desired,
        min=least_replicas(hpa),
        max=integer(hpa, "spec", "maxReplicas"),
        # Other reasons, such as TooFewReplicas, do not mean that it would recommend more.
        limited=(text(limited, "status"), text(limited, "reason")) == ("True", "TooManyReplicas"),
        ratios=tuple((resource, used / target) for resource, used, target in utilisations),
        cuts=tuple((resource, 1 / target) for resource, _, target in utilisations),
        uses=tuple(_uses(hpa)),
    )


def _utilisations(hpa: JsonObject) -> list[tuple[Resource, int, int]]:
    """Resource, utilization and target (in percent) of each metric of whole pods that has both."""
    targets = {text(metric, "resource", "name"): metric for metric in items(hpa, "spec", "metrics")}
    percents = {}
    for metric in items(hpa, "status", "currentMetrics"):
        name = text(metric, "resource", "name")
        target = integer(targets.get(name, {}), "resource", "target", "averageUtilization")
        # An HPA that measures amounts has no `averageUtilization`.
        if target > 0 and "averageUtilization" in child(metric, "resource", "current"):
            percents[name] = integer(metric, "resource", "current", "averageUtilization"), target
    return [(resource, *percents[resource]) for resource in RESOURCES if resource in percents]


def _uses(hpa: JsonObject) -> Iterator[MeasuredUse]:
    """Mean use divided by target of resources measured against requests, for whole pods or one container."""
    spec = {_measured(metric): metric for metric in items(hpa, "spec", "metrics")}
    for metric in items(hpa, "status", "currentMetrics"):
        source, container, name = _measured(metric)
        target = integer(spec.get((source, container, name), {}), source, "target", "averageUtilization")
        for resource in RESOURCES:
            if resource == name and target > 0 and (used := _average(metric, source, resource)) is not None:
                # `target` is in percent.
                yield MeasuredUse(resource, Fraction(used * 100, target), container)


def _measured(metric: JsonObject) -> tuple[str, str, str]:
    """The metric's field, container (empty: whole pods), and resource."""
    source = "containerResource" if "containerResource" in metric else "resource"
    return source, text(metric, source, "container"), text(metric, source, "name")


def _average(metric: JsonObject, source: str, resource: Resource) -> int | None:
    """``averageValue`` in thousandths of a vCPU or bytes; None if not reported."""
    current = child(metric, source, "current")
    if "averageUtilization" not in current:
        return None
    try:
        average = read_amounts({resource: current.get("averageValue")}, source)[resource]
    except ValueError:
        return None
    return None if average is None else average.value


def least_replicas(hpa: JsonObject) -> int:
    """``spec.minReplicas``, 1 by default."""
    minimum = child(hpa, "spec").get("minReplicas")
    return minimum if isinstance(minimum, int) else 1


def inactive_reason(hpa: JsonObject) -> str:
    """The reason why the HPA recommends nothing (``ScalingActive`` is False); empty if it recommends."""
    active = condition_of(hpa, "ScalingActive")
    return f"{text(active, 'reason')}: {text(active, 'message')}" if text(active, "status") == "False" else ""


REFERENCES: Final = {HORIZONTAL_AUTOSCALERS: "scaleTargetRef", VERTICAL_AUTOSCALERS: "targetRef"}
"""The field of the spec with the target, by kind."""


def target_of(autoscaler: JsonObject, resource: kinds.Resource) -> TargetRef:
    """The target of an HPA or VPA."""
    reference = child(autoscaler, "spec", REFERENCES[resource])
    return TargetRef(api_group(reference), text(reference, "kind"), text(reference, "name"))


def hpa_spec(template: JsonObject, group: JsonObject) -> Json:
    """Spec of an HPA that recommends for ``group``: the template with the group as target."""
    reference = {name: text(group, name) for name in ("apiVersion", "kind")}
    return {"minReplicas": 1, **template, "scaleTargetRef": {**reference, "name": text(group, "metadata", "name")}}


UNUSABLE_CONDITIONS: Final = ("ConfigUnsupported", "ConfigDeprecated", "LowConfidence")
"""Conditions that make a recommendation unusable while True."""


def is_usable(conditions: Mapping[str, str]) -> bool:
    """Return True if a recommendation with these condition statuses by type is usable.

    >>> is_usable({"RecommendationProvided": "True"}), is_usable({"LowConfidence": "True"})
    (True, False)
    """
    distrusted = any(conditions.get(kind) == "True" for kind in UNUSABLE_CONDITIONS)
    # Usable without such a condition.
    return not distrusted and conditions.get("RecommendationProvided", "True") == "True"


def vertical_of(vpa: JsonObject) -> VerticalRecommendation | None:
    """The VPA's recommendation; None if missing or unusable. Raises ``ValueError`` for bad quantities."""
    if not is_usable(
        {text(condition, "type"): text(condition, "status") for condition in items(vpa, "status", "conditions")}
    ):
        return None
    containers = []
    for i, row in enumerate(items(vpa, "status", "recommendation", "containerRecommendations")):
        path = f"status.recommendation.containerRecommendations[{i}]"
        names = ("target", "lowerBound", "upperBound", "uncappedTarget")
        # The recommender reports zero while it has no data.
        amounts = (
            read_amounts(child(row, name), f"{path}.{name}").map(lambda _, amount: amount.value or None)
            for name in names
        )
        containers.append(ContainerRecommendation(text(row, "containerName"), *amounts))
    return VerticalRecommendation(tuple(containers)) if containers else None


def unusable_reason(vpa: JsonObject) -> str:
    """The condition that makes the VPA's recommendation unusable, as text; empty if none does."""
    blocking = (
        condition for condition in items(vpa, "status", "conditions") if text(condition, "type") in UNUSABLE_CONDITIONS
    )
    why = (
        f"{text(condition, 'type')}: {text(condition, 'message')}"
        for condition in blocking
        if text(condition, "status") == "True"
    )
    return next(why, "")


def sizing_mode(vpa: JsonObject) -> str:
    """Update mode of a VPA that sizes pods; empty if it is ``Off``.

    Every mode except ``Off`` counts as sizing pods, also an unknown one. The default is ``Auto``.

    >>> sizing_mode({"spec": {"updatePolicy": {"updateMode": "InPlace"}}}), sizing_mode({})
    ('InPlace', 'Auto')
    """
    mode = text(vpa, "spec", "updatePolicy", "updateMode") or "Auto"
    return "" if mode == "Off" else mode


def vpa_spec(template: JsonObject, target: JsonObject) -> Json:
    """Spec of a VPA that only recommends for ``target``."""
    return {
        **template,
        "targetRef": dict(target),
        # The group writes the sizes.
        "updatePolicy": {**child(template, "updatePolicy"), "updateMode": "Off"},
    }


def read_autoscaler(hpa: JsonObject) -> Autoscaler:
    """Bounds and metrics of the spec, with the API server's defaults."""
    spec = child(hpa, "spec")
    minimum = integer(spec, "minReplicas") or 1
    return Autoscaler(
        minimum, max(minimum, integer(spec, "maxReplicas")), tuple(_metric(metric) for metric in items(spec, "metrics"))
    )


def write_autoscaler(autoscaler: Autoscaler) -> Json:
    """The managed fields of an HPA's spec.

    >>> write_autoscaler(Autoscaler(3, 9, (ContainerTarget("app", "cpu", 70),)))["metrics"][0]["containerResource"]
    {'name': 'cpu', 'container': 'app', 'target': {'type': 'Utilization', 'averageUtilization': 70}}
    """
    metrics = [_written(metric) for metric in autoscaler.metrics]
    return {"minReplicas": autoscaler.min, "maxReplicas": autoscaler.max, "metrics": metrics}


def metrics_missing_since(hpa: JsonObject) -> datetime | None:
    """Since when the HPA has reported that it cannot read its metrics; None if it can."""
    active = condition_of(hpa, "ScalingActive")
    reason = text(active, "reason")
    # Not for other reasons, such as ScalingDisabled.
    is_lacking = reason.startswith("FailedGet") or reason == "InvalidMetricSourceType"
    return (
        parse_datetime(active.get("lastTransitionTime")) if is_lacking and text(active, "status") == "False" else None
    )


def _metric(obj: Json) -> Metric:
    container = child(obj, "containerResource")
    resource = next((resource for resource in RESOURCES if resource == text(container, "name")), None)
    if text(obj, "type") == "ContainerResource" and resource is not None:
        # Without a utilization the target is an amount: keep the API's metric.
        target = integer(container, "target", "averageUtilization")
        return ContainerTarget(text(container, "container"), resource, target or None, {} if target else obj)
    if text(obj, "type") == "Resource":
        target = integer(obj, "resource", "target", "averageUtilization")
        return ResourceTarget(text(obj, "resource", "name"), target or None, obj)
    return OtherMetric(obj)


def _written(metric: Metric) -> Json:
    if not isinstance(metric, ContainerTarget) or metric.content:
        return dict(metric.content)
    target = {"type": "Utilization", "averageUtilization": metric.utilisation}
    source = {"name": metric.resource, "container": metric.container, "target": target}
    return {"type": "ContainerResource", "containerResource": source}
