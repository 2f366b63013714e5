"""Parts of an installation of the autoscaler on a cluster, and the tests of whether it is done or has failed (pure).

The images are those of ``autoscale images build``, and people apply the same manifests, but for the version of
kube-scheduler and for how soon VMs move.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.objects import Json, child, is_leaving, items, labels_of, name_of, text, whole
from protocol.names import LABEL_VM_NAME

REFERENCE: Final = "localhost:5001/{name}:dev"
"""How the manifests name images."""

OWN_IMAGES: Final = (
    *("autoscale-scheduler", "autoscaler-agent", "neonvm-controller", "neonvm-devices", "neonvm-network"),
    *("neonvm-runner", "postgres-vm"),
)
MANIFESTS: Final = (
    # Before the controller, which reads the agents' part of a pod only when it starts.
    "deploy/kubernetes/agent-sidecar.yaml",
    "deploy/kubernetes/neonvm-devices.yaml",
    "deploy/kubernetes/neonvm-network.yaml",
    "deploy/kubernetes/neonvm-controller.yaml",
    "deploy/scheduler-deploy.yaml",
    *(f"deploy/kubernetes/policies/{name}.yaml" for name in ("agents", "leases", "neonvm-controller", "scheduler")),
)
NAMESPACE: Final = "kube-system"
WORKLOADS: Final = frozenset({"autoscaling-scheduler", "neonvm-controller", "neonvm-devices", "neonvm-network"})
"""The Deployments and DaemonSets of the manifests, all in ``NAMESPACE``."""

POSTGRES: Final = "postgresql"
"""The name of the image of a postgres in a pod, which is not one of ours."""

POSTGRES_IMAGE: Final = "localhost/postgresql:15"
POSTGRES_UID: Final = 26
"""The user that CloudNativePG starts postgres as."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Images by name, the manifests that use them, and the workloads that run afterwards."""

    images: Sequence[str]
    manifests: Sequence[str]
    workloads: Collection[str]


FOR_VMS: Final = Installation(OWN_IMAGES, MANIFESTS, WORKLOADS)
FOR_PODS: Final = Installation(
    images=("autoscale-injector", "autoscale-scheduler", "autoscaler-agent", POSTGRES),
    manifests=(
        *(f"deploy/kubernetes/with-pods/{name}.yaml" for name in ("injector", "scheduler", "agent-daemonset")),
        "deploy/kubernetes/with-certificates/scheduler-leader.yaml",
        *(f"deploy/kubernetes/policies/{name}.yaml" for name in ("agents", "injector", "leases", "scheduler")),
    ),
    workloads=frozenset({"autoscaling-agent", "autoscaling-injector", "autoscaling-scheduler"}),
)
"""The chart's part with ``pods.enabled`` that postgres in pods needs, without NeonVM."""

_KUBE_SCHEDULER: Final = "registry.k8s.io/kube-scheduler"
_PULLS: Final = frozenset({"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName"})
_NEVER_STARTS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_PATIENT: Final = 3
"""Restarts of a crash-looping container that count as final: what it needs may come up later than it does."""


def kube_scheduler_image(version: str) -> str:
    """The name of the image of that version of kube-scheduler, such as ``v1.36.3``."""
    return f"{_KUBE_SCHEDULER}:{version}"


def for_version(manifest: str, version: str) -> str:
    """The manifest with the kube-scheduler of that version."""
    # Kubernetes does not support a kube-scheduler that is newer than the API server.
    return re.sub(rf"{re.escape(_KUBE_SCHEDULER)}:v[0-9.]+", kube_scheduler_image(version), manifest)


def moving_soon(manifest: str) -> str:
    """The manifest with a scheduler that moves VMs within seconds."""
    # Whoever tries it on one machine watches a node fill up; a fleet lets most peaks pass.
    return re.sub(r"(settle(?:Denied)?Seconds): \d+", r"\1: 3", manifest)


def not_rolled_out(workloads: Iterable[Json], of: Installation = FOR_VMS) -> list[str]:
    """The names of those of our Deployments and DaemonSets that are not rolled out, or do not exist."""
    done = {name_of(workload).name for workload in workloads if _is_rolled_out(workload)}
    return sorted(set(of.workloads) - done)


def _is_rolled_out(workload: Json) -> bool:
    status = child(workload, "status")
    # Until the controller has seen the latest change, the other fields are about an older one.
    if whole(status, "observedGeneration") < whole(workload, "metadata", "generation"):
        return False
    # Only a DaemonSet has this field.
    if "desiredNumberScheduled" in status:
        # Zero desired pods mean that the controller has not counted the nodes yet.
        return 0 < whole(status, "desiredNumberScheduled") <= whole(status, "numberAvailable")
    return 0 < whole(workload, "spec", "replicas") <= whole(status, "availableReplicas")


def hopeless(pods: Iterable[Json]) -> str:
    """The reason why a pod can never start; empty if all can."""
    return next((reason for pod in pods if not is_leaving(pod) and (reason := _why(pod))), "")


def _why(pod: Json) -> str:
    name = name_of(pod).name
    for container in (*items(pod, "status", "initContainerStatuses"), *items(pod, "status", "containerStatuses")):
        of_pod = f"container {text(container, 'name')} of pod {name}"
        waiting = child(container, "state", "waiting")
        reason = text(waiting, "reason")
        # Without a registry no pull can succeed later.
        if reason in _PULLS:
            return f"{of_pod} has no image {text(container, 'image')}, and there is no registry: {reason}"
        if reason in _NEVER_STARTS:
            return f"{of_pod} cannot start: {text(waiting, 'message') or reason}"
        if reason == "CrashLoopBackOff" and whole(container, "restartCount") >= _PATIENT:
            return f"{of_pod} has ended {whole(container, 'restartCount')} times: {last_words(container)}"
    # Not for VMs: their pods also fail when the guest ends, which says nothing about the installation.
    if text(pod, "status", "phase") == "Failed" and LABEL_VM_NAME not in labels_of(pod):
        return f"pod {name} has failed: {text(pod, 'status', 'message') or text(pod, 'status', 'reason')}"
    return ""


def last_words(container: Json) -> str:
    """The reason why a container ended the last time, from its status."""
    ended = child(container, "lastState", "terminated")
    lines = text(ended, "message").strip().splitlines()
    # The last line of a program is usually the error that ended it.
    return lines[-1] if lines else f"{text(ended, 'reason') or 'unknown'}, exit code {whole(ended, 'exitCode')}"
