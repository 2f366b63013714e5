"""Objects whose controllers also change a pod's requests or scale on them; such a pod does not grow (B.7).

A kind that is missing, or that we may not list, counts as absent.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from protocol.kubernetes.objects import Json, JsonObject, annotations_of, child, items, name_of, text
from protocol.kubernetes.resources import CNPG_CLUSTERS, HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS
from protocol.runtime.kubernetes.watches.kinds import Kind
from scheduler_plugin.texts import explanations

RECONCILE_POD_SPEC: Final = "cnpg.io/reconcilePodSpec"
"""CloudNativePG annotation: with ``disabled`` the operator does not change running pods."""


class Target(NamedTuple):
    """The controller of pods, as other objects refer to it."""

    namespace: str
    group: str
    kind: str
    name: str


class Conflict(NamedTuple):
    """The targeted controller, and why its pods must not be resized; empty if they may."""

    target: Target
    why: str


def read_horizontal(obj: JsonObject) -> Conflict:
    """A HorizontalPodAutoscaler."""
    # Without metrics the API server sets the default, a CPU utilization target.
    by_utilization = any(_is_by_utilization(metric) for metric in items(obj, "spec", "metrics"))
    return _conflict(obj, "scaleTargetRef", explanations.BY_UTILIZATION if by_utilization else "")


def _is_by_utilization(metric: Json) -> bool:
    sources = (child(metric, "resource"), child(metric, "containerResource"))
    return any(text(source, "target", "type") == "Utilization" for source in sources)


def read_vertical(obj: JsonObject) -> Conflict:
    """A VerticalPodAutoscaler."""
    is_off = text(obj, "spec", "updatePolicy", "updateMode") == "Off"
    return _conflict(obj, "targetRef", "" if is_off else explanations.VERTICAL_IS_ON)


def _conflict(obj: JsonObject, field: str, why: str) -> Conflict:
    name, target = name_of(obj), child(obj, "spec", field)
    group = text(target, "apiVersion").rpartition("/")[0]
    return Conflict(
        Target(name.namespace, group, text(target, "kind"), text(target, "name")), why.format(name=name.name)
    )


def read_cluster(obj: JsonObject) -> Conflict:
    """A CloudNativePG Cluster."""
    name = name_of(obj)
    is_in_place = text(obj, "spec", "resourcesUpdateStrategy") == "inPlace"
    reverts = is_in_place and annotations_of(obj).get(RECONCILE_POD_SPEC) != "disabled"
    why = explanations.CNPG_REVERTS.format(name=name.name, annotation=RECONCILE_POD_SPEC) if reverts else ""
    return Conflict(Target(name.namespace, CNPG_CLUSTERS.group, CNPG_CLUSTERS.kind, name.name), why)


KINDS: Final = tuple(
    Kind(resource, read, is_optional=True, may_be_forbidden=True)
    for resource, read in (
        (HORIZONTAL_AUTOSCALERS, read_horizontal),
        (VERTICAL_AUTOSCALERS, read_vertical),
        (CNPG_CLUSTERS, read_cluster),
    )
)
