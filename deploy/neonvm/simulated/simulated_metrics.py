"""A simulated guest's counters in node_exporter's text format, by collector (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from deploy.neonvm.simulated.simulated_model import SimulatedKernel

_SYSTEM_SHARE: Final = 0.2
"""The part of busy time that is the kernel's, as under pgbench."""


def exposition(kernel: SimulatedKernel, boot_time: float, collectors: Sequence[str]) -> str:
    """The page of the named ``collectors``, of all if none is named; ``boot_time`` is in seconds since 1970. Raises
    ``KeyError`` with the name of a collector that there is not.
    """
    chosen = [_COLLECTORS[name] for name in collectors or _COLLECTORS]
    return "".join(line + "\n" for collector in chosen for line in collector(kernel, boot_time))


def _metric(name: str, kind: str, what: str, samples: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples.items():
        # `repr` keeps every digit: counters are subtracted from each other later.
        yield f"{name}{labels} {value!r}"


def _cpu(kernel: SimulatedKernel, _: float) -> Iterator[str]:
    """Seconds of each online CPU by mode."""
    samples: dict[str, float] = {}
    # Offline CPUs are missing, as in /proc/stat, and their counters go on later from where they were.
    for number in range(kernel.size.cpu.whole_cpus):
        busy, idle = kernel.counters.busy[number], kernel.counters.idle[number]
        parts = {
            "idle": idle,
            "iowait": 0.0,
            "irq": 0.0,
            "nice": 0.0,
            "softirq": 0.0,
            "steal": 0.0,
            "system": busy * _SYSTEM_SHARE,
            "user": busy * (1 - _SYSTEM_SHARE),
        }
        samples |= {f'{{cpu="{number}",mode="{mode}"}}': seconds for mode, seconds in parts.items()}
    yield from _metric("node_cpu_seconds_total", "counter", "Seconds the CPUs spent in each mode.", samples)


def _loadavg(kernel: SimulatedKernel, _: float) -> Iterator[str]:
    for minutes, value in zip((1, 5, 15), kernel.counters.load, strict=True):
        yield from _metric(f"node_load{minutes}", "gauge", f"{minutes}m load average.", {"": value})


def _meminfo(kernel: SimulatedKernel, _: float) -> Iterator[str]:
    total, used = kernel.size.mem, kernel.mem_used
    # Without a page cache, all that is not used is both free and available.
    fields = {"MemAvailable": total - used, "MemFree": total - used, "MemTotal": total}
    for field, amount in fields.items():
        what = f"Memory information field {field}_bytes."
        yield from _metric(f"node_memory_{field}_bytes", "gauge", what, {"": float(amount.value)})


def _pressure(kernel: SimulatedKernel, _: float) -> Iterator[str]:
    waited = {
        "cpu_waiting": kernel.counters.cpu_waiting,
        "io_stalled": 0.0,
        "io_waiting": 0.0,
        "memory_stalled": 0.0,
        "memory_waiting": kernel.counters.mem_waiting,
    }
    for name, seconds in waited.items():
        what = f"Time in seconds that tasks were {name.replace('_', ' ')}."
        yield from _metric(f"node_pressure_{name}_seconds_total", "counter", what, {"": seconds})


def _stat(kernel: SimulatedKernel, boot_time: float) -> Iterator[str]:
    yield from _metric("node_boot_time_seconds", "gauge", "Node boot time, in unixtime.", {"": boot_time})
    yield from _metric("node_procs_running", "gauge", "Number of tasks that could run.", {"": kernel.demand.cpu})


def _time(kernel: SimulatedKernel, boot_time: float) -> Iterator[str]:
    now = boot_time + kernel.age
    yield from _metric("node_time_seconds", "gauge", "System time in seconds since epoch (1970).", {"": now})


def _vmstat(_: SimulatedKernel, __: float) -> Iterator[str]:
    """Zeros."""
    # Simulated programs read nothing from disk, so nothing is ever read again.
    for field in ("pgpgin", "pgpgout", "workingset_refault_anon", "workingset_refault_file"):
        what = f"/proc/vmstat information field {field}."
        yield from _metric(f"node_vmstat_{field}", "untyped", what, {"": 0.0})


_COLLECTORS: Final[Mapping[str, Callable[[SimulatedKernel, float], Iterator[str]]]] = {
    "cpu": _cpu,
    "loadavg": _loadavg,
    "meminfo": _meminfo,
    "pressure": _pressure,
    "stat": _stat,
    "time": _time,
    "vmstat": _vmstat,
}
