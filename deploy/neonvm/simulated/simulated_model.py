"""A simulated guest: its kernel's counters under a demand and a size, as Linux would have them, the same as a page of
node_exporter, and what it says of the database that it does not have (pure).
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
    """The kernel's counters, in seconds since the guest's start; CPUs by number, offline ones pause."""

    busy: tuple[float, ...]
    idle: tuple[float, ...]
    load: tuple[float, float, float] = (0.0, 0.0, 0.0)
    cpu_waiting: float = 0.0
    mem_waiting: float = 0.0


@dataclass(frozen=True, slots=True)
class SimulatedKernel:
    """A simulated guest at one age. ``asked`` is the size that was ordered, ``size`` the one it has. ``pressed`` is a
    demand that replaces the load's until it is lifted. ``worked_at`` is the age at which it was last not idle.
    """

    load: Load
    asked: Resources
    size: Resources
    counters: Counters
    age: Seconds = Seconds(0.0)
    pressed: Demand | None = None
    worked_at: Seconds = Seconds(0.0)

    @classmethod
    def booted(cls, load: Load, size: Resources, most_cpus: int) -> SimulatedKernel:
        """A guest that starts now with ``size`` and may get up to ``most_cpus``."""
        return cls(load, size, size, Counters((0.0,) * most_cpus, (0.0,) * most_cpus))

    @property
    def demand(self) -> Demand:
        """The present demand."""
        return self.pressed if self.pressed is not None else self.load.at(self.age)

    @property
    def mem_used(self) -> Bytes:
        """The memory in use: the demand, at most all memory."""
        return min(self.demand.mem, self.size.mem)

    def resized(self, asked: Resources) -> SimulatedKernel:
        """The same guest told to have another size; memory in use stays as it is."""
        # Memory is given back only as far as it is not in use; the rest follows when the use falls.
        return replace(self, asked=asked, size=Resources(asked.cpu, max(asked.mem, self.mem_used)))

    def under(self, pressed: Demand | None) -> SimulatedKernel:
        """The same guest under another demand than its load's; None gives it back to its load."""
        return replace(self, pressed=pressed).resized(self.asked)

    def advanced(self, age: Seconds) -> SimulatedKernel:
        """The same guest at a later ``age``; exact, because demand only changes at steps."""
        kernel = self
        while kernel.age < age:
            change = None if kernel.pressed is not None else kernel.load.next_change(kernel.age)
            until = age if change is None else min(age, change)
            counters = _counted(kernel.counters, kernel.size, kernel.demand, until - kernel.age)
            worked_at = kernel.worked_at if kernel.demand.is_idle else Seconds(until)
            kernel = replace(kernel, counters=counters, age=Seconds(until), worked_at=worked_at)
            # Memory in use may have fallen with this step.
            kernel = kernel.resized(kernel.asked)
        return kernel

    def slept(self, age: Seconds) -> SimulatedKernel:
        """The same guest at a later ``age``, after a sleep in which it counted nothing."""
        return replace(self, age=age).resized(self.asked)

    @property
    def next_work(self) -> Seconds | None:
        """The first age from now on at which it is not idle; None if it is idle for ever."""
        if self.pressed is None:
            return self.load.next_work(self.age)
        return None if self.pressed.is_idle else self.age


def _counted(before: Counters, size: Resources, demand: Demand, span: float) -> Counters:
    cores, online = size.cpu.as_cores, size.cpu.whole_cpus
    # Busy time grows by the demand, but never by more than the guest has.
    share = min(demand.cpu, cores) / online if online else 0.0
    return Counters(
        busy=tuple(spent + (share * span if number < online else 0.0) for number, spent in enumerate(before.busy)),
        idle=tuple(rest + ((1 - share) * span if number < online else 0.0) for number, rest in enumerate(before.idle)),
        load=_decayed(before.load, demand.cpu, span),
        cpu_waiting=before.cpu_waiting + _waiting(demand.cpu, cores) * span,
        mem_waiting=before.mem_waiting + _waiting(demand.mem.value, size.mem.value) * span,
    )


def _waiting(wanted: float, have: float) -> float:
    """The share of time in which a task waits: the missing amount relative to the size, at most all."""
    if wanted <= have:
        return 0.0
    # PSI's `some`: all of the time if twice the size is wanted.
    return min(1.0, (wanted - have) / have) if have else 1.0


def _decayed(load: tuple[float, float, float], tasks: float, span: float) -> tuple[float, float, float]:
    one, five, fifteen = (
        # As Linux computes load averages, which follow the number of tasks exponentially.
        average * exp(-span / (60 * minutes)) + tasks * (1 - exp(-span / (60 * minutes)))
        for average, minutes in zip(load, _MINUTES, strict=True)
    )
    return one, five, fifteen


class SimulatedDatabase(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The answer of the daemon in a real guest to ``GET /database``."""

    standby: bool
    streaming: bool = False
    lag_seconds: float | None = 0.0
    sessions: int = 0
    oldest_transaction_seconds: float | None = None

    @classmethod
    def told(cls, kernel_arguments: str) -> SimulatedDatabase:
        """The database of a guest with these words on its kernel command line."""
        standby = any(word.startswith(f"{KERNEL_PRIMARY}=") for word in kernel_arguments.split())
        return cls(standby, streaming=standby)

    @property
    def awake(self) -> Sequence[str]:
        """Reasons that forbid sleep, as a real guest has them on its page."""
        reasons = {"standby": self.standby, "transaction": self.oldest_transaction_seconds is not None}
        return [reason for reason, holds in reasons.items() if holds]


_Family = tuple[str, str, str, dict[str, float]]
"""A metric's name, type, help and samples by label."""

_SYSTEM_SHARE: Final = 0.2
"""The part of busy time that is the kernel's, as under pgbench."""


def exposition(kernel: SimulatedKernel, boot_time: float, collectors: Sequence[str], awake: Sequence[str] = ()) -> str:
    """The page of the named ``collectors``, of all if none is named; ``boot_time`` is in seconds since 1970, ``awake``
    says why the guest must not sleep.

    Raises ``KeyError`` with the name of a collector that there is not.
    """
    families = {**_families(kernel, boot_time), "textfile": _texts(kernel, awake)}
    chosen = [family for name in collectors or families for family in families[name]]
    return "".join(
        f"# HELP {name} {what}\n# TYPE {name} {kind}\n"
        # `repr` keeps every digit: counters are subtracted from each other later.
        + "".join(f"{name}{labels} {value!r}\n" for labels, value in samples.items())
        for name, kind, what, samples in chosen
    )


def _families(kernel: SimulatedKernel, boot_time: float) -> dict[str, list[_Family]]:
    counters, total, free = kernel.counters, kernel.size.mem, kernel.size.mem - kernel.mem_used
    # Without a page cache, all that is not used is both free and available.
    memory = {"MemAvailable": free, "MemFree": free, "MemTotal": total}
    waited = {
        "cpu_waiting": counters.cpu_waiting,
        "io_stalled": 0.0,
        "io_waiting": 0.0,
        "memory_stalled": 0.0,
        "memory_waiting": counters.mem_waiting,
    }
    # Simulated programs read nothing from disk, so nothing is ever read again.
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
        # A simulated database does not say how long it has been quiet.
        "textfile": [],
        "time": [("node_time_seconds", "gauge", "System time in seconds since epoch (1970).", {"": now})],
        "vmstat": [
            (f"node_vmstat_{name}", "untyped", f"/proc/vmstat information field {name}.", {"": 0.0}) for name in read
        ],
    }


def _texts(kernel: SimulatedKernel, awake: Sequence[str]) -> list[_Family]:
    quiet = "autoscale_database_quiet_seconds", "gauge", "Seconds since a client last did something."
    bars = "autoscale_database_awake", "gauge", "1 for each reason that forbids sleep now."
    return [
        (*quiet, {"": kernel.age - kernel.worked_at}),
        (*bars, {f'{{reason="{reason}"}}': 1.0 for reason in awake}),
    ]


def _cpu_seconds(kernel: SimulatedKernel) -> dict[str, float]:
    samples: dict[str, float] = {}
    # Offline CPUs are missing, as in /proc/stat, and their counters go on later from where they were.
    for number in range(kernel.size.cpu.whole_cpus):
        busy, idle = kernel.counters.busy[number], kernel.counters.idle[number]
        unused = dict.fromkeys(("iowait", "irq", "nice", "softirq", "steal"), 0.0)
        parts = {"idle": idle, **unused, "system": busy * _SYSTEM_SHARE, "user": busy * (1 - _SYSTEM_SHARE)}
        samples |= {f'{{cpu="{number}",mode="{mode}"}}': seconds for mode, seconds in parts.items()}
    return samples
