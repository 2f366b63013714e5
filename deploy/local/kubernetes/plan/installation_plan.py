"""Images and manifests of an installation of the autoscaler, and checks of its rollout (pure).

Manifests are applied as shipped, except for kube-scheduler's version and the delays before migrations.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.objects import Json, child, integer, is_terminating, items, labels_of, name_of, text
from protocol.names import LABEL_VM_NAME

REFERENCE: Final = "localhost:5001/{name}:dev"
"""Image references in the manifests."""

NAMESPACE: Final = "kube-system"
"""The namespace of all workloads."""

POSTGRES: Final = "postgresql"
"""Name of the image for postgres in pods; not one of our images."""

POSTGRES_IMAGE: Final = "localhost/postgresql:15"
POSTGRES_UID: Final = 26
"""CloudNativePG runs postgres as this user."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Names of images, the manifests that use them, and the names of the Deployments and DaemonSets in these."""

    images: Sequence[str]
    manifests: Sequence[str]
    workloads: Collection[str]


FOR_VMS: Final = Installation(
    images=(
        *("autoscale-scheduler", "autoscaler-agent", "neonvm-controller", "neonvm-devices", "neonvm-network"),
        *("neonvm-runner", "postgres-vm"),
    ),
    manifests=(
        # Before the controller, which reads the agent's container only at its start.
        "deploy/kubernetes/agent-sidecar.yaml",
        "deploy/kubernetes/neonvm-devices.yaml",
        "deploy/kubernetes/neonvm-network.yaml",
        "deploy/kubernetes/neonvm-controller.yaml",
        "deploy/scheduler-deploy.yaml",
        *(f"deploy/kubernetes/policies/{name}.yaml" for name in ("agents", "leases", "neonvm-controller", "scheduler")),
    ),
    workloads=frozenset({"autoscaling-scheduler", "neonvm-controller", "neonvm-devices", "neonvm-network"}),
)
FOR_PODS: Final = Installation(
    images=("autoscale-injector", "autoscale-scheduler", "autoscaler-agent", POSTGRES),
    manifests=(
        *(f"deploy/kubernetes/with-pods/{name}.yaml" for name in ("injector", "scheduler", "agent-daemonset")),
        "deploy/kubernetes/with-certificates/scheduler-leader.yaml",
        *(f"deploy/kubernetes/policies/{name}.yaml" for name in ("agents", "injector", "leases", "scheduler")),
    ),
    workloads=frozenset({"autoscaling-agent", "autoscaling-injector", "autoscaling-scheduler"}),
)
"""Only postgres in pods, without NeonVM: part of the chart with ``pods.enabled``."""

_KUBE_SCHEDULER: Final = "registry.k8s.io/kube-scheduler"
_PULLS: Final = frozenset({"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName"})
_NEVER_STARTS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_FINAL_RESTARTS: Final = 3
"""Restarts after which a crash-looping container counts as failed. Before, it may wait for a dependency."""


def kube_scheduler_image(version: str) -> str:
    """Image of kube-scheduler ``version``, such as ``v1.36.3``."""
    return f"{_KUBE_SCHEDULER}:{version}"


def with_kube_scheduler(manifest: str, version: str) -> str:
    """``manifest`` with kube-scheduler ``version``."""
    # kube-scheduler must not be newer than kube-apiserver.
    return re.sub(rf"{re.escape(_KUBE_SCHEDULER)}:v[0-9.]+", kube_scheduler_image(version), manifest)


def with_short_delays(manifest: str) -> str:
    """``manifest`` with a scheduler that migrates VMs after three seconds of pressure, for demonstrations."""
    return re.sub(r"(settle(?:Denied)?Seconds): \d+", r"\1: 3", manifest)


def not_rolled_out(workloads: Iterable[Json], installation: Installation = FOR_VMS) -> list[str]:
    """Names of the installation's workloads that are not rolled out or do not exist."""
    done = {name_of(workload).name for workload in workloads if _is_rolled_out(workload)}
    return sorted(set(installation.workloads) - done)


def _is_rolled_out(workload: Json) -> bool:
    status = child(workload, "status")
    # The other fields describe an older generation.
    if integer(status, "observedGeneration") < integer(workload, "metadata", "generation"):
        return False
    # A DaemonSet. Zero: its controller has not counted the nodes yet.
    if "desiredNumberScheduled" in status:
        return 0 < integer(status, "desiredNumberScheduled") <= integer(status, "numberAvailable")
    return 0 < integer(workload, "spec", "replicas") <= integer(status, "availableReplicas")


def startup_failure(pods: Iterable[Json]) -> str:
    """The reason why one of the pods can never start; empty if all can."""
    return next((reason for pod in pods if not is_terminating(pod) and (reason := _pod_failure(pod))), "")


def _pod_failure(pod: Json) -> str:
    name = name_of(pod).name
    for container in (*items(pod, "status", "initContainerStatuses"), *items(pod, "status", "containerStatuses")):
        container_name = f"container {text(container, 'name')} of pod {name}"
        waiting = child(container, "state", "waiting")
        reason = text(waiting, "reason")
        # There is no registry, so a pull cannot succeed later.
        if reason in _PULLS:
            return f"{container_name}: image {text(container, 'image')} is missing, and there is no registry: {reason}"
        if reason in _NEVER_STARTS:
            return f"{container_name} cannot start: {text(waiting, 'message') or reason}"
        if reason == "CrashLoopBackOff" and integer(container, "restartCount") >= _FINAL_RESTARTS:
            return (
                f"{container_name} restarted {integer(container, 'restartCount')} times: {last_exit_reason(container)}"
            )
    # Not VM pods: they also fail when their guest ends.
    if text(pod, "status", "phase") == "Failed" and LABEL_VM_NAME not in labels_of(pod):
        return f"pod {name} has failed: {text(pod, 'status', 'message') or text(pod, 'status', 'reason')}"
    return ""


def last_exit_reason(container: Json) -> str:
    """The reason why a container last ended: the last line of its termination message, or the reason and exit code."""
    ended = child(container, "lastState", "terminated")
    lines = text(ended, "message").strip().splitlines()
    return lines[-1] if lines else f"{text(ended, 'reason') or 'unknown'}, exit code {integer(ended, 'exitCode')}"
