"""Parses a guest's metrics page, node_exporter's or vector's (``host_*``), for the metrics that decisions need (S4.3).

Rules that hold here:

- ``SCALARS``, the two CPU families and the reasons against sleep are parsed; everything else is ignored.
- Parsing takes bounded time, linear in the page size: no pattern backtracks, and overlong lines are skipped.
- prometheus_client's parser, which is 15 to 35 times slower, is the test oracle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from agent.core.guest import CpuSeconds, GuestSample
from protocol.units import Bytes

COLLECTORS: Final = ("cpu", "stat", "loadavg", "meminfo", "pressure", "vmstat", "textfile")
"""The node_exporter collectors that provide these metrics; requesting only them keeps the page small."""

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
    b"autoscale_database_quiet_seconds": "quiet",
    b"host_load1": "load1",
    b"host_load5": "load5",
    b"host_memory_total_bytes": "mem_total",
    b"host_memory_available_bytes": "mem_available",
    b"host_memory_free_bytes": "mem_free",
}
"""Metric families with a single value, by their name in ``_sample``."""

_PAGE: Final = 4096.0
"""Page size in bytes, the kernel's unit of refaults; disk traffic is in KiB."""

KERNEL_MODES: Final = frozenset({b"system", b"irq", b"softirq"})
"""CPU modes of the kernel."""

BUSY_MODES: Final = frozenset({b"user", b"nice"}) | KERNEL_MODES
"""CPU modes that count as busy. ``guest`` is included in ``user``."""

MAX_LINES: Final = 8192
"""Maximum parsed lines per page: ``MAX_CPUS`` with eight modes each."""

MAX_CPUS: Final = 1024
"""Maximum CPUs of a sample; each costs time in every later step."""

LONGEST_LINE: Final = 1024
MAX_LABELS: Final = 16

LARGEST: Final = 2.0**63
"""Upper bound of values: larger ones are implausible and overflow the wire format."""

_SAMPLED: Final = b"host_cpu_seconds_total"
"""Vector's CPU family. Vector samples on its own clock (every 1 or 15 s) and repeats a sample until the next."""

MAX_REASONS: Final = 8
"""Maximum reasons against sleep; one is enough."""

UNREADABLE: Final = "unreadable"
"""Stands for a malformed reason."""

_AWAKE: Final = b"autoscale_database_awake"
_REASON: Final = re.compile(rb"[A-Za-z0-9_-]{1,32}")
_CPU: Final = (b"node_cpu_seconds_total", _SAMPLED)


def _any_of(names: Iterable[bytes]) -> bytes:
    """A pattern for ``names``, grouped by first word, so that most other lines fail within a few characters."""
    by_prefix: dict[bytes, list[bytes]] = {}
    for name in names:
        word, _, rest = name.partition(b"_")
        by_prefix.setdefault(word, []).append(re.escape(rest))
    return b"|".join(word + b"_(?:" + b"|".join(rests) + b")" for word, rests in by_prefix.items())


_LINE: Final = re.compile(rb"^(" + _any_of((*_CPU, *SCALARS, _AWAKE)) + rb")([ \t{][^\n]*+)", re.MULTILINE)
_SHORT: Final = re.compile(rb'\{cpu="([^"\\]*+)",mode="([^"\\]*+)"\} (\S++)')
_LABEL: Final = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"')
_ANY_LABEL: Final = rb'[ \t]*+[a-zA-Z_][a-zA-Z0-9_]*+[ \t]*+=[ \t]*+"(?:[^"\\]++|\\.)*+"[ \t]*+'
# Python 3.11.2 backtracks into possessive groups, so these are not; each label is.
_LABELLED: Final = re.compile(rb"\s*+\{((?:%b(?:,%b){0,%d})?)[ \t,]*\}" % (_ANY_LABEL, _ANY_LABEL, MAX_LABELS - 1))
"""All labels as one text: only the labels of CPUs and reasons are parsed individually."""

_IOWAIT: Final = (b"iowait", b"io_wait")


def read_sample(page: bytes) -> GuestSample:
    """Parse a page of metrics; missing metrics are None. Never raises.

    >>> read_sample(b'node_load1 0.5\\nnode_cpu_seconds_total{cpu="0",mode="user"} 7\\n').cpus["0"].busy
    7.0
    """
    scalars: dict[str, float] = {}
    cpus: dict[bytes, dict[bytes, float]] = {}
    awake: dict[str, None] = {}
    # Timestamps are in milliseconds, in OpenMetrics in seconds.
    unit = 1.0 if page.rstrip().endswith(b"# EOF") else 1000.0
    for line in islice(_LINE.finditer(page), MAX_LINES):
        name, rest = line.groups()
        # No real exporter writes longer lines; the label pattern must not see them.
        if len(rest) > LONGEST_LINE:
            continue
        if name in _CPU:
            cpu, mode, text, stamp = _cpu_line(rest)
            value = _number(text)
            # A line with an invalid value counts as missing, which the core handles.
            if value is not None and (cpu in cpus or len(cpus) < MAX_CPUS):
                cpus.setdefault(cpu, {})[mode] = value
                _note_sampling(scalars, name, value, None if (at := _number(stamp)) is None else at / unit)
        elif name == _AWAKE:
            _note_reason(awake, rest)
        else:
            value = _number(_fields(rest)[1])
            if value is not None:
                scalars[SCALARS[name]] = value
    return _sample(scalars, {cpu.decode(errors="replace"): _cpu(modes) for cpu, modes in cpus.items()}, tuple(awake))


def _note_sampling(scalars: dict[str, float], family: bytes, seconds: float, stamp: float | None) -> None:
    """Record the newest timestamp of the CPU lines and, for vector, the sum of their seconds."""
    if stamp is not None:
        scalars["stamp"] = max(stamp, scalars.get("stamp", 0.0))
    if family == _SAMPLED:
        scalars["counted"] = scalars.get("counted", 0.0) + seconds


def _note_reason(awake: dict[str, None], rest: bytes) -> None:
    """Record the reason of an awake line unless its value is 0. A malformed line keeps the database awake."""
    if len(awake) >= MAX_REASONS:
        return
    block, text, _ = _fields(rest)
    if _number(text) == 0:
        return
    reason = _labels(block).get(b"reason", b"")
    awake[reason.decode() if _REASON.fullmatch(reason) else UNREADABLE] = None


def _cpu_line(rest: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """CPU, mode, value and timestamp."""
    # Fast path: nearly all lines are CPU modes in node_exporter's format.
    short = _SHORT.fullmatch(rest)
    if short is not None:
        cpu, mode, text = short.groups()
        return cpu, mode, text, b""
    block, text, stamp = _fields(rest)
    labels = _labels(block)
    return labels.get(b"cpu", b""), labels.get(b"mode", b""), text, stamp


def _fields(rest: bytes) -> tuple[bytes, bytes, bytes]:
    """Labels as text, value and timestamp; all empty for a malformed line."""
    block = _LABELLED.match(rest)
    labels, end = (b"", 0) if block is None else (block[1], block.end())
    # An exemplar follows a number sign.
    words = rest[end:].partition(b"#")[0].split()
    # A value and optionally a timestamp.
    return (labels, words[0], b"".join(words[1:])) if 1 <= len(words) <= 2 else (b"", b"", b"")


def _labels(text: bytes) -> dict[bytes, bytes]:
    return dict(_LABEL.findall(text))


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # Also rejects NaN, for which comparisons are false.
    return value if 0 <= value < LARGEST else None


def _cpu(modes: Mapping[bytes, float]) -> CpuSeconds:
    busy = sum(seconds for mode, seconds in modes.items() if mode in BUSY_MODES)
    kernel = sum(seconds for mode, seconds in modes.items() if mode in KERNEL_MODES)
    # node_exporter and vector name this mode differently.
    iowait = sum(modes.get(mode, 0.0) for mode in _IOWAIT)
    return CpuSeconds(busy, modes.get(b"steal", 0.0), iowait, kernel)


def _sample(scalars: dict[str, float], cpus: Mapping[str, CpuSeconds], awake: tuple[str, ...]) -> GuestSample:
    files, anon = scalars.pop("refaults_file", None), scalars.pop("refaults_anon", None)
    read, written = scalars.pop("kib_in", None), scalars.pop("kib_out", None)
    # The other names and units match ``GuestSample``, except that memory is in ``Bytes``.
    rest = scalars | {name: Bytes(int(scalars[name])) for name in _MEMORY & scalars.keys()}
    return GuestSample(
        cpus=cpus,
        refaulted=_times(_PAGE, files, anon),
        read=_times(1024.0, read),
        written=_times(1024.0, written),
        awake=awake,
        **rest,  # type: ignore[arg-type]
    )


_MEMORY: Final = frozenset({"mem_total", "mem_available", "mem_free"})


def _times(unit: float, *counts: float | None) -> float | None:
    """Sum of the present counts in bytes; None if the first is missing."""
    return None if counts[0] is None else unit * sum(count for count in counts if count is not None)
