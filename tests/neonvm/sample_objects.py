"""VirtualMachines and pods for tests."""

from deploy.neonvm.controller.vm_facts import VmObservation
from deploy.neonvm.objects.pods import runner_pod
from deploy.neonvm.objects.vm_spec import machine_of
from deploy.neonvm.ports import GuestPhase, GuestState
from protocol.kubernetes.objects import Json, items
from protocol.names import FINALIZER
from protocol.units import Bytes, MilliCpu, Resources

GI = 1024**3


def virtual_machine(status: Json | None = None, policy: str = "Always", /, **metadata: object) -> Json:
    return {
        "apiVersion": "vm.neon.tech/v1",
        "kind": "VirtualMachine",
        "metadata": {
            "name": "db",
            "namespace": "default",
            "uid": "vm-uid",
            "labels": {"autoscaling.neon.tech/enabled": "true"},
            "finalizers": [FINALIZER],
            **metadata,
        },
        "spec": {
            "restartPolicy": policy,
            "guest": {
                "rootDisk": {"image": "postgres:15"},
                "cpus": {"min": "500m", "max": 4, "use": 2},
                "memorySlotSize": "1Gi",
                "memorySlots": {"min": 1, "max": 8, "use": 2},
            },
        },
        "status": status or {},
    }


def runner(phase: str = "Running", status: Json | None = None, *, leaving: bool = False) -> Json:
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {}
    return {
        "metadata": {"name": "db-x", "namespace": "default", "uid": "pod-uid", **metadata},
        "spec": {"nodeName": "n1", "containers": made_with(virtual_machine())},
        "status": {"phase": phase, "podIP": "10.0.0.9", **(status or {})},
    }


def made_with(vm: Json) -> list[Json]:
    """The containers of a pod that was made for ``vm``."""
    return items(runner_pod(vm, "db-x", WANTED), "spec", "containers")


def has(cpu: str, mem: str, phase: GuestPhase = GuestPhase.RUNNING) -> GuestState:
    return GuestState(phase, MilliCpu.parse(cpu), Bytes.parse(mem))


def facts(
    vm: Json, pod: Json | None = None, guest: GuestState | None = None, *, due: bool = True, refused: str = ""
) -> VmObservation:
    machine = machine_of(vm)
    return VmObservation(vm, machine, "", pod, guest, refused, "10.1.0.1", due, lambda: "db-new")


WANTED = Resources(MilliCpu(2000), Bytes(2 * GI))
