"""Arguments of a runner pod, in the form of NeonVM's controller, and the guest that they describe (pure).

The spec and the status of the VM are arguments, as JSON that is compressed and written in base64. The pod's environment
adds the names: our controller gives the VM's and the pod's, NeonVM's only the pod's.
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
from protocol.kubernetes.objects import Json, flag, items, text, whole
from protocol.messages import ObjectName
from protocol.names import RUNNER_AUTHORITIES, RUNNER_IGNORES
from protocol.virtual_machine import InvalidObjectError, VirtualMachine
from protocol.vm_arguments import ArgumentsError, decode_dump

_DEFAULT_GRACE: Final = 30
_KERNEL: Final = "/vm/kernel/vmlinuz"  # in NeonVM's runner image


@dataclass(frozen=True, slots=True)
class RunnerArguments:
    """``receives``: another pod's guest is sent here. ``grace`` is in seconds, and the pod is killed after it.
    ``authorities``, in PEM, are those whose clients the pod's ports let in. None from NeonVM's controller: the ports
    are as open then as those of its own runner.
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

    @property
    def grace(self) -> int:
        """Seconds that the pod has to end."""
        # Kubernetes' own default for pods.
        return whole(self.spec, "terminationGracePeriodSeconds") or _DEFAULT_GRACE

    @property
    def as_object(self) -> Json:
        """The VM as far as it is known here."""
        name = {"namespace": self.vm.namespace, "name": self.vm.name}
        return {"metadata": name, "spec": self.spec, "status": self.status}

    @property
    def address(self) -> str:
        """The VM's address on the flat network; empty if it is not on it."""
        enabled = flag(self.spec, "extraNetwork", "enable")
        return text(self.status, "extraNetIP") if enabled else ""


def parse_arguments(given: Sequence[str], environment: Mapping[str, str]) -> RunnerArguments:
    """Reads the command line. Raises ``ArgumentsError``, and ``SystemExit`` for one that is no command line."""
    flags = _parser().parse_args(given)
    spec, status = decode_dump(flags.vmspec), decode_dump(flags.vmstatus) if flags.vmstatus else {}
    pod = environment.get("K8S_POD_NAME", "")
    if not pod:
        raise ArgumentsError(texts.NO_POD_NAME)
    # NeonVM's controller passes neither the namespace nor the VM's name: the pod's is the VM's with a random end.
    namespace = environment.get("VM_NAMESPACE", "default")
    # The VM's own words replace the controller's.
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
    )


def _parser() -> argparse.ArgumentParser:
    """The flags of NeonVM's runner; those that say how its own QEMU is started are taken and not used."""
    parser = argparse.ArgumentParser(
        prog="neonvm-runner", description="Runs the guest of one VirtualMachine in its pod."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    parser.add_argument("-vmspec", required=True, metavar="DUMP", help="the VM's spec: JSON, gzip, base64")
    parser.add_argument("-vmstatus", default="", metavar="DUMP", help="the VM's status, written alike")
    parser.add_argument("-kernelpath", dest="kernel", default=_KERNEL, help="the guest's kernel (default: %(default)s)")
    parser.add_argument("-appendKernelCmdline", dest="append", default="", help="words for the kernel command line")
    # NeonVM's controller passes them to every runner, so refusing them would stop the pod.
    for ignored in ("-qemu-disk-cache-settings", "-memhp-auto-movable-ratio", "-cpu-scaling-mode"):
        parser.add_argument(ignored, help=argparse.SUPPRESS)
    for ignored in ("-skip-cgroup-management", "-use-virtio-console"):
        parser.add_argument(ignored, action="store_true", help=argparse.SUPPRESS)
    return parser


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
    # The link is a network inside QEMU: it needs no privilege, and keeps the guest away from the runner's own ports.
    flat = () if tap is None else (f"fd:{tap}",)
    network = PodNetwork(
        address=told.address,
        enter=(),
        guest_host="127.0.0.1",
        api_host="",
        attachments=(*flat, f"ports:{_forwards(told.spec)}"),
        mtu=mtu,
    )
    return replace(
        guest_of_vm(machine, told.pod, network, images),
        address=told.address if tap is not None else "",
        kernel_arguments=told.kernel_arguments,
        ignores=told.ignores,
        monitors=tuple(run / f"monitor-{number}.sock" for number in range(MONITORS)),
        console=run / "console",
    )


def _forwards(spec: Json) -> str:
    """Forwards from the pod's ports to the guest; the runner's own ports are not the guest's."""
    reserved = {*runner_ports(spec), whole(spec, "qmpManual"), MIGRATION_PORT, GUEST_DAEMON_PORT, THAW_PORT}
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
    for_the_pod = [f"127.0.0.1:{GUEST_DAEMON_PORT}={DAEMON_PORT}", f"127.0.0.1:{THAW_PORT}={THAW_PORT}"]
    # The guest's monitor is for an agent in the pod alone, unless the VM names that port: then it is open to all who
    # reach the pod.
    if MONITOR_PORT not in {*wanted, *reserved}:
        for_the_pod.append(f"127.0.0.1:{MONITOR_PORT}={MONITOR_PORT}")
    return ",".join([*forwards, *for_the_pod])


def guest_of_vm(vm: VirtualMachine, pod: ObjectName, network: PodNetwork, state_dir: Path) -> GuestSpec:
    """The guest of ``vm`` in ``pod``, without an address."""
    return GuestSpec(
        vm=vm.name,
        pod=pod,
        # Bounds are fixed for the guest's life; the uses are only what it starts with.
        cpu_max=vm.bounds.max.cpu,
        cpu_use=vm.use.cpu,
        mem_min=vm.bounds.min.mem,
        mem_max=vm.bounds.max.mem,
        mem_use=vm.use.mem,
        address="",
        network=network,
        state_dir=state_dir,
    )
