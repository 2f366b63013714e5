"""An Hvpa waits for its pods (S1.12): what the program reads of a Deployment's status and of its pods."""

from __future__ import annotations

from protocol.kubernetes.objects import Json, items
from protocol.kubernetes.resources import DEPLOYMENTS, HORIZONTAL_AUTOSCALERS, HVPAS, PODS, SERVICE_ACCOUNTS
from tests.scheduler_plugin.groups.program.cluster import condition_of
from tests.scheduler_plugin.groups.program.running import DEPLOYMENT, World, world
from tests.scheduler_plugin.groups.program.test_in_place import POD

HVPA = """
apiVersion: autoscaling.k8s.io/v1alpha1
kind: Hvpa
metadata: {name: shop}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: resource-consumer}
  hpaTemplate: {minReplicas: 1, maxReplicas: 10}
  vpaTemplate: {resourcePolicy: {containerPolicies: [{containerName: "*", maxAllowed: {cpu: "4", memory: 4Gi}}]}}
"""
TWO_READY: Json = {"observedGeneration": 9, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}
LARGER = (2, {"cpu": "1250m", "memory": "500Mi"})


async def begun(run: World) -> None:
    """Two pods of 500m, of which each uses 1 vCPU: with a target of 80 % they need 2.5."""
    await run.cluster.make(DEPLOYMENTS, DEPLOYMENT.replace("replicas: 1", "replicas: 2"))
    await run.cluster.make(SERVICE_ACCOUNTS, "{metadata: {name: default}}")
    for name in ("one", "two"):
        await run.cluster.make(PODS, POD.replace("NAME", name))
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await run.cluster.patch(PODS, name, {"status": ready}, "status")
    await run.cluster.patch(DEPLOYMENTS, "resource-consumer", {"status": TWO_READY}, "status")
    await run.cluster.make(HVPAS, HVPA)
    await run.start()
    current = {"averageUtilization": 200, "averageValue": "1"}
    metric = {"type": "Resource", "resource": {"name": "cpu", "current": current}}
    status: Json = {"currentReplicas": 2, "desiredReplicas": 5, "currentMetrics": [metric]}
    await run.cluster.patch(HORIZONTAL_AUTOSCALERS, "shop", {"status": status}, "status")
    await run.passes(15)


async def test_one_order_is_waited_for() -> None:
    """The HPA still says 200 % of old pods while new ones come, and none of it is multiplied."""
    async with world() as run:
        await begun(run)
        assert await run.size() == LARGER
        status: Json = {"replicas": 3, "updatedReplicas": 1}
        await run.cluster.patch(DEPLOYMENTS, "resource-consumer", {"status": status}, "status")
        for _ in range(10):
            await run.passes(15)
        group = await run.cluster.get(HVPAS, "shop")
        said = ("False", "PodsDiffer", "1 of 2 pods have the latest template")
        assert (await run.size(), condition_of(group, "PodsAsOrdered")) == (
            (2, {"cpu": "1250m", "memory": "500Mi"}),
            said,
        )
        await run.cluster.patch(DEPLOYMENTS, "resource-consumer", {"status": TWO_READY}, "status")
        for _ in range(20):
            await run.passes(15)
        group = await run.cluster.get(HVPAS, "shop")
        assert (await run.size(), condition_of(group, "PodsAsOrdered")) == (LARGER, ("", "", ""))


async def test_pods_are_remembered_in_the_status() -> None:
    async with world() as run:
        await begun(run)
        (past,) = items(await run.cluster.get(HVPAS, "shop"), "status", "pods", "past")
        container = {"name": "resource-consumer", "resources": {"requests": {"cpu": "500m", "memory": "500Mi"}}}
        assert (past["ready"], past["sizes"]) == (2, [container])
