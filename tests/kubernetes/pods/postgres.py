"""Manifests for postgres in pods: a CloudNativePG Cluster, a StatefulSet, a Deployment, and volumes."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Final

from deploy.local.kubernetes.plan.installation_plan import POSTGRES_IMAGE, POSTGRES_UID
from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_CONFIG, LABEL_ENABLED
from protocol.units import Resources
from tests.kubernetes.adoption.release import nodes_of
from tests.kubernetes.real_kubernetes import RealKubernetes

Obj = dict[str, Any]

NAME: Final = "pg"
"""Of the Cluster; its pods are pg-1 and pg-2."""

STORAGE_CLASS: Final = "nodes"
VOLUMES: Final = 3
"""On each node. A Cluster keeps one for each instance, and takes another for one that is made anew from nothing."""


FLOOR: Final = Resources.parse("500m", "512Mi")
CEILING: Final = Resources.parse("2", "2Gi")


def bounds(most: Resources, least: Resources | None = None) -> str:
    """The annotation with which a pod opts in.

    >>> bounds(Resources.parse("2", "2Gi"))
    '{"max": {"cpu": "2", "mem": "2Gi"}}'
    """
    sizes = {"max": most} | ({} if least is None else {"min": least})
    return json.dumps({end: {"cpu": size.cpu.quantity(), "mem": size.mem.quantity()} for end, size in sizes.items()})


def quantities(size: Resources) -> Obj:
    """The size in the form of requests or limits."""
    return {"cpu": size.cpu.quantity(), "memory": size.mem.quantity()}


HOLD: Final = [{"hold": {"window": "5s"}}]
AT_ONCE: Final = {"smoothing": {"cpu": HOLD, "memory": HOLD, "maxGap": "60s"}, "memory": {"cache": {"enabled": False}}}
"""An agent that gives back soon what is not needed."""

OPTED_IN: Final = {
    "labels": {LABEL_ENABLED: "true"},
    "annotations": {ANNOTATION_BOUNDS: bounds(CEILING), ANNOTATION_CONFIG: json.dumps(AT_ONCE)},
}


def cluster_of_two() -> Obj:
    """Two instances of half a CPU, which may have two CPUs each; their shared buffers are a quarter of the floor."""
    return {
        "apiVersion": "postgresql.cnpg.io/v1",
        "kind": "Cluster",
        "metadata": {"name": NAME},
        "spec": {
            "instances": 2,
            "imageName": POSTGRES_IMAGE,
            "imagePullPolicy": "Never",
            "storage": {"size": "4Gi", "storageClass": STORAGE_CLASS},
            # By default a pod that is to end waits three minutes for its sessions to.
            "smartShutdownTimeout": 3,
            "resources": {"requests": quantities(FLOOR), "limits": quantities(FLOOR)},
            "inheritedMetadata": OPTED_IN,
            "postgresql": {"parameters": {"shared_buffers": "128MB", "max_connections": "100"}},
            "bootstrap": {"initdb": {"database": "app", "owner": "app"}},
        },
    }


def volumes(cluster: RealKubernetes) -> list[Obj]:
    """A StorageClass, and volumes in the folders that it makes on the nodes."""
    found: list[Obj] = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": STORAGE_CLASS},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    ]
    for number, pid in enumerate(nodes_of(cluster), 1):
        for each in range(VOLUMES):
            path = f"/var/lib/postgres-{each}"
            make = f"mkdir -p {path} && chown {POSTGRES_UID}:{POSTGRES_UID} {path} && chmod 700 {path}"
            subprocess.run(["nsenter", f"--target={pid}", "--mount", "sh", "-c", make], check=True)
            found.append(_volume(f"node-{number}", each, path))
    return found


def _volume(node: str, number: int, path: str) -> Obj:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{node}-{number}"},
        "spec": {
            "capacity": {"storage": "5Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


def template(app: str, size: Obj, limits: Obj) -> Obj:
    """A pod of postgres without an operator, as in a template of a StatefulSet or Deployment."""
    first = (
        "initdb --pgdata=/data/db --auth=trust --username=app >/data/initdb.log"
        " && echo 'host all all all trust' >>/data/db/pg_hba.conf"
        " && echo 'create database app' | postgres --single -D /data/db postgres >/dev/null"
    )
    settings = "-c listen_addresses='*' -c unix_socket_directories=/tmp -c shared_buffers=128MB"
    start = f"{{ [ -d /data/db ] || {{ {first}; }}; }} && exec postgres -D /data/db {settings}"
    return {
        "metadata": {**OPTED_IN, "labels": {**OPTED_IN["labels"], "app": app}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "securityContext": {"runAsUser": POSTGRES_UID, "runAsGroup": POSTGRES_UID, "fsGroup": POSTGRES_UID},
            "containers": [
                {
                    "name": "postgres",
                    "image": POSTGRES_IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["sh", "-c", start],
                    "resources": {"requests": size, "limits": limits},
                    "readinessProbe": {"exec": {"command": ["pg_isready", "--host=/tmp"]}, "periodSeconds": 1},
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    }


def workload(kind: str, name: str, pods: Obj) -> Obj:
    """A StatefulSet or a Deployment of one pod."""
    selector = {"matchLabels": pods["metadata"]["labels"]}
    spec = {"replicas": 1, "selector": selector, "template": pods}
    more = {"serviceName": name} if kind == "StatefulSet" else {}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {**spec, **more}}
