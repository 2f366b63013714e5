"""Pods with a postgres that opted in, as the API has them."""

from __future__ import annotations

from typing import Any

from protocol.names import ANNOTATION_BOUNDS, LABEL_ENABLED

BOUNDS = '{"max": {"cpu": 4, "mem": "8Gi"}, "min": {"cpu": "500m", "mem": "512Mi"}}'


def pod_database(
    name: str = "pg-1",
    namespace: str = "default",
    node: str = "n1",
    bounds: str = BOUNDS,
    memory: str = "1Gi",
    **status: object,
) -> dict[str, Any]:
    """A pod that runs on ``node`` with 1 vCPU and ``memory``."""
    size = {"requests": {"cpu": "1", "memory": memory}, "limits": {"memory": memory}}
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    container = {"name": "postgres", "state": running, "containerID": "containerd://c1", "resources": size}
    annotations = {ANNOTATION_BOUNDS: bounds} if bounds else {}
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": f"uid-of-pod-{name}",
            "resourceVersion": "1",
            "labels": {LABEL_ENABLED: "true"},
            "annotations": annotations,
        },
        "spec": {"nodeName": node, "containers": [{"name": "postgres", "resources": size}]},
        "status": {"phase": "Running", "podIP": "10.0.0.7", "containerStatuses": [container], **status},
    }
