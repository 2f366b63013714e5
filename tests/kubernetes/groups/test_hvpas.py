"""Hvpas with the real HPA controller and VPA recommender: both only recommend, and the Hvpa writes."""

from __future__ import annotations

import pytest

from protocol.kubernetes.resources import DEPLOYMENTS, HORIZONTAL_AUTOSCALERS, HVPAS, PODS, VERTICAL_AUTOSCALERS
from tests.kubernetes.groups.external_metrics import external
from tests.kubernetes.groups.scene import BUSY, SYSTEM, Object, Scene, cpu_metric, deployment, hvpa

pytestmark = pytest.mark.kubernetes


def sized(**bounds: Object) -> Object:
    """The VPA inside an Hvpa, with bounds for its one container."""
    return {"resourcePolicy": {"containerPolicies": [{"containerName": "app", **bounds}]}}


MOST = {"cpu": "15m", "memory": "64Mi"}
"""Less than a busy pod uses on a machine whose other tests leave it little, so that it is what is recommended."""
SCENE = (
    deployment("web", BUSY),
    # As people write it: a real API server keeps 5m.
    hvpa(
        "web",
        mode="HpaPreferred",
        hpaTemplate={"maxReplicas": 2, "metrics": [cpu_metric(type="AverageValue", averageValue="0.005")]},
        vpaTemplate=sized(maxAllowed=MOST),
    ),
    deployment("cache", BUSY),
    hvpa(
        "cache",
        mode="EffectiveIntervals",
        updateMode="InPlace",
        scalingIntervals=[{"maxResources": MOST}],
        hpaTemplate={"maxReplicas": 2},
        vpaTemplate=sized(maxAllowed=MOST),
    ),
    deployment("mail"),
    hvpa("mail", hpaTemplate={"maxReplicas": 3, "metrics": [external("orders", "30")]}),
    deployment("giant"),
    hvpa("giant", updateMode="InPlace", vpaTemplate=sized(minAllowed={"cpu": "64"}, maxAllowed={"cpu": "64"})),
)


def pods_of(scene: Scene, name: str) -> list[tuple[Object, Object, int]]:
    """Of each pod: what its container is to have, what its kubelet says it has, and how often it has restarted."""
    found = []
    for pod in scene.list(PODS, f"app={name}"):
        (container,), (status,) = pod["spec"]["containers"], pod["status"].get("containerStatuses") or [{}]
        found.append((container["resources"], status.get("resources", {}), status.get("restartCount", -1)))
    return found


def test_hvpa_applies_real_recommendations(scene: Scene) -> None:
    scene.until(lambda: scene.replicas("web"), 2, "another replica")
    scene.until(lambda: scene.requests("web")["cpu"], MOST["cpu"], "larger replicas, once there are as many as may be")
    (container,) = scene.get(DEPLOYMENTS, "web")["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["cpu"] == "75m", "as many times its request as before"
    assert scene.writers_of_replicas("web") == {("autoscale-groups", "scale")}
    recommends = scene.get(HORIZONTAL_AUTOSCALERS, "web")["spec"]
    assert recommends["scaleTargetRef"] == {"apiVersion": HVPAS.api_version, "kind": HVPAS.kind, "name": "web"}
    assert scene.get(VERTICAL_AUTOSCALERS, "web")["spec"]["updatePolicy"] == {"updateMode": "Off"}
    assert scene.condition(HVPAS, "web", "ScalingActive")[:2] == ("True", "Recommended")


def test_normalized_values_are_written_once(scene: Scene) -> None:
    scene.until(lambda: scene.replicas("web"), 2, "another replica")
    (metric,) = scene.get(HORIZONTAL_AUTOSCALERS, "web")["spec"]["metrics"]
    assert metric["resource"]["target"]["averageValue"] == "5m"
    looked, written = looks(scene), writes(scene)
    scene.until(lambda: looks(scene) >= looked + 20, True, "more looks at the Hvpas")
    assert writes(scene) == written


def writes(scene: Scene) -> float:
    return figure(scene, 'autoscale_groups_writes_total{outcome="done",what="HorizontalPodAutoscaler"}')


def looks(scene: Scene) -> float:
    return figure(scene, 'autoscale_groups_reconciles_total{kind="Hvpa",outcome="done"}')


def figure(scene: Scene, name: str) -> float:
    """A figure of all processes of the program together."""
    total = 0.0
    for pod in scene.list(PODS, "app.kubernetes.io/name=autoscaling-groups", SYSTEM):
        page = (
            scene.api.get(f"{PODS.path(SYSTEM)}/{pod['metadata']['name']}:10294/proxy/metrics").raise_for_status().text
        )
        total += sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))
    return total


def test_an_external_metric_scales_through_the_hvpa(scene: Scene) -> None:
    scene.until(lambda: scene.replicas("mail"), 2, "as many replicas as the metric asks for")
    assert scene.writers_of_replicas("mail") == {("autoscale-groups", "scale")}


def test_in_place_resize_restarts_no_pod(scene: Scene) -> None:
    def sizes() -> list[tuple[str, str]]:
        """Requests of each pod, and its resources according to the kubelet."""
        found = [
            (asked["requests"]["cpu"], has.get("requests", {}).get("cpu", ""))
            for asked, has, _ in pods_of(scene, "cache")
        ]
        return sorted(set(found))

    scene.until(sizes, [(MOST["cpu"], MOST["cpu"])], "every pod is larger, and its kubelet says so")
    assert [restarts for _, _, restarts in pods_of(scene, "cache") if restarts] == []
    assert scene.requests("cache")["cpu"] == "10m"


def test_infeasible_size_is_reported_by_the_group(scene: Scene) -> None:
    """By the API server from 1.36 on, and by the kubelet before."""
    _, _, message = scene.becomes(HVPAS, "giant", "PodsResizable", "False")
    assert "cannot be resized: " in message
    scene.until(lambda: [asked["requests"]["cpu"] for asked, _, _ in pods_of(scene, "giant")], ["10m"], "its old size")
