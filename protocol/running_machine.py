"""Limits of a running VM's machine, even if its spec has changed since (pure).

A machine starts with the maximum CPUs and the minimum and maximum memory of the spec at that time; only a restart
changes them. The controller reads them from the arguments of the VM's pod and reports them in ``status.machine``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from protocol.field_errors import shown
from protocol.kubernetes.objects import Json, JsonObject, child
from protocol.units import Bytes, MilliCpu, Resources
from protocol.wire.wire_quantities import cpu_from_wire, mem_from_wire

_FIELDS: Final = ("maxCpus", "minMemory", "maxMemory")


@dataclass(frozen=True, slots=True)
class RunningMachine:
    """The limits of a machine. It boots with ``mem_min``, which cannot be unplugged."""

    cpu_max: MilliCpu
    mem_min: Bytes
    mem_max: Bytes

    @property
    def most(self) -> Resources:
        """The largest size that the machine supports."""
        return Resources(self.cpu_max, self.mem_max)

    def clip(self, size: Resources) -> Resources:
        """The nearest size that the machine supports.

        >>> machine = RunningMachine(MilliCpu.cores(4), Bytes.parse("1Gi"), Bytes.parse("4Gi"))
        >>> str(machine.clip(Resources.parse("8", "512Mi")))
        '4 cpu, 1Gi'
        """
        # Apply the minimum last: memory with which the machine booted cannot be unplugged.
        return Resources(min(size.cpu, self.cpu_max), max(self.mem_min, min(size.mem, self.mem_max)))

    def as_status(self) -> Json:
        """The value of ``status.machine``."""
        return {
            "maxCpus": self.cpu_max.quantity(),
            "minMemory": self.mem_min.quantity(),
            "maxMemory": self.mem_max.quantity(),
        }

    def __str__(self) -> str:
        return f"up to {self.cpu_max} CPU, {self.mem_min} to {self.mem_max}"


def read_machine(status: JsonObject) -> RunningMachine | None:
    """The machine in a VM's status; None if missing. Raises ``ValueError`` with the path of the field.

    >>> machine = RunningMachine(MilliCpu.cores(4), Bytes.parse("1Gi"), Bytes.parse("4Gi"))
    >>> read_machine({"machine": machine.as_status()}) == machine
    True
    """
    fields = child(status, "machine")
    return _machine(*(_quantity(fields, key) for key in _FIELDS)) if fields else None


def _quantity(fields: JsonObject, key: str) -> int | str:
    value = fields.get(key)
    # ``bool`` is an int in Python.
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"status.machine.{key}: expected a quantity, got {shown(value)}")
    return value


@lru_cache(1024)  # the VMs of a fleet have few different machines
def _machine(max_cpus: int | str, min_memory: int | str, max_memory: int | str) -> RunningMachine:
    machine = RunningMachine(
        cpu_from_wire("status.machine.maxCpus", max_cpus),
        mem_from_wire("status.machine.minMemory", min_memory),
        mem_from_wire("status.machine.maxMemory", max_memory),
    )
    # With a zero maximum or an inverted range, ``clip`` would return impossible sizes.
    if not (machine.cpu_max and machine.mem_max and machine.mem_min <= machine.mem_max):
        raise ValueError(f"status.machine: expected maxCpus > 0 and minMemory <= maxMemory > 0, got {machine}")
    return machine
