"""Arguments of a runner pod, in the format of NeonVM's controller, and the guest that they describe (pure).

The VM's spec and status are passed as base64-encoded, compressed JSON. The environment contains the names of the VM and
the pod; NeonVM's own controller sets only the pod's.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from deploy.neonvm.addressing import (
    DAEMON_PORT,
    GUEST_DAEMON_PORT,
    METRICS_PORT,
    MIGRATION_PORT,
    MONITOR_PORT,
    THAW_PORT,
)
from deploy.neonvm.objects.vm_spec import machine_of, runner_ports
from deploy.neonvm.ports import GuestSpec, PodNetwork
from deploy.neonvm.texts import runner as texts
from protocol import VERSION
from protocol.kubernetes.objects import Json, flag, integer, items, text
from protocol.messages import ObjectName
from protocol.names import RUNNER_AUTHORITIES, RUNNER_IGNORES, RUNNER_STORAGE
from protocol.units import Bytes
from protocol.virtual_machine import InvalidObjectError, VirtualMachine
from protocol.vm_arguments import ArgumentsError, decode_dump

_DEFAULT_GRACE: Final = 30
_KERNEL: Final = "/vm/kernel/vmlinuz"  # in NeonVM's runner image


@dataclass(frozen=True, slots=True)
class RunnerArguments:
    """Arguments and environment of a runner pod. ``receives``: the pod is the target of a migration. ``authorities``
    are the CAs (PEM) of the clients that the pod accepts; None from NeonVM's controller, and then the ports are not
    authenticated, like the ports of NeonVM's own runner.
    """

    vm: ObjectName
    pod: ObjectName
    spec: Json
    status: Json
    receives: bool
    kernel: str
    kernel_arguments: str
    authorities: str | None = None
    ignores: str = ""
    storage_limit: Bytes = Bytes(0)

    @property
    def grace(self) -> int:
        """The pod's termination grace period in seconds."""
        # The default is Kubernetes' own.
        return integer(self.spec, "terminationGracePeriodSeconds") or _DEFAULT_GRACE

    @property
    def as_object(self) -> Json:
        """The VM as an object, with the fields that are known here."""
        name = {"namespace": self.vm.namespace, "name": self.vm.name}
        return {"metadata": name, "spec": self.spec, "status": self.status}

    @property
    def address(self) -> str:
        """The VM's address on the flat network; empty if it is not on it."""
        enabled = flag(self.spec, "extraNetwork", "enable")
        return text(self.status, "extraNetIP") if enabled else ""


def parse_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> RunnerArguments:
    """Parse the command line. Raises ``ArgumentsError``, and ``SystemExit`` for invalid flags."""
    flags = _parser().parse_args(arguments)
    spec, status = decode_dump(flags.vmspec), decode_dump(flags.vmstatus) if flags.vmstatus else {}
    pod = environment.get("K8S_POD_NAME", "")
    if not pod:
        raise ArgumentsError(texts.NO_POD_NAME)
    # NeonVM's controller passes neither the namespace nor the VM's name, which is the pod's without its random suffix.
    namespace = environment.get("VM_NAMESPACE", "default")
    # The VM's kernel arguments replace the controller's.
    kernel_arguments = text(spec, "guest", "appendKernelCmdline") or flags.append
    return RunnerArguments(
        vm=ObjectName(namespace, environment.get("VM_NAME") or pod.rpartition("-")[0] or pod),
        pod=ObjectName(namespace, pod),
        spec=spec,
        status=status,
        receives=environment.get("RECEIVE_MIGRATION") == "true",
        kernel=flags.kernel,
        kernel_arguments=kernel_arguments,
        authorities=environment.get(RUNNER_AUTHORITIES),
        ignores=environment.get(RUNNER_IGNORES, ""),
        # NeonVM's controller does not set it.
        storage_limit=Bytes.parse(environment.get(RUNNER_STORAGE) or 0),
    )


def _parser() -> argparse.ArgumentParser:
    """The flags of NeonVM's runner. Those that configure its QEMU are accepted and ignored."""
    parser = argparse.ArgumentParser(
        prog="neonvm-runner", description="Runs the guest of one VirtualMachine in its pod."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    parser.add_argument("-vmspec", required=True, metavar="DUMP", help="the VM's spec: JSON, gzip, base64")
    parser.add_argument("-vmstatus", default="", metavar="DUMP", help="the VM's status, in the same format")
    parser.add_argument("-kernelpath", dest="kernel", default=_KERNEL, help="the guest's kernel (default: %(default)s)")
    parser.add_argument("-appendKernelCmdline", dest="append", default="", help="additions to the kernel command line")
    # NeonVM's controller passes these flags to every runner, so rejecting them would fail the pod.
    for ignored in ("-qemu-disk-cache-settings", "-memhp-auto-movable-ratio", "-cpu-scaling-mode"):
        parser.add_argument(ignored, help=argparse.SUPPRESS)
    for ignored in ("-skip-cgroup-management", "-use-virtio-console"):
        parser.add_argument(ignored, action="store_true", help=argparse.SUPPRESS)
    return parser


MONITORS: Final = 4
"""Number of clients that can be connected to QEMU at the same time."""


def guest_spec(arguments: RunnerArguments, images: Path, run: Path, tap: int | None, mtu: int) -> GuestSpec:
    """The guest that the arguments describe. ``tap`` is the descriptor of its tap on the flat network, None if it is
    not on it. Raises ``ArgumentsError``.
    """
    try:
        machine = machine_of(arguments.as_object)
    except InvalidObjectError as error:
        raise ArgumentsError(str(error)) from error
    # The flat network comes before the private link: they are eth0 and eth1 in the guest. The link is a user-mode
    # network of QEMU, which needs no privileges, and from which the guest cannot reach the runner's own ports.
    flat = () if tap is None else (f"fd:{tap}",)
    network = PodNetwork(
        address=arguments.address,
        enter=(),
        guest_host="127.0.0.1",
        api_host="",
        attachments=(*flat, f"ports:{_forwards(arguments.spec)}"),
        mtu=mtu,
    )
    return replace(
        guest_of_vm(machine, arguments.pod, network, images),
        address=arguments.address if tap is not None else "",
        kernel_arguments=arguments.kernel_arguments,
        ignores=arguments.ignores,
        storage_limit=arguments.storage_limit,
        monitors=tuple(run / f"monitor-{number}.sock" for number in range(MONITORS)),
        console=run / "console",
    )


def _forwards(spec: Json) -> str:
    """Port forwards from the pod to the guest. Raises ``ArgumentsError`` if the VM uses a reserved port."""
    reserved = {*runner_ports(spec), integer(spec, "qmpManual"), MIGRATION_PORT, GUEST_DAEMON_PORT, THAW_PORT}
    ports = [METRICS_PORT]
    for entry in items(spec, "guest", "ports"):
        port = integer(entry, "port")
        if port in reserved:
            raise ArgumentsError(texts.PORT_RESERVED.format(port=port))
        # TCP is the API's default; other protocols are not forwarded.
        if text(entry, "protocol") in {"", "TCP"}:
            ports.append(port)
    # The VM may list a port twice, or the metrics port; QEMU rejects a duplicate forward.
    forwards = [f"0.0.0.0:{port}={port}" for port in dict.fromkeys(ports)]
    for_the_pod = [f"127.0.0.1:{GUEST_DAEMON_PORT}={DAEMON_PORT}", f"127.0.0.1:{THAW_PORT}={THAW_PORT}"]
    # The guest's monitor is forwarded only inside the pod, for its agent, unless the VM lists that port.
    if MONITOR_PORT not in {*ports, *reserved}:
        for_the_pod.append(f"127.0.0.1:{MONITOR_PORT}={MONITOR_PORT}")
    return ",".join([*forwards, *for_the_pod])


def guest_of_vm(vm: VirtualMachine, pod: ObjectName, network: PodNetwork, state_dir: Path) -> GuestSpec:
    """The guest of ``vm`` in ``pod``, without an address."""
    return GuestSpec(
        vm=vm.name,
        pod=pod,
        # The bounds are fixed for the guest's lifetime; the other sizes are only initial.
        cpu_max=vm.bounds.max.cpu,
        cpu_use=vm.use.cpu,
        mem_min=vm.bounds.min.mem,
        mem_max=vm.bounds.max.mem,
        mem_use=vm.use.mem,
        address="",
        network=network,
        state_dir=state_dir,
    )
