"""Reads a VirtualMachine for the runtime, whose spec alone says what the next guest can be, and phases (pure)."""

from __future__ import annotations

from typing import Final

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


PENDING: Final = "Pending"
RUNNING: Final = "Running"
SCALING: Final = "Scaling"
PRE_MIGRATING: Final = "PreMigrating"
MIGRATING: Final = "Migrating"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
# A migration without a phase has not been admitted, and is not under way.
UNFINISHED: Final = frozenset({PENDING, RUNNING})
"""The phases of a migration that is under way."""
ENDED: Final = frozenset({SUCCEEDED, FAILED})


def vm_of(migration: Json) -> ObjectName:
    """The VM that the migration moves."""
    return ObjectName(name_of(migration).namespace, text(migration, "spec", "vmName"))


def is_under_way(migration: Json) -> bool:
    """Return True if the migration has begun and not ended."""
    return text(migration, "status", "phase") in UNFINISHED


def has_remains(migration: Json) -> bool:
    """Return True if the migration has failed and its target may be left over."""
    # The source of one that has succeeded has given its guest away: it blocks nothing while its node is silent.
    return text(migration, "status", "phase") == FAILED and is_held(migration)


def is_held(migration: Json) -> bool:
    """Return True if the migration still carries the runtime's finalizer."""
    # The finalizer is removed once the move has left nothing behind.
    return FINALIZER in finalizers_of(migration)
