"""Groups report their problems and then scale nothing, and a standby takes over from a killed leader."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timedelta

import pytest

from protocol.kubernetes.resources import HVPAS, LEASES, PODS
from tests.kubernetes.groups.scene import DEPLOYMENT, SYSTEM, Object, Scene, cpu_metric, deployment, hpa, hvpa, vpa
from tests.kubernetes.pod_processes import processes_of

pytestmark = pytest.mark.kubernetes

HALF = cpu_metric(type="Utilization", averageUtilization=50)
SCENE = (
    hvpa("orphan", hpaTemplate={"maxReplicas": 2}),
    deployment("shared"),
    hvpa("one", {**DEPLOYMENT, "name": "shared"}, hpaTemplate={"maxReplicas": 2}),
    hvpa("other", {**DEPLOYMENT, "name": "shared"}, hpaTemplate={"maxReplicas": 2}),
    deployment("scaled"),
    hpa("people", {**DEPLOYMENT, "name": "scaled"}, HALF),
    hvpa("scaled", hpaTemplate={"maxReplicas": 2}),
    deployment("sized"),
    vpa("people", {**DEPLOYMENT, "name": "sized"}, "Recreate"),
    hvpa("sized", hpaTemplate={"maxReplicas": 2}, vpaTemplate={}),
    deployment("senseless"),
    hvpa("senseless", hpaTemplate={"minReplicas": 3, "maxReplicas": 2}),
)


@pytest.mark.parametrize(
    ("name", "reason", "said"),
    [
        ("orphan", "TargetMissing", "Deployment orphan does not exist"),
        ("one", "TargetTaken", "Deployment shared is also the target of Hvpa other"),
        ("other", "TargetTaken", "Deployment shared is also the target of Hvpa one"),
        ("scaled", "ForeignAutoscaler", "Deployment scaled is also scaled by HorizontalPodAutoscaler people"),
        (
            "sized",
            "ForeignAutoscaler",
            "Deployment sized is also sized by VerticalPodAutoscaler people (updateMode Recreate)",
        ),
        ("senseless", "InvalidSpec", "spec.hpaTemplate.maxReplicas"),
    ],
)
def test_a_group_that_cannot_scale_says_why(scene: Scene, name: str, reason: str, said: str) -> None:
    _, _, message = scene.becomes(HVPAS, name, "AbleToScale", "False", reason)
    assert message.startswith(said)


def test_standby_takes_over_after_lease_expiry(scene: Scene) -> None:
    before = lease(scene)
    (pod,) = (
        each["metadata"]
        for each in scene.list(PODS, "app.kubernetes.io/name=autoscaling-groups", SYSTEM)
        if before["holderIdentity"].startswith(each["metadata"]["name"])
    )
    (process,) = processes_of(pod["uid"], "groups")
    os.kill(process, signal.SIGKILL)
    scene.apply(deployment("orphan"))
    scene.until(lambda: scene.condition(HVPAS, "orphan", "AbleToScale")[:2], ("True", "TargetFound"), "it is heard")
    after = lease(scene)
    assert after["holderIdentity"] != before["holderIdentity"]
    waited = datetime.fromisoformat(after["acquireTime"]) - datetime.fromisoformat(before["renewTime"])
    assert waited >= timedelta(seconds=before["leaseDurationSeconds"])


def lease(scene: Scene) -> Object:
    """The Lease's holder and acquisition time."""
    spec: Object = scene.get(LEASES, "autoscale-groups", SYSTEM)["spec"]
    return spec
