"""Reads the few numbers that decisions need from a guest's page: node_exporter's, or vector's ``host_*`` (S4.3).

Rules that hold here:

- ``SCALARS`` and the two CPU families are the only list of wanted metrics; everything else is ignored.
- Time is linear in the page and bounded for any page up to the size limit: no pattern here can backtrack, and lines or
  pages beyond what a real guest sends are not read to the end.
- prometheus_client's parser is the oracle of the tests; it takes 15 to 35 times as long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from agent.core.guest import CpuSeconds, GuestSample
from protocol.units import Bytes

COLLECTORS: Final = ("cpu", "stat", "loadavg", "meminfo", "pressure", "vmstat")
"""The collectors of node_exporter with the wanted metrics; asking for these alone keeps its page small."""

SCALARS: Final[Mapping[bytes, str]] = {
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
    b"node_vmstat_oom_kill": "oom_kills",
    b"host_load1": "load1",
    b"host_load5": "load5",
    b"host_memory_total_bytes": "mem_total",
    b"host_memory_available_bytes": "mem_available",
    b"host_memory_free_bytes": "mem_free",
}
"""Families of one number each, and what ``_sample`` makes of them."""

_PAGE: Final = 4096.0
"""Bytes: the kernel counts refaults in pages of this size, and disk traffic in KiB."""

KERNEL_MODES: Final = frozenset({b"system", b"irq", b"softirq"})
"""Time in which the kernel worked, for programs or for itself."""

BUSY_MODES: Final = frozenset({b"user", b"nice"}) | KERNEL_MODES
"""Time in which a CPU worked. Guest time is part of user time already."""

MOST_LINES: Final = 8192
"""Wanted lines of one page: 1,000 CPUs with eight modes each."""

LONGEST_LINE: Final = 1024
MOST_LABELS: Final = 16

LARGEST: Final = 2.0**63
"""No number of a guest is this large, and the wire could not carry it."""

_SAMPLED: Final = b"host_cpu_seconds_total"
"""Vector's family: it samples on its own clock, every second or every 15, and repeats that sample until the next."""

_CPU: Final = (b"node_cpu_seconds_total", _SAMPLED)
_NAMES: Final = b"|".join(re.escape(name) for name in (*_CPU, *SCALARS))
_LINE: Final = re.compile(rb"^(" + _NAMES + rb")([ \t{][^\n]*+)", re.MULTILINE)
_SHORT: Final = re.compile(rb'\{cpu="([^"\\]*+)",mode="([^"\\]*+)"\} (\S++)')
_LABEL: Final = re.compile(rb'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"[ \t]*+')
_IOWAIT: Final = (b"iowait", b"io_wait")


def read_sample(page: bytes) -> GuestSample:
    """The sample that a page of metrics holds; what the page lacks is None. Never raises.

    >>> read_sample(b'node_load1 0.5\\nnode_cpu_seconds_total{cpu="0",mode="user"} 7\\n').cpus
    {'0': CpuSeconds(busy=7.0, steal=0.0, iowait=0.0, kernel=0.0)}
    """
    scalars: dict[str, float] = {}
    cpus: dict[bytes, dict[bytes, float]] = {}
    for name, rest in _wanted(page):
        if name in _CPU:
            cpu, mode, text, stamp = _cpu_line(rest)
            value = _number(text)
            # A wanted line with a bad value counts as missing: the core knows how to do without.
            if value is not None:
                cpus.setdefault(cpu, {})[mode] = value
                _note_sampling(scalars, name, value, _number(stamp))
        else:
            value = _number(_labels(rest)[1])
            if value is not None:
                scalars[SCALARS[name]] = value
    return _sample(scalars, {cpu.decode(errors="replace"): _cpu(modes) for cpu, modes in cpus.items()})


def _note_sampling(scalars: dict[str, float], family: bytes, seconds: float, stamp: float | None) -> None:
    """Note the newest time stamp of all CPU lines and, for an exporter that samples, the sum of their seconds."""
    if stamp is not None:
        # Exposition time stamps are milliseconds.
        scalars["stamp"] = max(stamp / 1000.0, scalars.get("stamp", 0.0))
    if family == _SAMPLED:
        scalars["counted"] = scalars.get("counted", 0.0) + seconds


def _wanted(page: bytes) -> Iterator[tuple[bytes, bytes]]:
    for line in islice(_LINE.finditer(page), MOST_LINES):
        name, rest = line.groups()
        # No real exporter writes longer ones, and the label pattern is not run on them.
        if len(rest) <= LONGEST_LINE:
            yield name, rest


def _cpu_line(rest: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """The CPU, the mode, the value and the time stamp."""
    # Nearly all wanted lines are CPU modes in node_exporter's own spelling, so they get a pattern of their own.
    short = _SHORT.fullmatch(rest)
    if short is not None:
        cpu, mode, text = short.groups()
        return cpu, mode, text, b""
    labels, text, stamp = _labels(rest)
    return labels.get(b"cpu", b""), labels.get(b"mode", b""), text, stamp


def _labels(rest: bytes) -> tuple[dict[bytes, bytes], bytes, bytes]:
    """The labels, the value and its time stamp; all empty if the line is malformed."""
    labels: dict[bytes, bytes] = {}
    at = len(rest) - len(rest.lstrip())
    if rest[at : at + 1] == b"{":
        at += 1
        for _ in range(MOST_LABELS):
            label = _LABEL.match(rest, at)
            if label is None:
                break
            labels[label[1]] = label[2]
            at = label.end()
            if rest[at : at + 1] != b",":
                break
            at += 1
        rest = rest[at:].lstrip(b" \t,")
        if not rest.startswith(b"}"):
            return {}, b"", b""
        at = 1
    words = rest[at:].split()
    # A value, and perhaps a time stamp; a third word makes the line malformed.
    return (labels, words[0], b"".join(words[1:])) if 1 <= len(words) <= 2 else ({}, b"", b"")


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # Also refuses NaN, which compares as false.
    return value if 0 <= value < LARGEST else None


def _cpu(modes: Mapping[bytes, float]) -> CpuSeconds:
    busy = sum(seconds for mode, seconds in modes.items() if mode in BUSY_MODES)
    kernel = sum(seconds for mode, seconds in modes.items() if mode in KERNEL_MODES)
    # node_exporter and vector spell this mode differently.
    iowait = sum(modes.get(mode, 0.0) for mode in _IOWAIT)
    return CpuSeconds(busy, modes.get(b"steal", 0.0), iowait, kernel)


def _sample(scalars: dict[str, float], cpus: Mapping[str, CpuSeconds]) -> GuestSample:
    files, anon = scalars.pop("refaults_file", None), scalars.pop("refaults_anon", None)
    read, written = scalars.pop("kib_in", None), scalars.pop("kib_out", None)
    # The rest has the names of the sample, and its units too, but for memory.
    rest = scalars | {name: Bytes(int(scalars[name])) for name in _MEMORY & scalars.keys()}
    return GuestSample(
        cpus=cpus,
        refaulted=_times(_PAGE, files, anon),
        read=_times(1024.0, read),
        written=_times(1024.0, written),
        **rest,  # type: ignore[arg-type]
    )


_MEMORY: Final = frozenset({"mem_total", "mem_available", "mem_free"})


def _times(unit: float, *counts: float | None) -> float | None:
    """The sum of the counts that are present, in bytes; None if the first is missing."""
    return None if counts[0] is None else unit * sum(count for count in counts if count is not None)
