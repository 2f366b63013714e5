"""What a guest was booted with: the VM's spec in its pod's arguments, which no later edit of the VM changes (pure).

NeonVM's controller writes the arguments behind the command of its runner, ours as ``args``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from deploy.neonvm.objects.dump import ArgumentsError, decode_dump
from deploy.neonvm.objects.pods import is_runner
from deploy.neonvm.objects.vm_spec import machine_of
from protocol.kubernetes.objects import Json, items, text
from protocol.running_machine import RunningMachine
from protocol.virtual_machine import InvalidObjectError

_SPEC: Final = "-vmspec"
_CPU_MODE: Final = "-cpu-scaling-mode"
_REMEMBERED: Final = 1024


@dataclass(frozen=True, slots=True)
class Booted:
    """``spec`` is the VM's when the pod was made. ``plugs_cpus``: a runner of NeonVM's leaves its CPUs to QEMU."""

    spec: Json
    machine: RunningMachine
    plugs_cpus: bool


def booted(pod: Json) -> Booted | None:
    """What the guest of ``pod`` was booted with; None if the pod does not say it."""
    runner = next((each for each in items(pod, "spec", "containers") if is_runner(each)), {})
    words = [*_texts(runner.get("command")), *_texts(runner.get("args"))]
    dump = _value(words, _SPEC)
    return _booted(dump, _value(words, _CPU_MODE)) if dump else None


@lru_cache(_REMEMBERED)
def _booted(dump: str, cpu_mode: str) -> Booted | None:
    try:
        spec = decode_dump(dump)
        vm = machine_of({"metadata": {"namespace": "", "name": ""}, "spec": spec})
    except (ArgumentsError, InvalidObjectError):
        return None
    machine = RunningMachine(vm.bounds.max.cpu, vm.bounds.min.mem, vm.bounds.max.mem)
    return Booted(spec, machine, (cpu_mode or text(spec, "cpuScalingMode")) == "QmpScaling")


def _texts(words: object) -> list[str]:
    return [each for each in words if isinstance(each, str)] if isinstance(words, list) else []


def _value(words: Sequence[str], flag: str) -> str:
    """The word after ``flag``, or after its equals sign as Go's flags allow; empty if there is none."""
    for word, following in pairwise([*words, ""]):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return ""
