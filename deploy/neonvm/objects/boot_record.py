"""The machine with which a guest was booted, read from its pod's arguments, and the pod's limits on its size (pure).

The arguments stay the same when the VM is edited. Limits come from ``spec.podResources``, a LimitRange or a webhook, so
they are read from the stored pod. Above them, QEMU is OOM-killed or throttled.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from deploy.neonvm.objects.pods import runner_of
from deploy.neonvm.objects.vm_spec import machine_of, runner_ports
from deploy.neonvm.texts import controller as texts
from deploy.neonvm.texts import runner as runner_texts
from protocol.kubernetes.managed_fields import ManagedFields, resized_by
from protocol.kubernetes.objects import Json, JsonObject, child, items, text, texts_at
from protocol.names import SCHEDULER_NAME
from protocol.running_machine import RunningMachine
from protocol.units import Bytes, MilliCpu, QuantityError, Resources
from protocol.virtual_machine import InvalidObjectError, VirtualMachine
from protocol.vm_arguments import SPEC_FLAG, ArgumentsError, decode_dump, value_of

_CPU_MODE: Final = "-cpu-scaling-mode"


@dataclass(frozen=True, slots=True)
class BootRecord:
    """``machine`` as booted, with the size ``use`` at boot. ``plugs_cpus``: NeonVM's own runner does not change the
    CPUs itself; they are hot-plugged in QEMU.
    """

    machine: RunningMachine
    use: Resources
    plugs_cpus: bool
    runner_port: int
    qmp_port: int


def boot_record(pod: Json) -> BootRecord | None:
    """The boot record in the arguments of ``pod``; None if they are missing or invalid."""
    try:
        spec = spec_at_boot(pod)
        # The arguments contain only the spec; the machine does not depend on the name.
        vm = machine_of({"metadata": {"namespace": "", "name": ""}, "spec": spec})
    except (ArgumentsError, InvalidObjectError):
        return None
    cpu_mode = value_of(_arguments(pod), _CPU_MODE) or text(spec, "cpuScalingMode")
    return BootRecord(machine_for(vm), vm.use, cpu_mode == "QmpScaling", *runner_ports(spec))


def spec_at_boot(pod: Json) -> Json:
    """The VM's spec from which ``pod`` was created. Raises ``ArgumentsError``."""
    dump = value_of(_arguments(pod), SPEC_FLAG)
    if not dump:
        raise ArgumentsError(runner_texts.NOTHING_TO_RUN.format(flag=SPEC_FLAG))
    return decode_dump(dump)


def machine_for(vm: VirtualMachine) -> RunningMachine:
    """The machine that a guest of ``vm`` gets when it boots."""
    return RunningMachine(vm.bounds.max.cpu, vm.bounds.min.mem, vm.bounds.max.mem)


def _arguments(pod: Json) -> list[str]:
    runner = runner_of(pod)
    # NeonVM's controller appends the arguments to the runner's command, ours writes them to ``args``.
    return [*texts_at(runner, "command"), *texts_at(runner, "args")]


QEMU_OVERHEAD: Final = Bytes.parse("256Mi")
"""Memory that QEMU and the runner need in addition to the guest's."""


def within_limits(machine: RunningMachine, pod: Json, slot: Bytes) -> RunningMachine:
    """``machine`` with its maximum reduced to the limits of ``pod``; memory above the boot size is a multiple of
    ``slot``. Never below the boot size: ``limit_problems`` reports a limit that is too low for that.
    """
    cpu, mem = _limit(pod, "cpu"), _limit(pod, "memory")
    if cpu is not None:
        machine = replace(machine, cpu_max=min(machine.cpu_max, MilliCpu.parse(cpu)))
    if mem is not None:
        # Memory is plugged in whole slots, so round the limit down.
        left = Bytes.parse(mem).minus_or_zero(QEMU_OVERHEAD).minus_or_zero(machine.mem_min).down_to(slot)
        machine = replace(machine, mem_max=min(machine.mem_max, machine.mem_min + left))
    return machine


def limit_problems(machine: RunningMachine, pod: Json, slot: Bytes) -> str:
    """The limits of ``pod`` that prevent its guest from reaching the maximum of ``machine``, for messages; empty if
    none.
    """
    usable, problems = within_limits(machine, pod, slot), list[str]()
    if usable.cpu_max < machine.cpu_max:
        problems.append(texts.CPU_LIMITED.format(limit=_limit(pod, "cpu"), most=machine.cpu_max))
    mem = _limit(pod, "memory")
    if mem is not None and Bytes.parse(mem) < machine.mem_min + QEMU_OVERHEAD:
        problems.append(texts.MEMORY_TOO_LOW.format(limit=mem, least=machine.mem_min, qemu=QEMU_OVERHEAD))
    elif usable.mem_max < machine.mem_max:
        most, reachable = machine.mem_max, usable.mem_max
        problems.append(texts.MEMORY_LIMITED.format(limit=mem, qemu=QEMU_OVERHEAD, usable=reachable, most=most))
    return "; ".join(problems)


def _limit(pod: Json, name: str) -> str | None:
    """A limit of the guest's container; None if it is missing, invalid or zero."""
    # Our scheduler adjusts its CPU limit to the VM's size, so that one does not limit the guest.
    if name == "cpu" and has_our_cpu_limit(pod):
        return None
    limit = child(runner_of(pod), "resources", "limits").get(name)
    try:
        # Webhooks also write limits as numbers; a bool would be read as 1.
        amount = None if limit is None or isinstance(limit, bool) else str(limit)
        # A limit of zero means "no limit" to the kubelet.
        is_positive = amount is not None and bool((MilliCpu if name == "cpu" else Bytes).parse(amount).value)
    except QuantityError:
        return None
    return amount if is_positive else None


def has_our_cpu_limit(pod: JsonObject) -> bool:
    """Return True if our scheduler has set the CPU limit of the guest's container."""
    # Clients write managed fields; an invalid one must not stop the controller.
    entries = list[ManagedFields]()
    for entry in items(pod, "metadata", "managedFields"):
        with suppress(msgspec.ValidationError, RecursionError):
            entries.append(msgspec.convert(entry, ManagedFields))
    return "cpu" in resized_by(SCHEDULER_NAME, entries, "limits")
