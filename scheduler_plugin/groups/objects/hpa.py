"""HorizontalPodAutoscalers: what one recommends, and how ours are made (S1.1).

Our HPA has the group itself as its scale target: the HPA controller writes the desired count into the group's
``/scale``, where it changes nothing, and the group scales the real target.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from protocol.kubernetes.objects import Json, JsonObject, child, items, text, whole
from scheduler_plugin.groups.core.workload import RESOURCES, HorizontalRecommendation, MeasuredUse, Resource
from scheduler_plugin.groups.objects.amounts import read_amounts


def horizontal_of(hpa: JsonObject) -> HorizontalRecommendation | None:
    """The HPA's recommendation; None before its first look, or if it says that it cannot (``ScalingActive`` is
    False).
    """
    status = child(hpa, "status")
    desired = status.get("desiredReplicas")
    conditions = {text(condition, "type"): condition for condition in items(status, "conditions")}
    # False means that the HPA computes nothing, mostly for lack of metrics, so its desired count is stale.
    is_blind = text(conditions.get("ScalingActive", {}), "status") == "False"
    if not isinstance(desired, int) or is_blind or whole(hpa, "spec", "maxReplicas") < 1:
        return None
    limited = conditions.get("ScalingLimited", {})
    utilisations = _utilisations(hpa)
    return HorizontalRecommendation(
        desired=desired,
        min=least_replicas(hpa),
        max=whole(hpa, "spec", "maxReplicas"),
        # Other reasons, such as TooFewReplicas, do not ask for more replicas.
        limited=(text(limited, "status"), text(limited, "reason")) == ("True", "TooManyReplicas"),
        ratios=tuple((resource, used / target) for resource, used, target in utilisations),
        cuts=tuple((resource, 1 / target) for resource, _, target in utilisations),
        uses=tuple(_uses(hpa)),
    )


def _utilisations(hpa: JsonObject) -> list[tuple[Resource, int, int]]:
    """Utilisation and target, in percent, of each resource that the HPA measures in whole pods, if it has both."""
    targets = {text(metric, "resource", "name"): metric for metric in items(hpa, "spec", "metrics")}
    percents = {}
    for metric in items(hpa, "status", "currentMetrics"):
        name = text(metric, "resource", "name")
        target = whole(targets.get(name, {}), "resource", "target", "averageUtilization")
        # An HPA that measures amounts has no `averageUtilization`.
        if target > 0 and "averageUtilization" in child(metric, "resource", "current"):
            percents[name] = whole(metric, "resource", "current", "averageUtilization"), target
    return [(resource, *percents[resource]) for resource in RESOURCES if resource in percents]


def _uses(hpa: JsonObject) -> Iterator[MeasuredUse]:
    """Mean use over target of what the HPA measures against requests, in whole pods or in one container of each."""
    spec = {_measured(metric): metric for metric in items(hpa, "spec", "metrics")}
    for metric in items(hpa, "status", "currentMetrics"):
        source, container, name = _measured(metric)
        target = whole(spec.get((source, container, name), {}), source, "target", "averageUtilization")
        for resource in RESOURCES:
            if resource == name and target > 0 and (used := _average(metric, source, resource)) is not None:
                # `target` is in percent, hence the factor of 100.
                yield MeasuredUse(resource, Fraction(used * 100, target), container)


def _measured(metric: JsonObject) -> tuple[str, str, str]:
    """The field of the metric, the container that it is about (empty: whole pods), and the resource."""
    source = "containerResource" if "containerResource" in metric else "resource"
    return source, text(metric, source, "container"), text(metric, source, "name")


def _average(metric: JsonObject, source: str, resource: Resource) -> int | None:
    """``averageValue`` in thousandths of a vCPU or bytes; None if the HPA does not say it of a utilisation."""
    current = child(metric, source, "current")
    if "averageUtilization" not in current:
        return None
    try:
        average = read_amounts({resource: current.get("averageValue")}, source)[resource]
    except ValueError:
        return None
    return None if average is None else average.value


def least_replicas(hpa: JsonObject) -> int:
    """``spec.minReplicas``, 1 if it is left out."""
    minimum = child(hpa, "spec").get("minReplicas")
    return minimum if isinstance(minimum, int) else 1


def why_blind(hpa: JsonObject) -> str:
    """The HPA's reason for recommending nothing; empty if it gives none."""
    for condition in items(hpa, "status", "conditions"):
        if text(condition, "type") == "ScalingActive" and text(condition, "status") == "False":
            return f"{text(condition, 'reason')}: {text(condition, 'message')}"
    return ""


def scales(hpa: JsonObject) -> tuple[str, str, str]:
    """API group, kind and name of what the HPA scales."""
    target = child(hpa, "spec", "scaleTargetRef")
    return text(target, "apiVersion").rpartition("/")[0], text(target, "kind"), text(target, "name")


def hpa_spec(template: JsonObject, group: JsonObject) -> Json:
    """The spec of an HPA that recommends for ``group``: what the template says, about the group itself."""
    reference = {
        "apiVersion": text(group, "apiVersion"),
        "kind": text(group, "kind"),
        "name": text(group, "metadata", "name"),
    }
    return {"minReplicas": 1, **template, "scaleTargetRef": reference}
