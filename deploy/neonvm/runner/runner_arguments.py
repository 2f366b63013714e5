"""Arguments of a runner pod: the VM it runs, in the form of NeonVM's controller (pure).

The spec and the status of the VM are arguments, as JSON that is compressed and written in base64. The pod's environment
adds the names: our controller gives the VM's and the pod's, NeonVM's only the pod's.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deploy.neonvm.texts import runner as texts
from protocol import VERSION
from protocol.kubernetes.objects import Json, flag, text, whole
from protocol.messages import ObjectName
from protocol.names import RUNNER_AUTHORITIES
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
