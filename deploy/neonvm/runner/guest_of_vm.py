"""The guest of a VM: what its object says of the machine, and what its pod has for it (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deploy.neonvm.ports import GuestSpec, PodNetwork
from protocol.messages import ObjectName
from protocol.virtual_machine import VirtualMachine


def guest_of_vm(  # noqa: PLR0913 - what a pod has for its guest
    vm: VirtualMachine,
    pod: ObjectName,
    network: PodNetwork,
    state_dir: Path,
    *,
    address: str,
    kernel_arguments: str,
    monitors: Sequence[Path] = (),
    console: Path | None = None,
) -> GuestSpec:
    """The guest of ``vm`` in ``pod``. The rest is as in ``GuestSpec``."""
    return GuestSpec(
        vm=vm.name,
        pod=pod,
        # Bounds are fixed for the guest's life; the uses are only what it starts with.
        cpu_max=vm.bounds.max.cpu,
        cpu_use=vm.use.cpu,
        mem_min=vm.bounds.min.mem,
        mem_max=vm.bounds.max.mem,
        mem_use=vm.use.mem,
        address=address,
        network=network,
        state_dir=state_dir,
        kernel_arguments=kernel_arguments,
        monitors=monitors,
        console=console,
    )
