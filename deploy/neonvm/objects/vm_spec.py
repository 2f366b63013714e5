"""Reads fields of VirtualMachines and migrations, and defines their phases (pure)."""

from __future__ import annotations

from typing import Final

from deploy.neonvm.addressing import QMP_PORT, RUNNER_PORT
from protocol.kubernetes.objects import Json, annotations_of, child, controller_of, integer, labels_of, name_of, text
from protocol.kubernetes.resources import VM_GROUPS
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_BOUNDS, FINALIZER, LABEL_GROUP, PASSWORD_SUFFIX
from protocol.virtual_machine import VirtualMachine, parse_virtual_machine


def finalizers_of(source: Json) -> list[object]:
    """The finalizers of a VM or migration."""
    finalizers = child(source, "metadata").get("finalizers")
    return list(finalizers) if isinstance(finalizers, list) else []


def other_finalizers(source: Json) -> list[object]:
    """The finalizers of a VM or migration, without ours."""
    return [finalizer for finalizer in finalizers_of(source) if finalizer != FINALIZER]


def machine_of(vm: Json) -> VirtualMachine:
    """The machine that the spec of ``vm`` describes. Raises ``InvalidObjectError`` with the path of the field."""
    # Narrower autoscaling bounds do not change the hardware.
    remaining = {key: value for key, value in annotations_of(vm).items() if key != ANNOTATION_BOUNDS}
    # The machine of the current guest (``boot_record``) does not determine the next one.
    status = {key: value for key, value in child(vm, "status").items() if key != "machine"}
    return parse_virtual_machine(
        {**vm, "metadata": {**child(vm, "metadata"), "annotations": remaining}, "status": status}
    )


def kernel_arguments(vm: Json) -> str:
    """The arguments that the spec adds to the guest's kernel command line."""
    return text(vm, "spec", "guest", "appendKernelCmdline")


def password_secret(vm: Json) -> ObjectName:
    """The Secret with the database password: the Secret of the VM's group if it has one, otherwise its own."""
    # The name is fixed, because a user who may create VMs need not be allowed to read the namespace's Secrets. A label
    # alone proves nothing; Kubernetes deletes a VM whose owner does not exist.
    name, group = name_of(vm), labels_of(vm).get(LABEL_GROUP, "")
    owner = controller_of(vm)
    named = text(owner, "apiVersion").partition("/")[0], text(owner, "kind"), text(owner, "name")
    is_member = bool(group) and named == (VM_GROUPS.group, VM_GROUPS.kind, group)
    return ObjectName(name.namespace, f"{group if is_member else name.name}{PASSWORD_SUFFIX}")


def runner_ports(spec: Json) -> tuple[int, int]:
    """Ports of the runner's API and of QEMU's monitor."""
    return integer(spec, "runnerPort") or RUNNER_PORT, integer(spec, "qmp") or QMP_PORT


def restarts(vm: Json, pod_phase: str) -> bool:
    """Return True if the restart policy applies to a VM whose pod ended in ``pod_phase``."""
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
# A migration without a phase has not been admitted yet.
UNFINISHED: Final = frozenset({PENDING, RUNNING})
"""The phases of a migration that is under way."""
ENDED: Final = frozenset({SUCCEEDED, FAILED})


def vm_of(migration: Json) -> ObjectName:
    """The VM of the migration."""
    return ObjectName(name_of(migration).namespace, text(migration, "spec", "vmName"))


def is_under_way(migration: Json) -> bool:
    """Return True if the migration was admitted and has not ended."""
    return text(migration, "status", "phase") in UNFINISHED


def needs_cleanup(migration: Json) -> bool:
    """Return True if the migration has failed and its target pod may still exist: it has our finalizer until then."""
    # A successful migration's source no longer has the guest, so its cleanup blocks nothing.
    return text(migration, "status", "phase") == FAILED and FINALIZER in finalizers_of(migration)
