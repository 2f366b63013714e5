"""The guest of a runner pod: its machine, and how its ports are reached through the pod (pure).

The private link is a network inside QEMU: it needs no privilege, leads nowhere but into the guest, and so keeps the
guest away from the runner's own ports. Ports of the guest are reached at the pod's address, and at 127.0.0.1 in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.neonvm.addressing import (
    DAEMON_PORT,
    GUEST_DAEMON_PORT,
    METRICS_PORT,
    MIGRATION_PORT,
    MONITOR_PORT,
)
from deploy.neonvm.objects.vm_spec import machine_of, own_ports
from deploy.neonvm.ports import GuestSpec, PodNetwork
from deploy.neonvm.runner.runner_arguments import RunnerArguments
from deploy.neonvm.texts import runner as texts
from protocol.kubernetes.objects import Json, items, text, whole
from protocol.messages import ObjectName
from protocol.virtual_machine import InvalidObjectError, VirtualMachine
from protocol.vm_arguments import ArgumentsError

MONITORS: Final = 4
"""This many clients may talk to QEMU at once."""


def guest_spec(told: RunnerArguments, images: Path, run: Path, tap: int | None, mtu: int) -> GuestSpec:
    """The guest that ``told`` describes. ``tap`` is its inherited place on the flat network, None if it has none.

    Raises ``ArgumentsError``.
    """
    try:
        machine = machine_of(told.as_object)
    except InvalidObjectError as error:
        raise ArgumentsError(str(error)) from error
    # The flat interface comes before the private link: the guest knows them as eth0 and eth1.
    flat = () if tap is None else (f"fd:{tap}",)
    network = PodNetwork(
        address=told.address,
        enter=(),
        metrics_url=f"http://127.0.0.1:{METRICS_PORT}/metrics",
        api_host="",
        attachments=(*flat, f"ports:{_forwards(told.spec)}"),
        mtu=mtu,
    )
    return guest_of_vm(
        machine,
        told.pod,
        network,
        images,
        address=told.address if tap is not None else "",
        kernel_arguments=told.kernel_arguments,
        monitors=tuple(run / f"monitor-{number}.sock" for number in range(MONITORS)),
        console=run / "console",
    )


def _forwards(spec: Json) -> str:
    """Forwards from the pod's ports to the guest; the runner's own ports are not the guest's."""
    reserved = {*own_ports(spec), whole(spec, "qmpManual"), MIGRATION_PORT, GUEST_DAEMON_PORT}
    wanted = [METRICS_PORT]
    for entry in items(spec, "guest", "ports"):
        port = whole(entry, "port")
        if port in reserved:
            raise ArgumentsError(texts.PORT_RESERVED.format(port=port))
        # An empty protocol is TCP by the API's default; other ones are not forwarded.
        if text(entry, "protocol") in {"", "TCP"}:
            wanted.append(port)
    # The VM may name a port twice, or the metrics port; QEMU refuses a second forward of one port.
    forwards = [f"0.0.0.0:{port}={port}" for port in dict.fromkeys(wanted)]
    for_the_pod = [f"127.0.0.1:{GUEST_DAEMON_PORT}={DAEMON_PORT}"]
    # The guest's monitor is for an agent in the pod alone, unless the VM names that port: then it is open to all who
    # reach the pod.
    if MONITOR_PORT not in {*wanted, *reserved}:
        for_the_pod.append(f"127.0.0.1:{MONITOR_PORT}={MONITOR_PORT}")
    return ",".join([*forwards, *for_the_pod])


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
