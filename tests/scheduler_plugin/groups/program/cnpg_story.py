"""A Cluster of CloudNativePG on the embedded cluster, without its operator: as much of its kind as groups read."""

from __future__ import annotations

import yaml

from protocol.kubernetes.conditions import condition
from protocol.kubernetes.objects import Json, JsonObject, child, items
from protocol.kubernetes.resources import (
    CNPG_CLUSTERS,
    CUSTOM_RESOURCE_DEFINITIONS,
    HVPAS,
    PODS,
    SERVICE_ACCOUNTS,
)
from protocol.kubernetes.timestamps import timestamp
from tests.scheduler_plugin.groups.program.running import World
from tests.scheduler_plugin.groups.program.test_problem_reports import changed

CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusters.postgresql.cnpg.io}
spec:
  group: postgresql.cnpg.io
  scope: Namespaced
  names: {kind: Cluster, listKind: ClusterList, plural: clusters, singular: cluster}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale:
        specReplicasPath: .spec.instances
        statusReplicasPath: .status.instances
        labelSelectorPath: .status.selector
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {instances: {type: integer}}}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""

CLUSTER = """
apiVersion: postgresql.cnpg.io/v1
kind: Cluster
metadata: {name: pg}
spec: {instances: 2}
"""

HEALTHY: Json = {
    "instances": 2,
    "readyInstances": 2,
    "phase": "Cluster in healthy state",
    "currentPrimary": "pg-1",
    "targetPrimary": "pg-1",
    "targetPrimaryTimestamp": "2025-12-01T00:00:00.000000Z",
    "selector": "cnpg.io/cluster=pg,cnpg.io/podRole=instance",
}

HVPA = """
apiVersion: autoscaling.k8s.io/v1alpha1
kind: Hvpa
metadata: {name: pg}
spec:
  hpaTemplate: {minReplicas: 2, maxReplicas: 5}
  targetRef: {apiVersion: postgresql.cnpg.io/v1, kind: Cluster, name: pg}
"""

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: NAME
  labels:
    cnpg.io/cluster: pg
    cnpg.io/podRole: instance
    cnpg.io/instanceRole: ROLE
    autoscaling.neon.tech/enabled: "true"
  annotations: {autoscaling.neon.tech/bounds: '{"max": {"cpu": 8, "mem": "16Gi"}}'}
spec:
  containers:
  - name: postgres
    image: example.invalid/postgres
    resources: {requests: {cpu: "1", memory: 1Gi}, limits: {memory: 1Gi}}
"""

READY: Json = {"type": "Ready", "status": "True"}


async def begun(run: World, *, switchover: bool = False, **spec: object) -> None:
    """A Cluster of two instances whose pods have opted in, and its Hvpa with ``spec``; the program runs."""
    await run.cluster.request("POST", CUSTOM_RESOURCE_DEFINITIONS.path(), yaml.safe_load(CRD))
    await run.cluster.make(CNPG_CLUSTERS, CLUSTER)
    if switchover:
        annotations: Json = {"autoscaling.neon.tech/switchover": "true"}
        await run.cluster.patch(CNPG_CLUSTERS, "pg", {"metadata": {"annotations": annotations}})
    await run.cluster.patch(CNPG_CLUSTERS, "pg", {"status": HEALTHY}, "status")
    await run.cluster.make(SERVICE_ACCOUNTS, "{metadata: {name: default}}")
    for name, role in (("pg-1", "primary"), ("pg-2", "replica")):
        await run.cluster.make(PODS, POD.replace("NAME", name).replace("ROLE", role))
        await resized(run, name, "1", "1Gi")
    await run.cluster.make(HVPAS, changed(HVPA, **spec))
    await run.start()


async def resized(run: World, pod: str, cpu: str, memory: str, *conditions: Json, has: Json | None = None) -> None:
    """The agent has asked for this size; the kubelet has given it, or still has the pod at ``has``."""
    size: Json = {"cpu": cpu, "memory": memory}
    container: Json = {"name": "postgres", "resources": {"requests": size, "limits": {"memory": memory}}}
    body: Json = {"spec": {"containers": [container]}}
    path = PODS.path("default", pod, "resize")
    await run.cluster.request("PATCH", path, body, "application/strategic-merge-patch+json")
    given: Json = {"name": "postgres", "resources": {"requests": has or size}}
    status: Json = {"phase": "Running", "conditions": [READY, *conditions], "containerStatuses": [given]}
    await run.cluster.patch(PODS, pod, {"status": status}, "status")


async def denied(run: World) -> str:
    """The primary's node has had no room for it since now, which is returned, and its standby's node has."""
    since = timestamp(run.clock.wall())
    deferred = {**condition({}, "PodResizePending", "True", "Deferred", "no room"), "lastTransitionTime": since}
    await resized(run, "pg-1", "4", "8Gi", deferred, has={"cpu": "1", "memory": "1Gi"})
    await resized(run, "pg-2", "4", "8Gi")
    return since


async def instances(run: World) -> object:
    """Desired instances of the Cluster."""
    return child(await run.cluster.get(CNPG_CLUSTERS, "pg"), "spec")["instances"]


def size_of(pod: JsonObject) -> Json:
    """The requests of the pod's only container."""
    (container,) = items(pod, "spec", "containers")
    return child(container, "resources", "requests")
