"""An Hvpa of a Cluster of CloudNativePG on a real API server: the number of instances, a floor, and a switchover.

Its kind is as much of the operator's as groups read. Pods are objects only: no kubelet runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from protocol.floors import decode_floor
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import CNPG_CLUSTERS, HORIZONTAL_AUTOSCALERS, HVPAS, PODS, Resource
from protocol.kubernetes.timestamps import timestamp
from protocol.names import ANNOTATION_FLOOR
from protocol.units import Resources
from tests.deploy.test_groups_rights import PODS_ENABLED
from tests.kubernetes.failing.fleet import Obj, until
from tests.kubernetes.failing.stage import Stage
from tests.scheduler_plugin.groups.program.cnpg_story import CLUSTER, CRD, HEALTHY, HVPA, POD, READY

pytestmark = pytest.mark.kubernetes

SMALL: Json = {"cpu": "1", "memory": "1Gi"}
LARGE: Json = {"cpu": "4", "memory": "8Gi"}


@asynccontextmanager
async def pair(stage: Stage) -> AsyncIterator[None]:
    """A Cluster that allows a switchover: its primary has waited for ten minutes for the size that its standby has."""
    await asyncio.to_thread(stage.plane.apply, [yaml.safe_load(CRD), *roles()])
    await asyncio.to_thread(stage.plane.ready, CNPG_CLUSTERS.path())
    since = timestamp((datetime.now(UTC) - timedelta(minutes=10)).timestamp())
    deferred: Json = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "lastTransitionTime": since}
    try:
        allows = {"metadata": {"name": "pg", "annotations": {"autoscaling.neon.tech/switchover": "true"}}}
        await stage.fleet.create(CNPG_CLUSTERS.path("default"), {**yaml.safe_load(CLUSTER), **allows})
        await report(stage, CNPG_CLUSTERS, "pg", HEALTHY)
        await make_pod(stage, "pg-1", "primary", SMALL, READY, deferred)
        await make_pod(stage, "pg-2", "replica", LARGE, READY)
        await stage.fleet.create(HVPAS.path("default"), yaml.safe_load(HVPA))
        yield
    finally:
        for kind in (HVPAS, CNPG_CLUSTERS):
            await stage.fleet.http.delete(kind.path("default"))


def roles() -> list[Json]:
    """The rights of the program that the chart grants with ``pods.enabled``."""
    rules = [{"apiGroups": [group], "resources": [kind], "verbs": [verb]} for group, kind, verb in PODS_ENABLED]
    role: Json = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "groups-of-pods"}}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "groups-of-pods"}
    subject = {"kind": "ServiceAccount", "namespace": "kube-system", "name": "autoscaling-groups"}
    binding = {"kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]}
    return [{**role, "kind": "ClusterRole", "rules": rules}, {**role, **binding}]


async def make_pod(stage: Stage, name: str, role: str, has: Json, *conditions: Json) -> None:
    """A pod that requests the large size; its kubelet reports the size ``has``."""
    pod = yaml.safe_load(POD.replace("NAME", name).replace("ROLE", role))
    pod["spec"]["containers"][0]["resources"] = {"requests": LARGE, "limits": {"memory": LARGE["memory"]}}
    await stage.fleet.create(PODS.path("default"), pod)
    container: Json = {"name": "postgres", "ready": True, "restartCount": 0, "image": "x", "imageID": ""}
    statuses = [{**container, "resources": {"requests": has}}]
    await report(stage, PODS, name, {"phase": "Running", "conditions": [*conditions], "containerStatuses": statuses})


async def report(stage: Stage, kind: Resource, name: str, status: Json) -> None:
    """Another program writes the object's status."""
    await stage.fleet.patch(kind.path("default", name, "status"), {"status": status})


async def get(stage: Stage, kind: Resource, name: str) -> Obj:
    answer: Obj = (await stage.fleet.http.get(kind.path("default", name))).json()
    return answer


async def test_standby_takes_primary_place(stage: Stage) -> None:
    async with pair(stage):
        ours = await stage.groups(await stage.way())
        await until(ours.leads, "it leads")

        async def is_promoted() -> bool:
            return bool((await get(stage, CNPG_CLUSTERS, "pg"))["status"]["targetPrimary"] == "pg-2")

        await until(is_promoted, "the standby is promoted", 30.0)
        floor = (await get(stage, PODS, "pg-2"))["metadata"]["annotations"][ANNOTATION_FLOOR]
        assert decode_floor(floor).size == Resources.parse(4, "8Gi")

        async def has_grown() -> bool:
            await report(stage, HORIZONTAL_AUTOSCALERS, "pg", {"currentReplicas": 2, "desiredReplicas": 3})
            return bool((await get(stage, CNPG_CLUSTERS, "pg"))["spec"]["instances"] == 3)

        await until(has_grown, "the Cluster has another instance", 60.0)
