"""The runner pod of a VirtualMachine (pure).

It repeats some labels and annotations of its VM, because NeonVM's own scheduler reads pods alone. Our own permits stay
on the VM: nobody reads them on the pod.
"""

from __future__ import annotations

import json
from typing import Final

from deploy.neonvm.objects.owners import owner_reference
from deploy.neonvm.texts.runner import MOVED_AWAY
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
"""The reason in the status of a pod whose guest has moved into another one."""

_COPIED_ANNOTATIONS: Final = (ANNOTATION_BOUNDS, ANNOTATION_CONFIG)
# As on pods of NeonVM's controller: tools find VM pods by it.
_APP: Final = {"app.kubernetes.io/name": "NeonVM"}
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
_GRACE_SECONDS: Final = 30


def usage_annotation(size: Resources) -> str:
    """The text of the usage annotation for a VM that has ``size``."""
    return json.dumps({"cpu": size.cpu.quantity(), "memory": size.mem.quantity()})


def pod_end(pod: Json) -> tuple[str, str]:
    """The reason and the story of a pod that has ended: its status has them, or the last words of its runner."""
    if text(pod, "status", "reason"):
        return text(pod, "status", "reason"), text(pod, "status", "message")
    runners = [status for status in items(pod, "status", "containerStatuses") if is_runner(status)]
    ends = [child(status, "state", "terminated") for status in runners]
    # An evicted pod has a reason of its own, returned above; a runner that ended leaves a termination message.
    last_words = next((text(end, "message") or text(end, "reason") for end in ends), "")
    story = last_words or text(pod, "status", "message")
    # The runner's last words are the only sign that the guest left in good order.
    return MOVED if story == MOVED_AWAY else "PodEnded", story


def is_runner(container: Json) -> bool:
    """Return True if a container, or the status of one, is that of the guest."""
    return text(container, "name") == RUNNER_CONTAINER


def runner_of(pod: Json) -> Json:
    """The container of the guest; empty if there is none."""
    return next((container for container in items(pod, "spec", "containers") if is_runner(container)), {})


def pod_labels(vm: JsonObject) -> dict[str, str]:
    """Labels of a new pod of ``vm``: the VM's own and its name.

    >>> pod_labels({"metadata": {"name": "db", "labels": {"tier": "a"}}})
    {'app.kubernetes.io/name': 'NeonVM', 'tier': 'a', 'vm.neon.tech/name': 'db'}
    """
    # A VM's own label wins: Services may select its pod by that.
    return {**_APP, **labels_of(vm), LABEL_VM_NAME: name_of(vm).name}


def runner_pod(vm: Json, pod_name: str, use: Resources) -> Json:
    """The pod that runs ``vm``."""
    vm_name = name_of(vm)
    spec = child(vm, "spec")
    labels: Json = {**pod_labels(vm)}
    # Only these: other annotations of a VM, such as kubectl's, mean nothing on a pod.
    annotations: Json = {key: value for key, value in annotations_of(vm).items() if key in _COPIED_ANNOTATIONS}
    annotations |= {ANNOTATION_USAGE: usage_annotation(use), _DEFAULT_CONTAINER: RUNNER_CONTAINER}
    annotations |= {key: value for key, value in repeated_annotations(vm).items() if value is not None}
    carried: Json = {key: spec[key] for key in ("nodeSelector", "affinity", "tolerations") if spec.get(key)}
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
            **carried,
            "schedulerName": text(vm, "spec", "schedulerName") or SCHEDULER_NAME,
            # The controller makes a new pod instead: a container that restarts would boot the guest unnoticed.
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
            {"name": text(port, "name") or "port", "containerPort": port.get("port")}
            for port in items(vm, "spec", "guest", "ports")
        ],
    }
    if resources := child(vm, "spec", "podResources"):
        runner["resources"] = resources
    return runner


def with_agent(vm: Json, pod: Json) -> Json:
    """``pod`` with the agent as a sidecar if ``vm`` lets itself be resized (S4.3): a ``PodForm``."""
    if labels_of(vm).get(LABEL_ENABLED) != "true":
        return pod
    agent: Json = {"name": AGENT, "image": AGENT, "ports": [{"name": "http", "containerPort": 9101}]}
    spec = child(pod, "spec")
    return {**pod, "spec": {**spec, "containers": [*items(spec, "containers"), agent]}}


def _arguments(vm: Json) -> list[str]:
    """Arguments of the runner: also the only record of the booted machine once the VM was edited (``booted``)."""
    # The address is all that a runner needs of the status; the rest changes too often for a record.
    status = {key: value for key, value in child(vm, "status").items() if key == "extraNetIP"}
    return ["-vmspec", encode_dump(child(vm, "spec")), "-vmstatus", encode_dump(status)]


def has_agent(pod: Json) -> bool:
    """Return True if the pod carries an agent of its own."""
    return any(text(container, "name") == AGENT for container in items(pod, "spec", "containers"))


_LABELS: Final = (LABEL_ENABLED, AUTO_MIGRATION, LABEL_ALWAYS_MIGRATE)
_ANNOTATIONS: Final = (ANNOTATION_SCALING_UNIT, ANNOTATION_REQUESTED, ANNOTATION_APPROVED)


def repeated_annotations(vm: Json) -> dict[str, str | None]:
    """The annotations that a VM's pod must have, by name; None for one that it must not have."""
    overcommit = child(vm, "spec", "overcommit")
    return {
        # NeonVM's scheduler writes an agent's request and its grant on the VM, and answers the agent once the pod has
        # the same.
        **{name: annotations_of(vm).get(name) for name in _ANNOTATIONS},
        # NeonVM's scheduler panics if a VM's pod lacks it.
        ANNOTATION_RESOURCES: _text(_sizes(child(vm, "spec", "guest"))),
        ANNOTATION_OVERCOMMIT: _text(overcommit) if overcommit else None,
    }


def to_repeat(vm: Json, pod: Json) -> Json:
    """The metadata in which ``pod`` differs from its ``vm``, as a merge patch has it; empty if it does not."""
    wanted, labels, annotations = labels_of(vm), labels_of(pod), annotations_of(pod)
    differing = {
        # A None in a merge patch removes the key.
        "labels": {name: wanted.get(name) for name in _LABELS if labels.get(name) != wanted.get(name)},
        "annotations": {
            name: value for name, value in repeated_annotations(vm).items() if annotations.get(name) != value
        },
    }
    return {kind: values for kind, values in differing.items() if values}


def _sizes(guest: Json) -> Json:
    return {
        "cpus": _range(child(guest, "cpus")),
        "memorySlots": _range(child(guest, "memorySlots")),
        "memorySlotSize": guest.get("memorySlotSize", "1Gi"),
    }


def _range(found: Json) -> Json:
    least = found.get("min", 1)
    use = found.get("use", least)
    return {"min": least, "max": found.get("max", use), "use": use}


def _text(found: Json) -> str:
    # Compact, as Go's encoder writes it.
    return json.dumps(found, separators=(",", ":"))
