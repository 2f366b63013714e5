"""The machine that a guest was booted with, by its pod's arguments, which no later edit of the VM changes (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from deploy.neonvm.objects.pods import runner_of
from deploy.neonvm.objects.vm_spec import machine_of, own_ports
from deploy.neonvm.texts import runner as texts
from protocol.kubernetes.objects import Json, text
from protocol.running_machine import RunningMachine
from protocol.units import Resources
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
        raise ArgumentsError(texts.NOTHING_TO_RUN.format(flag=SPEC_FLAG))
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
    return [*_texts(runner.get("command")), *_texts(runner.get("args"))]


def _texts(words: object) -> list[str]:
    # The pod may come from anybody: nothing about its shape is certain.
    return [word for word in words if isinstance(word, str)] if isinstance(words, list) else []
