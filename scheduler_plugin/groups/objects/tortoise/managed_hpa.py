"""An HPA as a Tortoise manages it: its numbers, its metrics, and since when it lacks metrics (S3.1, S3.6)."""

from __future__ import annotations

from datetime import UTC, datetime

from protocol.kubernetes.objects import Json, JsonObject, child, items, text, whole
from protocol.kubernetes.timestamps import parse_timestamp
from scheduler_plugin.groups.core.tortoise.autoscaler import (
    Autoscaler,
    ContainerTarget,
    Metric,
    OtherMetric,
    ResourceTarget,
)
from scheduler_plugin.groups.core.workload import RESOURCES


def read_autoscaler(hpa: JsonObject) -> Autoscaler:
    """The numbers and metrics of its spec. What is missing reads as the API server's default."""
    spec = child(hpa, "spec")
    # The API server's default for a missing minimum is 1.
    least = whole(spec, "minReplicas") or 1
    return Autoscaler(
        least, max(least, whole(spec, "maxReplicas")), tuple(_metric(metric) for metric in items(spec, "metrics"))
    )


def write_autoscaler(autoscaler: Autoscaler) -> Json:
    """The fields of an HPA's spec that are managed, whole.

    >>> write_autoscaler(Autoscaler(3, 9, (ContainerTarget("app", "cpu", 70),)))["metrics"][0]["containerResource"]
    {'name': 'cpu', 'container': 'app', 'target': {'type': 'Utilization', 'averageUtilization': 70}}
    """
    metrics = [_written(metric) for metric in autoscaler.metrics]
    return {"minReplicas": autoscaler.min, "maxReplicas": autoscaler.max, "metrics": metrics}


def metrics_missing_since(hpa: JsonObject) -> datetime | None:
    """Since when the HPA says that it cannot read its metrics; None while it can, or has not said."""
    for condition in items(hpa, "status", "conditions"):
        # Other reasons, such as ScalingDisabled, do not mean that metrics are missing.
        lacks = (
            text(condition, "reason").startswith("FailedGet") or text(condition, "reason") == "InvalidMetricSourceType"
        )
        if (text(condition, "type"), text(condition, "status")) == ("ScalingActive", "False") and lacks:
            since = parse_timestamp(condition.get("lastTransitionTime"))
            return None if since is None else datetime.fromtimestamp(since, UTC)
    return None


def _metric(found: Json) -> Metric:
    container = child(found, "containerResource")
    if text(found, "type") == "ContainerResource":
        for resource in RESOURCES:
            if text(container, "name") == resource:
                # 0: no utilisation, so the target is an amount and the metric stays as it is.
                target = whole(container, "target", "averageUtilization")
                return ContainerTarget(text(container, "container"), resource, target or None, {} if target else found)
    if text(found, "type") == "Resource":
        target = whole(found, "resource", "target", "averageUtilization")
        return ResourceTarget(text(found, "resource", "name"), target or None, found)
    return OtherMetric(found)


def _written(metric: Metric) -> Json:
    if not isinstance(metric, ContainerTarget) or metric.content:
        return dict(metric.content)
    target = {"type": "Utilization", "averageUtilization": metric.utilisation}
    source = {"name": metric.resource, "container": metric.container, "target": target}
    return {"type": "ContainerResource", "containerResource": source}
