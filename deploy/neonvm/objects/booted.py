"""The machine that a guest was booted with, by its pod's arguments, and the bounds that the pod's limits set it (pure).

No later edit of the VM changes the arguments. Beyond the limits the kubelet kills QEMU, or slows it down. They come
from ``spec.podResources``, from a LimitRange, or from a webhook; the pod as it is stored says them all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import msgspec

from deploy.neonvm.objects.pods import runner_of
from deploy.neonvm.objects.vm_spec import machine_of, own_ports
from deploy.neonvm.texts import controller as texts
from deploy.neonvm.texts import runner as runner_texts
from protocol.kubernetes.managed_fields import ManagedFields, resized_by
from protocol.kubernetes.objects import Json, child, text, texts_at
from protocol.names import SCHEDULER_NAME
from protocol.running_machine import RunningMachine
from protocol.units import Bytes, MilliCpu, QuantityError, Resources
from protocol.virtual_machine import InvalidObjectError, VirtualMachine
from protocol.vm_arguments import SPEC_FLAG, ArgumentsError, decode_dump, value_of

_CPU_MODE: Final = "-cpu-scaling-mode"
_REMEMBERED: Final = 1024
_LONGEST_REMEMBERED: Final = 4096
"""Characters of arguments that are read only once: people may make a pod with megabytes of them."""


@dataclass(frozen=True, slots=True)
class Booted:
    """``use`` is the size at boot. ``plugs_cpus``: a runner of NeonVM's leaves its CPUs to QEMU. The ports are the
    runner's and its QEMU's.
    """

    machine: RunningMachine
    use: Resources
    plugs_cpus: bool
    runner_port: int
    qmp_port: int


def booted(pod: Json) -> Booted | None:
    """The machine that the guest of ``pod`` was booted with; None if the pod does not record it."""
    words = _words(pod)
    dump, cpu_mode = value_of(words, SPEC_FLAG), value_of(words, _CPU_MODE)
    if len(dump) > _LONGEST_REMEMBERED:
        # Past the cache, which would otherwise fill the memory.
        return _booted.__wrapped__(dump, cpu_mode)
    return _booted(dump, cpu_mode)


def booted_spec(pod: Json) -> Json:
    """The VM's spec with which ``pod`` was made. Raises ``ArgumentsError``."""
    dump = value_of(_words(pod), SPEC_FLAG)
    if not dump:
        raise ArgumentsError(runner_texts.NOTHING_TO_RUN.format(flag=SPEC_FLAG))
    return decode_dump(dump)


@lru_cache(_REMEMBERED)
def _booted(dump: str, cpu_mode: str) -> Booted | None:
    try:
        spec = decode_dump(dump)
        # The arguments hold the spec alone; the machine does not depend on the name.
        vm = machine_of({"metadata": {"namespace": "", "name": ""}, "spec": spec})
    except (ArgumentsError, InvalidObjectError):
        return None
    return Booted(machine_for(vm), vm.use, (cpu_mode or text(spec, "cpuScalingMode")) == "QmpScaling", *own_ports(spec))


def machine_for(vm: VirtualMachine) -> RunningMachine:
    """The machine that is booted for ``vm``."""
    return RunningMachine(vm.bounds.max.cpu, vm.bounds.min.mem, vm.bounds.max.mem)


def _words(pod: Json) -> list[str]:
    runner = runner_of(pod)
    # NeonVM's controller writes the arguments after the command of its runner, ours as ``args``.
    return [*texts_at(runner, "command"), *texts_at(runner, "args")]


QEMU_OWN: Final = Bytes.parse("256Mi")
"""Memory that QEMU and the runner need beside the guest's own."""


def within_limits(machine: RunningMachine, pod: Json, slot: Bytes) -> RunningMachine:
    """``machine`` as far as the limits of ``pod`` let it grow, its memory in whole slots above what it boots with. The
    guest has in any case what it boots with: a limit below that kills it, and ``limits_say`` reports it.
    """
    cpu, mem = _limit(pod, "cpu"), _limit(pod, "memory")
    if cpu is not None:
        machine = replace(machine, cpu_max=min(machine.cpu_max, MilliCpu.parse(cpu)))
    if mem is not None:
        # Memory is plugged in whole slots, so a limit in between is rounded down.
        left = Bytes.parse(mem).minus_or_zero(QEMU_OWN).minus_or_zero(machine.mem_min).down_to(slot)
        machine = replace(machine, mem_max=min(machine.mem_max, machine.mem_min + left))
    return machine


def limits_say(machine: RunningMachine, pod: Json, slot: Bytes) -> str:
    """The limits of ``pod`` that keep its guest from growing to what ``machine`` can take; empty if none."""
    usable, problems = within_limits(machine, pod, slot), list[str]()
    if usable.cpu_max < machine.cpu_max:
        problems.append(texts.CPU_LIMITED.format(limit=_limit(pod, "cpu"), most=machine.cpu_max))
    mem = _limit(pod, "memory")
    if mem is not None and Bytes.parse(mem) < machine.mem_min + QEMU_OWN:
        problems.append(texts.MEMORY_TOO_LOW.format(limit=mem, least=machine.mem_min, qemu=QEMU_OWN))
    elif usable.mem_max < machine.mem_max:
        most, reachable = machine.mem_max, usable.mem_max
        problems.append(texts.MEMORY_LIMITED.format(limit=mem, qemu=QEMU_OWN, usable=reachable, most=most))
    return "; ".join(problems)


def _limit(pod: Json, name: str) -> str | None:
    """A limit of the guest's container; None if there is none that can be read."""
    # The CPU limit that our scheduler writes follows the VM, so it bounds nothing.
    if name == "cpu" and "cpu" in resized_by(SCHEDULER_NAME, _managed(pod), "limits"):
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


def _managed(pod: Json) -> list[ManagedFields]:
    try:
        return msgspec.convert(child(pod, "metadata").get("managedFields") or [], list[ManagedFields])
    # Managed fields are written by clients; a broken one must not stop the controller.
    except (msgspec.ValidationError, RecursionError):
        return []
