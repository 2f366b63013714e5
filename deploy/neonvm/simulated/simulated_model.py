"""Model of a guest: Linux' counters under a demand and a size, node_exporter's page of them, and the database status
(pure).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Final

import msgspec

from deploy.neonvm.simulated.simulated_load import Demand, Load
from protocol.names import KERNEL_PRIMARY
from protocol.units import Bytes, Resources, Seconds

_MINUTES: Final = (1, 5, 15)


@dataclass(frozen=True, slots=True)
class Counters:
    """The kernel's counters, in seconds since boot. ``busy`` and ``idle`` are per CPU; offline CPUs do not count."""

    busy: tuple[float, ...]
    idle: tuple[float, ...]
    load: tuple[float, float, float] = (0.0, 0.0, 0.0)
    cpu_waiting: float = 0.0
    mem_waiting: float = 0.0


@dataclass(frozen=True, slots=True)
class SimulatedKernel:
    """A guest at one age.

    ``requested`` is the requested size, ``size`` the actual one. ``override`` replaces the load's demand if set.
    ``worked_at`` is the age at which the guest was last not idle.
    """

    load: Load
    requested: Resources
    size: Resources
    counters: Counters
    age: Seconds = Seconds(0.0)
    override: Demand | None = None
    worked_at: Seconds = Seconds(0.0)

    @classmethod
    def booted(cls, load: Load, size: Resources, most_cpus: int) -> SimulatedKernel:
        """A guest that has just booted with ``size`` and at most ``most_cpus`` CPUs."""
        return cls(load, size, size, Counters((0.0,) * most_cpus, (0.0,) * most_cpus))

    @property
    def demand(self) -> Demand:
        """The current demand."""
        return self.override if self.override is not None else self.load.at(self.age)

    @property
    def mem_used(self) -> Bytes:
        """Memory in use: the demand, at most the size."""
        return min(self.demand.mem, self.size.mem)

    def resized(self, requested: Resources) -> SimulatedKernel:
        """The guest after a resize request."""
        # Memory in use cannot be unplugged until it is freed.
        return replace(self, requested=requested, size=Resources(requested.cpu, max(requested.mem, self.mem_used)))

    def under(self, override: Demand | None) -> SimulatedKernel:
        """The guest with ``override`` instead of its load's demand; None removes the override."""
        return replace(self, override=override).resized(self.requested)

    def advanced(self, age: Seconds) -> SimulatedKernel:
        """The guest at a later ``age``; exact, because demand only changes at steps."""
        kernel = self
        while kernel.age < age:
            change = None if kernel.override is not None else kernel.load.next_change(kernel.age)
            until = age if change is None else min(age, change)
            counters = _advance_counters(kernel.counters, kernel.size, kernel.demand, until - kernel.age)
            worked_at = kernel.worked_at if kernel.demand.is_idle else Seconds(until)
            kernel = replace(kernel, counters=counters, age=Seconds(until), worked_at=worked_at)
            # Memory may have been freed with this step.
            kernel = kernel.resized(kernel.requested)
        return kernel

    def after_sleep(self, age: Seconds) -> SimulatedKernel:
        """The guest at a later ``age``, after a sleep in which its counters stood still."""
        return replace(self, age=age).resized(self.requested)

    @property
    def next_work(self) -> Seconds | None:
        """The first age from now on at which the guest is not idle; None if it stays idle."""
        if self.override is None:
            return self.load.next_work(self.age)
        return None if self.override.is_idle else self.age


def _advance_counters(before: Counters, size: Resources, demand: Demand, span: float) -> Counters:
    cores, online = size.cpu.as_cores, size.cpu.whole_cpus
    share = min(demand.cpu, cores) / online if online else 0.0
    return Counters(
        busy=tuple(spent + (share * span if number < online else 0.0) for number, spent in enumerate(before.busy)),
        idle=tuple(rest + ((1 - share) * span if number < online else 0.0) for number, rest in enumerate(before.idle)),
        load=_load_averages(before.load, demand.cpu, span),
        cpu_waiting=before.cpu_waiting + _stalled_share(demand.cpu, cores) * span,
        mem_waiting=before.mem_waiting + _stalled_share(demand.mem.value, size.mem.value) * span,
    )


def _stalled_share(demand: float, size: float) -> float:
    """Share of time with PSI ``some``: the missing amount relative to the size, at most 1."""
    if demand <= size:
        return 0.0
    return min(1.0, (demand - size) / size) if size else 1.0


def _load_averages(load: tuple[float, float, float], tasks: float, span: float) -> tuple[float, float, float]:
    one, five, fifteen = (
        # Exponential moving averages, as in Linux.
        average * exp(-span / (60 * minutes)) + tasks * (1 - exp(-span / (60 * minutes)))
        for average, minutes in zip(load, _MINUTES, strict=True)
    )
    return one, five, fifteen


class SimulatedDatabase(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Database status, as the daemon in a real guest returns it from ``GET /database``."""

    standby: bool
    streaming: bool = False
    lag_seconds: float | None = 0.0
    sessions: int = 0
    oldest_transaction_seconds: float | None = None

    @classmethod
    def from_kernel_arguments(cls, kernel_arguments: str) -> SimulatedDatabase:
        """The database of a guest with this kernel command line: a standby if it names a primary."""
        standby = any(word.startswith(f"{KERNEL_PRIMARY}=") for word in kernel_arguments.split())
        return cls(standby, streaming=standby)

    @property
    def awake(self) -> Sequence[str]:
        """Reasons that forbid sleep, as on a real guest's page."""
        reasons = {"standby": self.standby, "transaction": self.oldest_transaction_seconds is not None}
        return [reason for reason, holds in reasons.items() if holds]


_Family = tuple[str, str, str, dict[str, float]]
"""A metric family: name, type, help, and samples by labels."""

_SYSTEM_SHARE: Final = 0.2
"""Share of system time in busy time, as under pgbench."""


def exposition(kernel: SimulatedKernel, boot_time: float, collectors: Sequence[str], awake: Sequence[str] = ()) -> str:
    """node_exporter's page with the named ``collectors``, or all if none is named.

    ``boot_time`` is Unix time, ``awake`` the reasons that forbid sleep. Raises ``KeyError`` for an unknown collector.
    """
    families = {**_families(kernel, boot_time), "textfile": _textfile(kernel, awake)}
    chosen = [family for name in collectors or families for family in families[name]]
    return "".join(
        f"# HELP {name} {what}\n# TYPE {name} {kind}\n"
        # `repr` keeps every digit, for differences of counters.
        + "".join(f"{name}{labels} {value!r}\n" for labels, value in samples.items())
        for name, kind, what, samples in chosen
    )


def _families(kernel: SimulatedKernel, boot_time: float) -> dict[str, list[_Family]]:
    counters, total, free = kernel.counters, kernel.size.mem, kernel.size.mem - kernel.mem_used
    # No page cache: unused memory is both free and available.
    memory = {"MemAvailable": free, "MemFree": free, "MemTotal": total}
    waited = {
        "cpu_waiting": counters.cpu_waiting,
        "io_stalled": 0.0,
        "io_waiting": 0.0,
        "memory_stalled": 0.0,
        "memory_waiting": counters.mem_waiting,
    }
    # No disk reads, so no refaults.
    read = ("pgpgin", "pgpgout", "workingset_refault_anon", "workingset_refault_file")
    now = boot_time + kernel.age
    return {
        "cpu": [("node_cpu_seconds_total", "counter", "Seconds the CPUs spent in each mode.", _cpu_seconds(kernel))],
        "loadavg": [
            (f"node_load{minutes}", "gauge", f"{minutes}m load average.", {"": load})
            for minutes, load in zip(_MINUTES, counters.load, strict=True)
        ],
        "meminfo": [
            (f"node_memory_{name}_bytes", "gauge", f"Memory information field {name}_bytes.", {"": float(amount.value)})
            for name, amount in memory.items()
        ],
        "pressure": [
            (
                f"node_pressure_{name}_seconds_total",
                "counter",
                f"Time in seconds that tasks were {name.replace('_', ' ')}.",
                {"": seconds},
            )
            for name, seconds in waited.items()
        ],
        "stat": [
            ("node_boot_time_seconds", "gauge", "Node boot time, in unixtime.", {"": boot_time}),
            ("node_procs_running", "gauge", "Number of tasks that could run.", {"": kernel.demand.cpu}),
        ],
        "textfile": [],
        "time": [("node_time_seconds", "gauge", "System time in seconds since epoch (1970).", {"": now})],
        "vmstat": [
            (f"node_vmstat_{name}", "untyped", f"/proc/vmstat information field {name}.", {"": 0.0}) for name in read
        ],
    }


def _textfile(kernel: SimulatedKernel, awake: Sequence[str]) -> list[_Family]:
    quiet = "autoscale_database_quiet_seconds", "gauge", "Seconds since a client last did something."
    reasons = "autoscale_database_awake", "gauge", "1 for each reason that forbids sleep now."
    return [
        (*quiet, {"": kernel.age - kernel.worked_at}),
        (*reasons, {f'{{reason="{reason}"}}': 1.0 for reason in awake}),
    ]


def _cpu_seconds(kernel: SimulatedKernel) -> dict[str, float]:
    samples: dict[str, float] = {}
    # Offline CPUs are missing, as in /proc/stat.
    for number in range(kernel.size.cpu.whole_cpus):
        busy, idle = kernel.counters.busy[number], kernel.counters.idle[number]
        unused = dict.fromkeys(("iowait", "irq", "nice", "softirq", "steal"), 0.0)
        parts = {"idle": idle, **unused, "system": busy * _SYSTEM_SHARE, "user": busy * (1 - _SYSTEM_SHARE)}
        samples |= {f'{{cpu="{number}",mode="{mode}"}}': seconds for mode, seconds in parts.items()}
    return samples
