"""The document's Hvpa manifests, end to end: applied as they are, and what becomes of the Deployment.

Read it beside the document: each manifest is its example, each story its figure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from protocol.kubernetes.objects import child, items, text
from protocol.kubernetes.resources import DEPLOYMENTS, HORIZONTAL_AUTOSCALERS, HVPAS, VERTICAL_AUTOSCALERS
from tests.scheduler_plugin.groups.program.cluster import condition_of, status_of
from tests.scheduler_plugin.groups.program.running import DEPLOYMENT, World, world

STAGES = """
apiVersion: autoscaling.k8s.io/v1alpha1
kind: Hvpa
metadata:
  name: hvpa-sample
spec:
  stageTwoStartReplicaCount: 3
  stageTwoStopReplicaCount: 7
  firstStageVpaWeight: 0
  secondStageVpaWeight: 0.4
  thirdStageVpaWeight: 0
  hpaSpec:
    maxReplicas: 10
    minReplicas: 1
    scaleTargetRef:
      apiVersion: apps/v1
      kind: Deployment
      name: resource-consumer
    targetCPUUtilizationPercentage: 60
  vpaSpec:
    resourcePolicy:
      containerPolicies:
      - MinAllowed:
          memory: 400Mi
        containerName: resource-consumer
        maxAllowed:
          memory: 3000Mi
    updatePolicy:
      updateMode: "Off"
"""

INTERVALS = """
apiVersion: autoscaling.k8s.io/v1alpha1
kind: Hvpa
metadata:
  name: hvpa-sample
spec:
  scaleUpDelay: "2m"
  scaleDownDelay: "3m"
  minCpuChange:
    value: "200m"
    percentage: 70
  minMemChange:
    value: "200M"
    percentage: 80
  hpaTemplate:
    maxReplicas: 10
    minReplicas: 1
    metrics:
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: 50
    - type: Resource
      resource:
        name: memory
        target:
          type: Utilization
          averageUtilization: 50
  vpaTemplate:
    resourcePolicy:
      containerPolicies:
      - MinAllowed:
          memory: 400Mi
        containerName: resource-consumer
        maxAllowed:
          memory: 3000Mi
  weightBasedScalingIntervals:
    - vpaWeight: 0
      startReplicaCount: 1
      lastReplicaCount: 2
    - vpaWeight: 0.6
      startReplicaCount: 3
      lastReplicaCount: 7
    - vpaWeight: 0
      startReplicaCount: 7
      lastReplicaCount: 10
  targetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: resource-consumer
"""

_REST = """
  hpaTemplate:
    minReplicas: 1
    maxReplicas: 10
  vpaTemplate:
    resourcePolicy:
      containerPolicies:
      - containerName: resource-consumer
        maxAllowed: {cpu: "4", memory: 3000Mi}
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: resource-consumer}
"""

VERTICAL_FIRST = f"""
apiVersion: autoscaling.k8s.io/v1alpha1
kind: Hvpa
metadata:
  name: hvpa-sample
spec:
  weightBasedScalingIntervals:
    - vpaWeight: 1
      startReplicaCount: 1
      lastReplicaCount: 1
    - vpaWeight: 0.6
      startReplicaCount: 2
      lastReplicaCount: 4
    - vpaWeight: 0
      startReplicaCount: 5
      lastReplicaCount: 10
{_REST}"""

VERTICAL_LAST = f"""
apiVersion: autoscaling.k8s.io/v1alpha1
kind: Hvpa
metadata:
  name: hvpa-sample
spec:
  weightBasedScalingIntervals:
    - vpaWeight: 0
      startReplicaCount: 1
      lastReplicaCount: 3
    - vpaWeight: 0.6
      startReplicaCount: 4
      lastReplicaCount: 10
{_REST}"""


@asynccontextmanager
async def begun(manifest: str, replicas: int = 1) -> AsyncIterator[World]:
    """The Deployment and the Hvpa exist, and the program has reconciled them once."""
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.patch(DEPLOYMENTS, "resource-consumer", {"spec": {"replicas": replicas}}, "scale")
        await run.cluster.make(HVPAS, manifest)
        await run.start()
        yield run


async def test_hvpa_creates_recommending_hpa_and_vpa() -> None:
    async with begun(INTERVALS) as run:
        hpa = await run.cluster.get(HORIZONTAL_AUTOSCALERS, "hvpa-sample")
        vpa = await run.cluster.get(VERTICAL_AUTOSCALERS, "hvpa-sample")
        group = await run.cluster.get(HVPAS, "hvpa-sample")
        itself = {"apiVersion": "autoscaling.k8s.io/v1alpha1", "kind": "Hvpa", "name": "hvpa-sample"}
        assert child(hpa, "spec", "scaleTargetRef") == itself
        assert (child(hpa, "spec")["minReplicas"], child(hpa, "spec")["maxReplicas"]) == (1, 10)
        assert [text(each, "resource", "name") for each in items(hpa, "spec", "metrics")] == ["cpu", "memory"]
        assert child(vpa, "spec") == {
            "resourcePolicy": {
                "containerPolicies": [
                    {
                        "containerName": "resource-consumer",
                        "minAllowed": {"memory": "400Mi"},
                        "maxAllowed": {"memory": "3000Mi"},
                    }
                ]
            },
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "resource-consumer"},
            "updatePolicy": {"updateMode": "Off"},
        }
        for made in (hpa, vpa):
            (owner,) = items(made, "metadata", "ownerReferences")
            assert (owner["kind"], owner["uid"], owner["controller"]) == ("Hvpa", child(group, "metadata")["uid"], True)
        assert condition_of(group, "AbleToScale")[:2] == ("True", "TargetFound")
        assert condition_of(group, "ScalingActive")[:2] == ("False", "NoRecommendation")
        assert await run.size() == (1, {"cpu": "500m", "memory": "500Mi"})


async def test_document_stages_example() -> None:
    async with begun(STAGES) as run:
        await run.recommend("hvpa-sample", 3, cpu="1500m", memory="1500Mi")
        assert await run.size() == (3, {"cpu": "500m", "memory": "500Mi"})
        await run.recommend("hvpa-sample", 8)
        await run.passes(15)
        assert await run.size() == (6, {"cpu": "900m", "memory": "900Mi"})
        await run.passes(15)
        assert await run.size() == (8, {"cpu": "1140m", "memory": "1140Mi"})
        await run.recommend("hvpa-sample", 10)
        await run.passes(60)
        assert await run.size() == (10, {"cpu": "1500m", "memory": "1500Mi"})


async def test_intervals_keep_blocked_wishes() -> None:
    async with begun(INTERVALS, replicas=3) as run:
        await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
        first = await run.size()
        assert first == (5, {"cpu": "1100m", "memory": "1100Mi"})
        await run.passes(105)
        group = await run.cluster.get(HVPAS, "hvpa-sample")
        rules = {text(each, "subject"): text(each, "rule") for each in items(group, "status", "kept")}
        assert await run.size() == first
        assert rules["replicas"] == "Delay"
        assert condition_of(group, "ScalingLimited")[0] == "True"
        assert condition_of(group, "IntervalsOverlap")[1] == "FirstMatchWins"
        await run.passes(15)
        assert (await run.size())[0] == 6
        assert await run.events() == [
            (
                "Scaled",
                "replicas 3 → 5; resource-consumer: requests cpu 500m → 1100m, requests memory 500Mi → 1100Mi",
            ),
            (
                "Scaled",
                "replicas 5 → 6; resource-consumer: requests cpu 1100m → 1340m, requests memory 1100Mi → 1340Mi",
            ),
        ]


async def test_weight_one_grows_vertically_untrapped() -> None:
    async with begun(VERTICAL_FIRST) as run:
        await run.recommend("hvpa-sample", cpu="4", memory="2000Mi")
        assert await run.size() == (1, {"cpu": "4", "memory": "2000Mi"})
        await run.recommend("hvpa-sample", 10)
        for _ in range(8):
            await run.passes(15)
        assert (await run.size())[0] == 10


async def test_beyond_max_replicas_only_vertical_scaling_is_left() -> None:
    async with begun(VERTICAL_LAST, replicas=10) as run:
        await run.recommend("hvpa-sample", 10, cpu="4", memory="2500Mi")
        assert await run.size() == (10, {"cpu": "4", "memory": "2500Mi"})


async def test_hvpa_scale_mirrors_target() -> None:
    async with begun(INTERVALS, replicas=3) as run:
        scale = await run.cluster.get(HVPAS, "hvpa-sample/scale")
        assert (child(scale, "spec"), child(scale, "status")) == (
            {"replicas": 3},
            {"replicas": 3, "selector": "app=resource-consumer"},
        )
        await run.cluster.patch(HVPAS, "hvpa-sample", {"spec": {"replicas": 9}}, "scale")
        await run.passes(15)
        assert (await run.size())[0] == 3
        assert child(await run.cluster.get(HVPAS, "hvpa-sample"), "spec")["replicas"] == 3


async def test_what_is_settled_is_not_written_again() -> None:
    async with begun(INTERVALS, replicas=3) as run:
        await run.recommend("hvpa-sample", 3, cpu="500m", memory="500Mi")
        await run.passes(60)
        settled = len(run.cluster.writes())
        await run.passes(120)
        assert len(run.cluster.writes()) == settled
        assert status_of(await run.cluster.get(HVPAS, "hvpa-sample"))["kept"] == []
