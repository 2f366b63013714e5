"""Reads a VirtualMachine for the runtime: its spec alone says what the next guest can be (pure)."""

from __future__ import annotations

from deploy.neonvm.addressing import QMP_PORT, RUNNER_PORT
from protocol.kubernetes.objects import Json, annotations_of, child, labels_of, name_of, text, whole
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_BOUNDS, LABEL_GROUP, PASSWORD_SUFFIX
from protocol.virtual_machine import VirtualMachine, parse_virtual_machine

FINALIZER = "vm.neon.tech/finalizer"


def finalizers_of(source: Json) -> list[object]:
    """The finalizers of a VM or migration."""
    finalizers = child(source, "metadata").get("finalizers")
    return list(finalizers) if isinstance(finalizers, list) else []


def other_finalizers(source: Json) -> list[object]:
    """The same without the runtime's."""
    return [finalizer for finalizer in finalizers_of(source) if finalizer != FINALIZER]


def machine_of(vm: Json) -> VirtualMachine:
    """The machine that ``vm`` describes. Raises ``InvalidObjectError`` with the path of the field."""
    # Narrower bounds for autoscaling do not change the hardware.
    remaining = {key: value for key, value in annotations_of(vm).items() if key != ANNOTATION_BOUNDS}
    # What the present guest was booted with (``booted``) says nothing about the next one.
    status = {key: value for key, value in child(vm, "status").items() if key != "machine"}
    return parse_virtual_machine(
        {**vm, "metadata": {**child(vm, "metadata"), "annotations": remaining}, "status": status}
    )


def kernel_arguments(vm: Json) -> str:
    """The spec's additions to its guest's kernel command line."""
    return text(vm, "spec", "guest", "appendKernelCmdline")


def password_secret(vm: Json) -> ObjectName:
    """The Secret with the password of the VM's database: that of its group, or its own."""
    # The name cannot be chosen: whoever may make VMs must not thereby read any Secret of the namespace.
    name = name_of(vm)
    return ObjectName(name.namespace, f"{labels_of(vm).get(LABEL_GROUP) or name.name}{PASSWORD_SUFFIX}")


def own_ports(spec: Json) -> tuple[int, int]:
    """Ports of the runner's API and of QEMU's monitor."""
    return whole(spec, "runnerPort") or RUNNER_PORT, whole(spec, "qmp") or QMP_PORT


def restarts(vm: Json, pod_phase: str) -> bool:
    """Return True if a VM whose pod ended in ``pod_phase`` is started again."""
    # The API's default.
    policy = text(vm, "spec", "restartPolicy") or "Always"
    return policy == "Always" or (policy == "OnFailure" and pod_phase == "Failed")
