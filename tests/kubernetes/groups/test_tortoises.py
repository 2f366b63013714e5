"""Tortoises with the real HPA controller, which scales within their bounds, and the real VPA recommender."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, TORTOISES, VERTICAL_AUTOSCALERS
from tests.kubernetes.groups.external_metrics import external
from tests.kubernetes.groups.scene import BUSY, DEPLOYMENT, Object, Scene, cpu_metric, deployment, hpa, prompt, tortoise

pytestmark = pytest.mark.kubernetes

LONG_AGO = "2026-01-01T00:00:00Z"
QUEUE = {"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "30"}}}
SCENE = (
    deployment("shop", BUSY, ("app", "side")),
    hpa("shop", {**DEPLOYMENT, "name": "shop"}, cpu_metric(type="Utilization", averageUtilization=400)),
    tortoise("shop", attached="shop"),
    # Its replicas are idle, so that only the emergency adds any: busy ones, as of shop, are doubled until they rest.
    deployment("stock"),
    hpa("stock", {**DEPLOYMENT, "name": "stock"}, cpu_metric(type="Utilization", averageUtilization=400)),
    tortoise("stock", attached="stock"),
    deployment("api"),
    tortoise("api", deletionPolicy="DeleteAll"),
    deployment("queue"),
    hpa("queue", {**DEPLOYMENT, "name": "queue"}, QUEUE, cpu_metric(type="Utilization", averageUtilization=50), most=2),
    tortoise("queue", attached="queue"),
    deployment("orders"),
    prompt(hpa("orders", {**DEPLOYMENT, "name": "orders"}, external("orders", "30"), external("legacy_orders", "30"))),
)


def works(scene: Scene, name: str, **replicas: int) -> None:
    """A Tortoise that has gathered enough data; ``replicas`` is its memory of this day."""

    def is_begun() -> bool:
        return scene.status(TORTOISES, name).get("tortoisePhase") not in {None, "Initializing"}

    scene.until(is_begun, True, f"{name} gathers data")
    phase = {"phase": "Working", "lastTransitionTime": LONG_AGO}
    phases = [
        {"containerName": each["containerName"], "resourcePhases": {"cpu": phase, "memory": phase}}
        for each in scene.status(TORTOISES, name)["containerResourcePhases"]
    ]
    slots = {kind: [slot(value)] for kind, value in replicas.items()}
    remembered = {
        "containerResourcePhases": phases,
        "tortoisePhase": "Working",
        "recommendations": {"horizontal": slots},
    }
    scene.patch(TORTOISES, name, {"status": remembered}, "status")


def slot(value: int) -> Object:
    now = datetime.now(UTC)
    return {"from": 0, "to": 24, "timezone": "UTC", "value": value, "updatedAt": now.strftime("%Y-%m-%dT%H:%M:%SZ")}


def bounds(scene: Scene, name: str) -> tuple[int, int]:
    """The HPA's least and most replicas."""
    spec = scene.get(HORIZONTAL_AUTOSCALERS, name)["spec"]
    return spec["minReplicas"], spec["maxReplicas"]


def test_attached_hpa_gets_a_metric_per_container(scene: Scene) -> None:
    def read() -> list[tuple[str, str]]:
        metrics = scene.status(HORIZONTAL_AUTOSCALERS, "shop").get("currentMetrics") or ()
        return [
            (each["type"], each["containerResource"]["container"]) for each in metrics if "containerResource" in each
        ]

    scene.until(lambda: scene.status(TORTOISES, "shop").get("tortoisePhase"), "GatheringData", "data is gathered")
    assert [each["type"] for each in scene.get(HORIZONTAL_AUTOSCALERS, "shop")["spec"]["metrics"]] == ["Resource"]
    works(scene, "shop", minReplicas=1, maxReplicas=3)
    scene.until(read, [("ContainerResource", "app"), ("ContainerResource", "side")], "figures of each container")
    assert scene.condition(HORIZONTAL_AUTOSCALERS, "shop", "ScalingActive")[:2] == ("True", "ValidMetricFound")
    assert scene.get(VERTICAL_AUTOSCALERS, "tortoise-monitor-shop")["spec"]["updatePolicy"] == {"updateMode": "Off"}


def test_recorded_day_becomes_bounds_of_the_hpa(scene: Scene) -> None:
    works(scene, "api", minReplicas=2, maxReplicas=3)
    scene.until(lambda: bounds(scene, "tortoise-hpa-api"), (2, 3), "bounds of the Tortoise's own HPA")
    scene.until(lambda: scene.replicas("api"), 2, "as many replicas as this day needs")
    assert scene.writers_of_replicas("api") == {("kube-controller-manager", "scale")}
    scene.until(lambda: scene.requests("api")["memory"] != "32Mi", True, "memory as little as is needed")


def test_requested_emergency_runs_maximum_replicas(scene: Scene) -> None:
    works(scene, "stock", minReplicas=1, maxReplicas=3)
    scene.patch(TORTOISES, "stock", {"spec": {"updateMode": "Emergency"}})
    scene.until(lambda: bounds(scene, "stock"), (3, 3), "the least is the most")
    scene.until(lambda: scene.replicas("stock"), 3, "as many replicas as ever")
    scene.patch(TORTOISES, "stock", {"spec": {"updateMode": "Auto"}})
    scene.until(
        lambda: scene.status(TORTOISES, "stock")["tortoisePhase"] in {"Working", "PartlyWorking"}, True, "the way back"
    )
    assert bounds(scene, "stock") == (1, 3)


def test_missing_metric_is_an_emergency_until_it_returns(scene: Scene) -> None:
    works(scene, "queue", minReplicas=1, maxReplicas=2)
    scene.until(lambda: scene.status(TORTOISES, "queue")["tortoisePhase"], "Emergency", "the metric is missed")
    assert scene.condition(HORIZONTAL_AUTOSCALERS, "queue", "ScalingActive")[:2] == ("False", "FailedGetExternalMetric")
    scene.until(lambda: scene.replicas("queue"), 2, "as many replicas as ever")
    metrics = [
        each for each in scene.get(HORIZONTAL_AUTOSCALERS, "queue")["spec"]["metrics"] if each["type"] != "External"
    ]
    scene.patch(HORIZONTAL_AUTOSCALERS, "queue", {"spec": {"metrics": metrics}})
    scene.until(lambda: scene.status(TORTOISES, "queue")["tortoisePhase"] != "Emergency", True, "the way back")


def test_excluded_external_metric_no_longer_scales(scene: Scene) -> None:
    scene.until(lambda: scene.replicas("orders"), 3, "as many replicas as the larger metric asks for")
    scene.apply(tortoise("orders", attached="orders"))
    works(scene, "orders", minReplicas=1, maxReplicas=4)
    scene.until(lambda: external_metrics_of(scene, "orders"), ["orders"], "the excluded metric is gone")
    scene.until(lambda: scene.replicas("orders"), 2, "as many replicas as the other metric asks for")
    scene.until(
        lambda: scene.condition(HORIZONTAL_AUTOSCALERS, "orders", "ScalingActive")[:2],
        ("True", "ValidMetricFound"),
        "all metrics are answered",
    )
    assert scene.writers_of_replicas("orders") == {("kube-controller-manager", "scale")}


def external_metrics_of(scene: Scene, name: str) -> list[str]:
    metrics = scene.get(HORIZONTAL_AUTOSCALERS, name)["spec"]["metrics"]
    return [each["external"]["metric"]["name"] for each in metrics if each["type"] == "External"]
