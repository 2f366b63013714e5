"""Pods as NeonVM's controller (v0.49.1) and ours make them, and the questions that the API server asks about them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from deploy.neonvm.objects.pod_form import RunnerForm
from deploy.neonvm.objects.pods import runner_pod
from protocol.kubernetes.objects import Json, child
from tests.neonvm.sample_objects import WANTED, virtual_machine


def original(*ports: int, **changes: Any) -> dict[str, Any]:
    """A runner pod of NeonVM's controller, as far as it matters here, for a VM that names ``ports``.

    ``changes`` are labels by their last part.
    """
    labels = {
        "app.kubernetes.io/name": "NeonVM",
        "vm.neon.tech/name": "db",
        "vm.neon.tech/runner-version": "1",
        "autoscaling.neon.tech/enabled": "true",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "db-x2k", "namespace": "default", "labels": {**labels, **changes}},
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "initContainers": [{"name": "init", "image": "example.invalid/disk"}],
            "containers": [
                {
                    "name": "neonvm-runner",
                    "image": "example.invalid/runner",
                    "command": ["runner", "-vmspec", "…", "-vmstatus", "…"],
                    "ports": [
                        {"name": "qmp", "containerPort": 20183},
                        {"name": "runner", "containerPort": 25183},
                        *({"name": f"port-{port}", "containerPort": port} for port in ports),
                    ],
                }
            ],
            "volumes": [{"name": "virtualmachineimages", "emptyDir": {}}],
        },
    }


def ours(form: RunnerForm | None = None, *, ports: Sequence[int] = (9100,)) -> Json:
    """A runner pod of our controller for a VM that names ``ports``; without changes it adds no agent."""
    vm = virtual_machine()
    guest = {**child(vm, "spec", "guest"), "ports": [{"port": port} for port in ports]}
    vm = {**vm, "spec": {**child(vm, "spec"), "guest": guest}}
    return (form or RunnerForm("example.invalid/runner"))(vm, runner_pod(vm, "db-1", WANTED))


def review(pod: Any, **request: Any) -> bytes:
    """The API server's review of that new pod."""
    asked = {"uid": "u-1", "operation": "CREATE", "namespace": "default", "object": pod, **request}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}).encode()


def response(answer: bytes) -> dict[str, Any]:
    """Our response, with the patch decoded."""
    found: dict[str, Any] = json.loads(answer)["response"]
    if "patch" in found:
        found["patch"] = json.loads(base64.b64decode(found["patch"]))
    return found
