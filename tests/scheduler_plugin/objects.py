"""Objects of the Kubernetes API as tests need them, short."""

from __future__ import annotations

import base64
import json
from typing import Any

Obj = dict[str, Any]


def node(name: str, cpu: str = "10", mem: str = "40Gi", *, unschedulable: bool = False) -> Obj:
    spec: Obj = {"unschedulable": True} if unschedulable else {}
    return {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": {"cpu": cpu, "memory": mem}}}


def vm(name: str, cpu: str | int = 1, slots: int = 4, *, namespace: str = "default", uid: str = "") -> Obj:
    """A VirtualMachine with 1 to 8 vCPUs and 1 to 16 slots of 1Gi; runs in the pod ``NAME-pod``."""
    return {
        "apiVersion": "vm.neon.tech/v1",
        "kind": "VirtualMachine",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": uid or f"vm-{name}",
            "labels": {"autoscaling.neon.tech/enabled": "true"},
        },
        "spec": {
            "guest": {
                "cpus": {"min": "250m", "max": 8, "use": cpu},
                "memorySlots": {"min": 1, "max": 16, "use": slots},
                "memorySlotSize": "1Gi",
            },
            "extraNetwork": {"enable": True},
        },
        "status": {"podName": f"{name}-pod", "phase": "Running"},
    }


def vm_pod(name: str, node: str | None = None, *, namespace: str = "default", uid: str = "", vm_uid: str = "") -> Obj:
    """The pod of the VM of that name."""
    pod = plain_pod(f"{name}-pod", "100m", "128Mi", node, namespace=namespace, uid=uid or f"pod-{name}")
    pod["spec"]["containers"][0]["name"] = "neonvm-runner"
    pod["metadata"]["labels"] = {"vm.neon.tech/name": name}
    pod["metadata"]["ownerReferences"] = [owner_of(name, vm_uid or f"vm-{name}")]
    return pod


def owner_of(name: str, uid: str, kind: str = "VirtualMachine") -> Obj:
    """The reference to the VM or migration that controls a pod."""
    return {"apiVersion": "vm.neon.tech/v1", "kind": kind, "name": name, "uid": uid, "controller": True}


def plain_pod(
    name: str, cpu: str = "1", mem: str = "1Gi", node: str | None = None, *, namespace: str = "default", uid: str = ""
) -> Obj:
    spec: Obj = {
        "schedulerName": "autoscale-scheduler",
        "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu, "memory": mem}}}],
    }
    if node is not None:
        spec["nodeName"] = node
    return {
        "metadata": {"namespace": namespace, "name": name, "uid": uid or f"pod-{name}"},
        "spec": spec,
        "status": {"phase": "Pending"},
    }


def postgres_pod(
    name: str, cpu: str = "1", mem: str = "4Gi", node: str | None = None, *, most: str = '{"cpu": 8, "mem": "16Gi"}'
) -> Obj:
    """A pod whose postgres is resized in place, up to 8 CPUs and 16Gi, with an exporter of 100m and 64Mi."""
    size = {"cpu": cpu, "memory": mem}
    pod = plain_pod(name, "100m", "64Mi", node)
    pod["spec"]["schedulerName"] = "default-scheduler"
    pod["spec"]["containers"].append({"name": "postgres", "resources": {"requests": size, "limits": {"memory": mem}}})
    pod["metadata"]["labels"] = {"autoscaling.neon.tech/enabled": "true"}
    floor = '"min": {"cpu": "250m", "mem": "512Mi"}'
    pod["metadata"]["annotations"] = {"autoscaling.neon.tech/bounds": f'{{{floor}, "max": {most}}}'}
    pod["status"] = {
        "phase": "Running" if node else "Pending",
        "containerStatuses": [has(size)] if node else [],
    }
    return pod


def has(size: dict[str, str]) -> Obj:
    """The kubelet's report that postgres has ``size``."""
    state = {"state": {"running": {"startedAt": "now"}}, "containerID": "containerd://1"}
    return {"name": "postgres", "allocatedResources": size, "resources": {"requests": size}, **state}


def token_of(pod: Obj, *, node: str | None = None, audience: str = "autoscale-scheduler") -> Obj:
    """The status of a TokenReview for the agent in ``pod``."""
    namespace = pod["metadata"]["namespace"]
    extra = {
        "authentication.kubernetes.io/pod-name": [pod["metadata"]["name"]],
        "authentication.kubernetes.io/pod-uid": [pod["metadata"]["uid"]],
    }
    if node is not None:
        extra["authentication.kubernetes.io/node-name"] = [node]
    user = {"username": f"system:serviceaccount:{namespace}:agent", "extra": extra}
    return {"authenticated": True, "audiences": [audience], "user": user}


def token_text(label: str, **claims: object) -> str:
    """A text with the shape of an agent's token. ``label`` makes it unique, and ``claims`` replace its own."""
    body = {
        "aud": ["autoscale-scheduler"],
        "exp": 4102444800,
        "iss": "https://kubernetes.default.svc",
        "jti": label,
        "kubernetes.io": {"namespace": "default", "pod": {"name": "p", "uid": "u"}},
        "sub": "system:serviceaccount:default:agent",
        **claims,
    }
    header = {"alg": "RS256", "kid": "k"}
    return ".".join(map(_segment, (json.dumps(header).encode(), json.dumps(body).encode(), b"s" * 256)))


def label_of(token: str) -> str:
    """The label of such a text; empty for any other."""
    parts = token.split(".")
    return str(json.loads(base64.urlsafe_b64decode(parts[1] + "==="))["jti"]) if len(parts) == 3 else ""


def _segment(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
