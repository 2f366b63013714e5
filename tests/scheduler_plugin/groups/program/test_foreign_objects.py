"""Objects of other workloads and their controllers stay unchanged, even if names collide."""

from __future__ import annotations

import pytest
import yaml

from protocol.kubernetes.resources import (
    DEPLOYMENTS,
    HORIZONTAL_AUTOSCALERS,
    HVPAS,
    REPLICA_SETS,
    TORTOISES,
    VERTICAL_AUTOSCALERS,
    Resource,
)
from tests.scheduler_plugin.groups.program import test_tortoise
from tests.scheduler_plugin.groups.program.cluster import condition_of
from tests.scheduler_plugin.groups.program.running import DEPLOYMENT, world
from tests.scheduler_plugin.groups.program.test_hvpa import INTERVALS
from tests.scheduler_plugin.groups.program.test_problem_reports import HPA, able, changed

OF_ANOTHER = HPA.replace("NAME", "hvpa-sample").replace("name: resource-consumer", "name: web")
VPA_OF_ANOTHER = """
apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {name: hvpa-sample}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  updatePolicy: {updateMode: Auto}
"""


@pytest.mark.parametrize(
    ("resource", "manifest"), [(HORIZONTAL_AUTOSCALERS, OF_ANOTHER), (VERTICAL_AUTOSCALERS, VPA_OF_ANOTHER)]
)
async def test_foreign_autoscaler_is_not_adopted(resource: Resource, manifest: str) -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        theirs = await run.cluster.make(resource, manifest)
        await run.cluster.make(HVPAS, INTERVALS)
        await run.start()
        said = f"{resource.kind} hvpa-sample targets Deployment web"
        assert await able(run) == ("False", "ForeignAutoscaler", said)
        assert await run.cluster.get(resource, "hvpa-sample") == theirs


async def test_tortoise_ignores_foreign_hpa() -> None:
    async with test_tortoise.day() as found:
        other = test_tortoise.TORTOISE.replace("lovely", "other").replace(
            test_tortoise.THE_DEPLOYMENT, "apiVersion: apps/v1, kind: Deployment, name: other"
        )
        await found.run.cluster.make(DEPLOYMENTS, test_tortoise.DEPLOYMENT.replace("name: web", "name: other"))
        await found.run.cluster.make(TORTOISES, other)
        await found.run.passes(0)
        group = await found.run.cluster.get(TORTOISES, "other")
        said = "HorizontalPodAutoscaler web targets Deployment web"
        assert condition_of(group, "AbleToScale") == ("False", "ForeignAutoscaler", said)


async def test_owned_replica_set_is_not_scaled() -> None:
    async with world() as run:
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u", "controller": True}
        found = yaml.safe_load(DEPLOYMENT)
        metadata = {**found["metadata"], "ownerReferences": [owner]}
        await run.cluster.make(REPLICA_SETS, yaml.safe_dump({**found, "kind": "ReplicaSet", "metadata": metadata}))
        target = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "resource-consumer"}
        await run.cluster.make(HVPAS, changed(INTERVALS, targetRef=target))
        await run.start()
        said = "ReplicaSet resource-consumer is controlled by Deployment web, which would revert every scaling"
        assert await able(run) == ("False", "TargetTaken", said)
        assert await run.cluster.every(HORIZONTAL_AUTOSCALERS) == []
