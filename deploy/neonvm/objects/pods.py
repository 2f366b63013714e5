"""The runner pod of a VirtualMachine (pure).

Some labels and annotations of the VM are copied to its pod, because NeonVM's own scheduler reads only pods. Our own
permits are not copied, because nothing reads them on the pod.
"""

from __future__ import annotations

import json
from typing import Final

from deploy.neonvm.objects.owners import owner_reference
from deploy.neonvm.texts.runner import MIGRATED_AWAY
from protocol.kubernetes.objects import Json, JsonObject, annotations_of, child, items, labels_of, name_of, text
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.names import (
    ANNOTATION_APPROVED,
    ANNOTATION_BOUNDS,
    ANNOTATION_CONFIG,
    ANNOTATION_OVERCOMMIT,
    ANNOTATION_REQUESTED,
    ANNOTATION_RESOURCES,
    ANNOTATION_SCALING_UNIT,
    ANNOTATION_USAGE,
    AUTO_MIGRATION,
    LABEL_ALWAYS_MIGRATE,
    LABEL_ENABLED,
    LABEL_VM_NAME,
    RUNNER_CONTAINER,
    SCHEDULER_NAME,
)
from protocol.units import Resources
from protocol.vm_arguments import encode_dump

AGENT: Final = "autoscaler-agent"
MOVED: Final = "Migrated"
"""Reason for the end of a pod whose guest was migrated to another one."""

_INITIAL_ANNOTATIONS: Final = (ANNOTATION_BOUNDS, ANNOTATION_CONFIG)
# As on pods of NeonVM's controller: tools find VM pods by it.
_APP: Final = {"app.kubernetes.io/name": "NeonVM"}
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
_GRACE_SECONDS: Final = 30


def usage_annotation(size: Resources) -> str:
    """Value of the usage annotation of a pod whose guest has ``size``."""
    return json.dumps({"cpu": size.cpu.quantity(), "memory": size.mem.quantity()})


def pod_end(pod: Json) -> tuple[str, str]:
    """Reason and message for the end of a pod: from its status, or from its runner's termination message."""
    if text(pod, "status", "reason"):
        return text(pod, "status", "reason"), text(pod, "status", "message")
    runners = [status for status in items(pod, "status", "containerStatuses") if is_runner(status)]
    ends = [child(status, "state", "terminated") for status in runners]
    message = next((text(end, "message") or text(end, "reason") for end in ends), "") or text(pod, "status", "message")
    # Only the runner's termination message shows that the guest was migrated.
    return MOVED if message == MIGRATED_AWAY else "PodEnded", message


def is_runner(container: Json) -> bool:
    """Return True for the runner's container, or its status."""
    return text(container, "name") == RUNNER_CONTAINER


def runner_of(pod: Json) -> Json:
    """The runner's container; empty if there is none."""
    return next((container for container in items(pod, "spec", "containers") if is_runner(container)), {})


def pod_labels(vm: JsonObject) -> dict[str, str]:
    """Labels of a new pod of ``vm``: the VM's own and its name.

    >>> pod_labels({"metadata": {"name": "db", "labels": {"tier": "a"}}})
    {'app.kubernetes.io/name': 'NeonVM', 'tier': 'a', 'vm.neon.tech/name': 'db'}
    """
    # The VM's own labels take precedence: Services may select its pod by them.
    return {**_APP, **labels_of(vm), LABEL_VM_NAME: name_of(vm).name}


def runner_pod(vm: Json, pod_name: str, use: Resources) -> Json:
    """The plain pod for ``vm``, with the size ``use`` at boot."""
    vm_name = name_of(vm)
    spec = child(vm, "spec")
    labels: Json = {**pod_labels(vm)}
    # Other annotations of a VM, such as kubectl's, do not apply to its pod.
    annotations: Json = {key: value for key, value in annotations_of(vm).items() if key in _INITIAL_ANNOTATIONS}
    annotations |= {ANNOTATION_USAGE: usage_annotation(use), _DEFAULT_CONTAINER: RUNNER_CONTAINER}
    annotations |= {key: value for key, value in updated_annotations(vm).items() if value is not None}
    placement: Json = {key: spec[key] for key in ("nodeSelector", "affinity", "tolerations") if spec.get(key)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name,
            "namespace": vm_name.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(VIRTUAL_MACHINES, vm)],
        },
        "spec": {
            **placement,
            "schedulerName": text(vm, "spec", "schedulerName") or SCHEDULER_NAME,
            # The controller creates a new pod instead: a restarted container would boot the guest unnoticed.
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "containers": [_runner(vm)],
        },
    }


def _runner(vm: Json) -> Json:
    runner: Json = {
        "name": RUNNER_CONTAINER,
        "image": text(vm, "spec", "guest", "rootDisk", "image") or RUNNER_CONTAINER,
        "args": _arguments(vm),
        "ports": [
            # Names are optional, and unique within the pod.
            {"containerPort": port.get("port")} | {key: port[key] for key in ("name", "protocol") if port.get(key)}
            for port in items(vm, "spec", "guest", "ports")
        ],
    }
    if resources := child(vm, "spec", "podResources"):
        runner["resources"] = resources
    return runner


def with_agent(vm: Json, pod: Json) -> Json:
    """A ``PodForm`` that adds the agent as a container if autoscaling is enabled for ``vm`` (S4.3)."""
    if labels_of(vm).get(LABEL_ENABLED) != "true":
        return pod
    agent: Json = {"name": AGENT, "image": AGENT, "ports": [{"name": "http", "containerPort": 9101}]}
    spec = child(pod, "spec")
    return {**pod, "spec": {**spec, "containers": [*items(spec, "containers"), agent]}}


def _arguments(vm: Json) -> list[str]:
    """Arguments of the runner. They are also the record of the booted machine (``boot_record``)."""
    # The runner needs only the address; the rest of the status changes.
    status = {key: value for key, value in child(vm, "status").items() if key == "extraNetIP"}
    return ["-vmspec", encode_dump(child(vm, "spec")), "-vmstatus", encode_dump(status)]


def has_agent(pod: Json) -> bool:
    """Return True if the pod has an agent's container, as added by ``with_agent``."""
    return any(text(container, "name") == AGENT for container in items(pod, "spec", "containers"))


_UPDATED_LABELS: Final = (LABEL_ENABLED, AUTO_MIGRATION, LABEL_ALWAYS_MIGRATE)
_UPDATED_ANNOTATIONS: Final = (ANNOTATION_SCALING_UNIT, ANNOTATION_REQUESTED, ANNOTATION_APPROVED)


def updated_annotations(vm: Json) -> dict[str, str | None]:
    """Annotations of a VM's pod that are updated with the VM; None for those to be removed."""
    overcommit = child(vm, "spec", "overcommit")
    return {
        # NeonVM's scheduler writes an agent's request and the approval on the VM, and responds to the agent once the
        # pod has the same annotations.
        **{name: annotations_of(vm).get(name) for name in _UPDATED_ANNOTATIONS},
        # NeonVM's scheduler panics if a VM's pod lacks it.
        ANNOTATION_RESOURCES: _text(_sizes(child(vm, "spec", "guest"))),
        ANNOTATION_OVERCOMMIT: _text(overcommit) if overcommit else None,
    }


def metadata_patch(vm: Json, pod: Json) -> Json:
    """Merge patch for the metadata of ``pod`` that updates the copies of its VM's; empty if they are up to date."""
    desired, labels, annotations = labels_of(vm), labels_of(pod), annotations_of(pod)
    differing = {
        # None removes a key in a merge patch.
        "labels": {name: desired.get(name) for name in _UPDATED_LABELS if labels.get(name) != desired.get(name)},
        "annotations": {
            name: value for name, value in updated_annotations(vm).items() if annotations.get(name) != value
        },
    }
    return {kind: values for kind, values in differing.items() if values}


def _sizes(guest: Json) -> Json:
    return {
        "cpus": _range(child(guest, "cpus")),
        "memorySlots": _range(child(guest, "memorySlots")),
        "memorySlotSize": guest.get("memorySlotSize", "1Gi"),
    }


def _range(amounts: Json) -> Json:
    least = amounts.get("min", 1)
    use = amounts.get("use", least)
    return {"min": least, "max": amounts.get("max", use), "use": use}


def _text(value: Json) -> str:
    # Compact, like Go's encoder.
    return json.dumps(value, separators=(",", ":"))
