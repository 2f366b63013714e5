"""Reading out of node_exporter's text the few numbers that decide (S4.3).

Rules that hold here:

- Only lines that are wanted are looked at; everything else may be anything. A wanted line with a bad value counts as
  missing: the core knows how to do without.
- prometheus_client's parser is the oracle of the tests; it takes 15 to 35 times as long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Final

from agent.core.guest import CpuSeconds, GuestSample
from protocol.units import Bytes

COLLECTORS: Final = ("cpu", "stat", "loadavg", "meminfo", "pressure", "vmstat")
"""The collectors of node_exporter that say what is wanted; asking for these alone makes its page small."""

_SCALARS: Final[Mapping[bytes, str]] = {
    b"node_boot_time_seconds": "boot_time",
    b"node_procs_running": "runnable",
    b"node_load1": "load1",
    b"node_load5": "load5",
    b"node_pressure_cpu_waiting_seconds_total": "cpu_stall",
    b"node_pressure_memory_waiting_seconds_total": "mem_stall",
    b"node_memory_MemTotal_bytes": "mem_total",
    b"node_memory_MemAvailable_bytes": "mem_available",
    b"node_memory_MemFree_bytes": "mem_free",
    b"node_pressure_io_waiting_seconds_total": "io_stall",
    b"node_vmstat_workingset_refault_file": "refaults_file",
    b"node_vmstat_workingset_refault_anon": "refaults_anon",
    b"node_vmstat_pgpgin": "kib_in",
    b"node_vmstat_pgpgout": "kib_out",
}

_PAGE: Final = 4096.0
"""What the kernel counts refaults in; what moves from and to disks it counts in KiB."""

KERNEL_MODES: Final = frozenset({b"system", b"irq", b"softirq"})
"""Time in which the kernel worked, for programs or for itself."""

BUSY_MODES: Final = frozenset({b"user", b"nice"}) | KERNEL_MODES
"""Time in which a CPU worked. Guest time is part of user time already."""

_CPU: Final = b"node_cpu_seconds_total"
_LINE: Final = re.compile(
    rb"^(" + b"|".join([_CPU, *_SCALARS]) + rb")[ \t]*(?:\{([^}\n]*)\})?[ \t]+([^ \t\r\n]+)[ \t\r]*[-0-9]*[ \t\r]*$",
    re.MULTILINE,
)
_LABEL: Final = re.compile(rb'(cpu|mode)[ \t]*=[ \t]*"([^"\\]*)"')


def read_sample(page: bytes) -> GuestSample:
    """The sample that a page of metrics holds; what the page lacks is None. Never raises."""
    scalars: dict[str, float] = {}
    cpus: dict[bytes, dict[bytes, float]] = {}
    for name, labels, text in _LINE.findall(page):
        value = _number(text)
        if value is None:
            continue
        if name != _CPU:
            scalars[_SCALARS[name]] = value
            continue
        found = dict(_LABEL.findall(labels))
        cpus.setdefault(found.get(b"cpu", b""), {})[found.get(b"mode", b"")] = value
    return _sample(scalars, {cpu.decode(errors="replace"): _cpu(modes) for cpu, modes in cpus.items()})


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def _cpu(modes: Mapping[bytes, float]) -> CpuSeconds:
    busy = sum(seconds for mode, seconds in modes.items() if mode in BUSY_MODES)
    kernel = sum(seconds for mode, seconds in modes.items() if mode in KERNEL_MODES)
    return CpuSeconds(busy, modes.get(b"steal", 0.0), modes.get(b"iowait", 0.0), kernel)


def _sample(scalars: Mapping[str, float], cpus: Mapping[str, CpuSeconds]) -> GuestSample:
    return GuestSample(
        cpus=cpus,
        boot_time=scalars.get("boot_time"),
        runnable=scalars.get("runnable"),
        load1=scalars.get("load1"),
        load5=scalars.get("load5"),
        mem_total=_bytes(scalars.get("mem_total")),
        mem_available=_bytes(scalars.get("mem_available")),
        mem_free=_bytes(scalars.get("mem_free")),
        cpu_stall=scalars.get("cpu_stall"),
        mem_stall=scalars.get("mem_stall"),
        io_stall=scalars.get("io_stall"),
        refaulted=_times(_PAGE, scalars.get("refaults_file"), scalars.get("refaults_anon")),
        read=_times(1024.0, scalars.get("kib_in")),
        written=_times(1024.0, scalars.get("kib_out")),
    )


def _bytes(count: float | None) -> Bytes | None:
    return None if count is None else Bytes(int(count))


def _times(unit: float, *counts: float | None) -> float | None:
    """The sum of the counts that are there, in bytes; None where the first is missing."""
    return None if counts[0] is None else unit * sum(count for count in counts if count is not None)
