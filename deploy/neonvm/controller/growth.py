"""Growth of a guest: its VM's status covers its size at every instant, so that its room stays reserved.

A growth is in the status before it begins, in ``growingTo``, and until it has ended, even if the VM's spec has been
lowered since. That write is bound to the version of the VM with the larger size, so a stale cache grows no guest.
"""

from __future__ import annotations

from typing import Final

from deploy.neonvm.controller.vm_facts import VmPlan
from deploy.neonvm.runner.resizer import Resizer
from protocol.kubernetes.objects import Json, text
from protocol.units import ZERO, Resources
from protocol.virtual_machine import VirtualMachine

VERSIONED: Final = frozenset({"podName", "phase", "sleep", "cpus", "memorySize", "growingTo"})
"""Fields of a VM's status that are written only to the version that they were derived from: a late write must not undo
a newer one.
"""


def set_target(guest: Resizer | None, vm_plan: VmPlan, machine: VirtualMachine | None) -> None:
    """Hold the guest, or resize it to a size that the status of ``machine`` already covers."""
    if guest is None:
        return
    if machine is not None:
        guest.inherit(machine.growing_to)
    if vm_plan.hold:
        # Before the status is written: its readers rely on no resize starting after that.
        guest.hold()
    if vm_plan.desired is not None and not grows(guest, vm_plan):
        guest.resize_to(vm_plan.desired)


def grows(guest: Resizer, vm_plan: VmPlan) -> bool:
    """Return True if the guest must not be resized to the desired size before that is in the status."""
    return vm_plan.desired is not None and not vm_plan.desired.within(guest.reported)


def with_growth(vm_plan: VmPlan, guest: Resizer | None, machine: VirtualMachine | None) -> Json:
    """The status of the plan, with the size that the guest may reach if that is more than it has."""
    status = vm_plan.status
    cpus, memory = text(status, "cpus"), text(status, "memorySize")
    # The growth in an unreadable object is unknown. A guest that arrives by migration has not been resized here.
    if guest is None or machine is None or not cpus or "podName" in status:
        return status
    largest = guest.largest.at_least(vm_plan.desired or ZERO)
    sizes: Json = {"cpus": largest.cpu.quantity(), "memorySize": largest.mem.quantity()}
    return {**status, "growingTo": None if largest.within(Resources.parse(cpus, memory)) else sizes}
