"""How the runtime reads a VirtualMachine: its spec alone says what the guest can be (pure).

The annotation with narrower bounds for autoscaling does not change the hardware, so it is left out here.
"""

from __future__ import annotations

from protocol.kubernetes.objects import Json, annotations_of, child, text
from protocol.names import ANNOTATION_BOUNDS
from protocol.virtual_machine import VirtualMachine, parse_virtual_machine

FINALIZER = "vm.neon.tech/finalizer"


def machine_of(vm: Json) -> VirtualMachine:
    """The machine that ``vm`` describes. Raises ``InvalidObjectError`` with the path of the field."""
    kept = {key: value for key, value in annotations_of(vm).items() if key != ANNOTATION_BOUNDS}
    return parse_virtual_machine({**vm, "metadata": {**child(vm, "metadata"), "annotations": kept}})


def kernel_arguments(vm: Json) -> str:
    """What the VM's spec adds to its guest's kernel command line."""
    return text(vm, "spec", "guest", "appendKernelCmdline")


def restarts(vm: Json, pod_phase: str) -> bool:
    """Whether a VM whose pod ended in ``pod_phase`` is started again."""
    policy = text(vm, "spec", "restartPolicy") or "Always"
    return policy == "Always" or (policy == "OnFailure" and pod_phase == "Failed")
