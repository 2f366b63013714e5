"""A VirtualMachine with all fields that are read, and changes of it."""

from __future__ import annotations

from copy import deepcopy

from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_PERMIT, LABEL_ENABLED
from protocol.units import Bytes

GI = Bytes(1024**3)
BOUNDS_AT = f"metadata.annotations[{ANNOTATION_BOUNDS}]"
WHOLE: dict[str, object] = {
    "apiVersion": "vm.neon.tech/v1",
    "kind": "VirtualMachine",
    "metadata": {
        "namespace": "default",
        "name": "pg",
        "uid": "u-1",
        "resourceVersion": "7",
        "generation": 3,
        "labels": {LABEL_ENABLED: "true", "app": "shop"},
        "annotations": {ANNOTATION_PERMIT: '{"vCPUs":"750m","mem":"3Gi"}'},
    },
    "spec": {
        "schedulerName": "autoscale-scheduler",
        "guest": {
            "cpus": {"min": "250m", "max": 4, "use": "500m"},
            "memorySlotSize": "512Mi",
            "memorySlots": {"min": 1, "max": 16, "use": 4},
            "rootDisk": {"image": "localhost:5001/pg:latest"},
        },
    },
    "status": {
        "phase": "Running",
        "podName": "pg-x7",
        "podIP": "10.0.0.7",
        "node": "n1",
        "cpus": "500m",
        "memorySize": "2Gi",
        "conditions": [],
    },
}


def with_value(path: str, value: object) -> dict[str, object]:
    """``WHOLE`` with the value at ``path`` replaced, or left out where ``value`` is ``...``."""
    changed = deepcopy(WHOLE)
    at: dict[str, object] = changed
    *parents, last = path.split("/")
    for key in parents:
        inner = at[key]
        assert isinstance(inner, dict)
        at = inner
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return changed


def annotated(name: str, text: str) -> dict[str, object]:
    return with_value("metadata/annotations", {name: text})
