"""A postgres in an ordinary pod for the demonstration: a StatefulSet without any operator."""

from __future__ import annotations

from typing import Final

from deploy.kube.client import ApiClient
from deploy.local.kubernetes.plan.cluster_plan import PAUSE_IMAGE
from deploy.local.kubernetes.plan.installation_plan import POSTGRES_IMAGE, POSTGRES_UID
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import STATEFUL_SETS
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_CONFIG, LABEL_ENABLED
from protocol.pod_database import database_of
from protocol.units import MilliCpu

_STATEFUL_SET: Final = ObjectName("default", "demo")
DEMO_POD: Final = database_of(ObjectName(_STATEFUL_SET.namespace, f"{_STATEFUL_SET.name}-0"))
_FLOOR: Final = {"cpu": "500m", "memory": "256Mi"}
_BOUNDS: Final = '{"max": {"cpu": 2, "mem": "1Gi"}}'
_INIT: Final = "initdb --pgdata=/data/db --auth=trust --username=postgres"
_START: Final = (
    # The pod's address is reachable only from this cluster's network namespaces.
    f"{_INIT} && echo 'host all all all trust' >>/data/db/pg_hba.conf && exec postgres -D /data/db"
    " -c listen_addresses='*' -c unix_socket_directories=/tmp -c shared_buffers=64MB"
)


def demo_stateful_set(policy: str) -> Json:
    """A StatefulSet with one postgres pod; ``policy`` is the agent's policy (pure)."""
    labels = {LABEL_ENABLED: "true", "app": _STATEFUL_SET.name}
    return {
        "apiVersion": STATEFUL_SETS.api_version,
        "kind": STATEFUL_SETS.kind,
        "metadata": {"name": _STATEFUL_SET.name, "namespace": _STATEFUL_SET.namespace},
        "spec": {
            "serviceName": _STATEFUL_SET.name,
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {ANNOTATION_BOUNDS: _BOUNDS, ANNOTATION_CONFIG: policy},
                },
                "spec": {
                    "terminationGracePeriodSeconds": 5,
                    "securityContext": {"runAsUser": POSTGRES_UID, "runAsGroup": POSTGRES_UID, "fsGroup": POSTGRES_UID},
                    "containers": [_postgres()],
                    "volumes": [{"name": "data", "emptyDir": {}}],
                },
            },
        },
    }


def _postgres() -> Json:
    return {
        "name": "postgres",
        "image": POSTGRES_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", _START],
        "resources": {"requests": _FLOOR, "limits": _FLOOR},
        "readinessProbe": {"exec": {"command": ["pg_isready", "--host=/tmp"]}, "periodSeconds": 1},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }


async def create_pod_database(client: ApiClient, policy: str) -> None:
    """Creates the StatefulSet. Raises ``ApiRefusedError``."""
    await client.create(STATEFUL_SETS, _STATEFUL_SET.namespace, demo_stateful_set(policy))


def idle_pod(name: ObjectName, node: str, cpu: MilliCpu) -> Json:
    """An idle pod that requests ``cpu`` on the node (pure)."""
    size = {"cpu": cpu.quantity(), "memory": "16Mi"}
    container = {"name": "idle", "image": PAUSE_IMAGE, "imagePullPolicy": "Never"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name.name, "namespace": name.namespace},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "containers": [{**container, "resources": {"requests": size, "limits": size}}],
        },
    }
