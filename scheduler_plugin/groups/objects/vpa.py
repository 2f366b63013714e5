"""VerticalPodAutoscalers: what one recommends, and how ours are made (S1.1). Ours have ``updateMode: "Off"``."""

from __future__ import annotations

from protocol.kubernetes.objects import Json, JsonObject, child, items, text
from scheduler_plugin.groups.core.hvpa.confidence import DISTRUSTED, is_believable
from scheduler_plugin.groups.core.workload import ContainerRecommendation, ResourceList, VerticalRecommendation
from scheduler_plugin.groups.objects.amounts import read_amounts


def vertical_of(vpa: JsonObject) -> VerticalRecommendation | None:
    """The VPA's recommendation; None while it has none, or doubts. Raises ``ValueError`` for bad amounts."""
    if not is_believable(
        {text(condition, "type"): text(condition, "status") for condition in items(vpa, "status", "conditions")}
    ):
        return None
    listed = items(vpa, "status", "recommendation", "containerRecommendations")
    containers = tuple(
        _container(container, f"status.recommendation.containerRecommendations[{i}]")
        for i, container in enumerate(listed)
    )
    return VerticalRecommendation(containers) if containers else None


def why_silent(vpa: JsonObject) -> str:
    """The reason why the VPA has no usable recommendation; empty if it gives none."""
    for condition in items(vpa, "status", "conditions"):
        if text(condition, "type") in DISTRUSTED and text(condition, "status") == "True":
            return f"{text(condition, 'type')}: {text(condition, 'message')}"
    return ""


def _container(found: JsonObject, path: str) -> ContainerRecommendation:
    rows = ("target", "lowerBound", "upperBound", "uncappedTarget")
    amounts = (read_amounts(child(found, row), f"{path}.{row}") for row in rows)
    return ContainerRecommendation(text(found, "containerName"), *(_above_zero(row_amounts) for row_amounts in amounts))


def _above_zero(amounts: ResourceList) -> ResourceList:
    """The amounts above zero."""
    # A recommender that has seen no use yet recommends zero.
    return amounts.map(lambda _, amount: amount.value or None)


def sizing_mode(vpa: JsonObject) -> str:
    """The update mode of a VPA that sizes pods; empty if it only recommends (``Off``).

    Every mode but ``Off`` sizes pods, also one that a later VPA adds. Without a mode, VPA sizes them too.

    >>> sizing_mode({"spec": {"updatePolicy": {"updateMode": "InPlace"}}}), sizing_mode({})
    ('InPlace', 'Auto')
    """
    mode = text(vpa, "spec", "updatePolicy", "updateMode") or "Auto"
    return "" if mode == "Off" else mode


def sized_by(vpa: JsonObject) -> tuple[str, str, str]:
    """API group, kind and name of what the VPA recommends for."""
    target = child(vpa, "spec", "targetRef")
    return text(target, "apiVersion").rpartition("/")[0], text(target, "kind"), text(target, "name")


def vpa_spec(template: JsonObject, target: JsonObject) -> Json:
    """The spec of a VPA that recommends sizes for the object that ``target`` refers to, and changes none."""
    return {
        **template,
        "targetRef": dict(target),
        # Off: the group writes the sizes itself, so the VPA must not.
        "updatePolicy": {**child(template, "updatePolicy"), "updateMode": "Off"},
    }
