"""Fake nodes, VirtualMachines and their pods (pure).

The nodes are large and have no kubelet, so pods that are bound to them stay Pending.
"""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.objects import Json, child
from protocol.names import (
    ANNOTATION_PERMIT,
    ANNOTATION_PERMIT_WRITER,
    LABEL_ENABLED,
    LABEL_VM_NAME,
    RUNNER_CONTAINER,
    SCHEDULER_NAME,
    VM_GROUP,
    VM_KIND,
    VM_VERSION,
)

NAMESPACE: Final = "bench"
SIZES: Final = (1, 2, 3, 4)
"""VM sizes, in compute units of half a vCPU and 128 MiB."""

_SLOTS: Final = 8
_UNIT_MEM: Final = 128
_ALLOCATABLE: Final = {"cpu": "64", "memory": "64Gi", "pods": "250", "ephemeral-storage": "100Gi"}


def node_name(number: int) -> str:
    """Name of node ``number`` (>= 0)."""
    return f"node-{number:05}"


def vm_name(number: int) -> str:
    """Name of VM ``number`` (>= 0) and of its pod."""
    return f"vm-{number:05}"


def node(number: int) -> Json:
    """A Ready node in one of three zones."""
    name = node_name(number)
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    ready = {"type": "Ready", "status": "True", "reason": "Fake", "message": "no kubelet runs here"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": _ALLOCATABLE, "allocatable": _ALLOCATABLE, "conditions": [ready]},
    }


def virtual_machine(number: int) -> Json:
    """A VM of one to four compute units, with a maximum of eight."""
    use = SIZES[number % len(SIZES)]
    guest = {
        "cpus": {"min": "500m", "use": f"{use * 500}m", "max": f"{_SLOTS * 500}m"},
        "memorySlots": {"min": 1, "use": use, "max": _SLOTS},
        "memorySlotSize": f"{_UNIT_MEM}Mi",
        "rootDisk": {"image": "localhost/postgres-vm:fake"},
        "ports": [{"name": "postgres", "port": 5432}],
    }
    return {
        "apiVersion": f"{VM_GROUP}/{VM_VERSION}",
        "kind": VM_KIND,
        "metadata": {"name": vm_name(number), "namespace": NAMESPACE, "labels": {LABEL_ENABLED: "true"}},
        "spec": {"schedulerName": SCHEDULER_NAME, "guest": guest},
    }


def pod(number: int, vm_uid: str, on: str = "") -> Json:
    """A VM's pod, pending or bound to node ``on``."""
    name, use = vm_name(number), SIZES[number % len(SIZES)]
    owner = {"apiVersion": f"{VM_GROUP}/{VM_VERSION}", "kind": VM_KIND, "name": name, "uid": vm_uid, "controller": True}
    requests = {"cpu": f"{use * 500}m", "memory": f"{use * _UNIT_MEM}Mi"}
    runner = {"name": RUNNER_CONTAINER, "image": "localhost/runner:fake", "resources": {"requests": requests}}
    # No grace period, because there is no kubelet.
    spec: Json = {"schedulerName": SCHEDULER_NAME, "containers": [runner], "terminationGracePeriodSeconds": 0}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {LABEL_VM_NAME: name},
            "ownerReferences": [owner],
        },
        "spec": spec | ({"nodeName": on} if on else {}),
    }


_AT: Final = "2026-01-01T00:00:00Z"
_CREATED: Final[Json] = {"creationTimestamp": _AT, "generation": 3}
_DEFAULTED: Final[Json] = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default",
    "serviceAccount": "default",
    "securityContext": {},
    "priority": 0,
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
    "tolerations": [
        {"key": f"node.kubernetes.io/{fault}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for fault in ("not-ready", "unreachable")
    ],
    "volumes": [
        {
            "name": "kube-api-access-fake0",
            "projected": {
                "defaultMode": 420,
                "sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                ],
            },
        }
    ],
}
"""Defaults that the API server adds to every pod's spec."""

_CONDITIONS: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def as_listed(number: int, fake: Json, **more: object) -> Json:
    """``fake`` as the API server lists it: with UID, resourceVersion and managedFields."""
    fields: Json = {f"f:{part}": {f"f:{key}": {} for key in child(fake, part)} for part in ("metadata", "spec")}
    entry = {"manager": "fake", "operation": "Update", "time": _AT, "fieldsType": "FieldsV1", "fieldsV1": fields}
    own = {"uid": f"{fake['kind']}-{number}", "resourceVersion": str(1_000_000 + number), "managedFields": [entry]}
    return {**fake, **more, "metadata": {**child(fake, "metadata"), **_CREATED, **own}}


def running_pod(number: int, node: str) -> Json:
    """A VM's running pod on ``node``, as the API server lists it."""
    fake, use = pod(number, f"{VM_KIND}-{number}", node), SIZES[number % len(SIZES)]
    requests = {"cpu": f"{use * 500}m", "memory": f"{use * _UNIT_MEM}Mi"}
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    runner = {"name": RUNNER_CONTAINER, "ready": True, "restartCount": 0, "state": {"running": {"startedAt": _AT}}}
    status = {
        "phase": "Running",
        "qosClass": "Burstable",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": _AT,
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": _AT} for kind in _CONDITIONS],
        "containerStatuses": [{**runner, "allocatedResources": requests, "resources": {"requests": requests}}],
    }
    return as_listed(number, {**fake, "spec": {**child(fake, "spec"), **_DEFAULTED}}, status=status)


def running_vm(number: int, node: str) -> Json:
    """A running VM with a permit on ``node``, as the API server lists it."""
    fake, use = virtual_machine(number), SIZES[number % len(SIZES)]
    has = (f"{use * 500}m", f"{use * _UNIT_MEM}Mi")
    permit = {ANNOTATION_PERMIT: f'{{"vCPUs":"{has[0]}","mem":"{has[1]}"}}', ANNOTATION_PERMIT_WRITER: "fake/1"}
    status = {
        "phase": "Running",
        "podName": vm_name(number),
        "node": node,
        "cpus": has[0],
        "memorySize": has[1],
        "extraNetIP": "10.100.0.1",
        "conditions": [{"type": "Available", "status": "True", "reason": "Created", "lastTransitionTime": _AT}],
    }
    return as_listed(number, {**fake, "metadata": {**child(fake, "metadata"), "annotations": permit}}, status=status)
