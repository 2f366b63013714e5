"""Results of ``bench-kubernetes``, and their tables (pure). Ratios are medians over pairs of consecutive rounds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, Literal

import msgspec
from rich.table import Table

Side = Literal["ours", "alone"]
OURS: Final[Side] = "ours"
ALONE: Final[Side] = "alone"


class Round(msgspec.Struct, frozen=True):
    """One round: bindings per second, each program's CPU time per pod, and the load average before."""

    side: Side
    nodes: int
    pods: int
    seconds: float
    pods_per_second: float
    cpu_ms_per_pod: dict[str, float]
    load: float


class SchedulingSpeed(msgspec.Struct, frozen=True):
    """Pods per second with ``nodes`` nodes; ``ratio`` is with our extender over without.

    ``cpu_ratio`` is the same for the CPU time of all programs per pod, which does not depend on the machine's load.
    """

    nodes: int
    ours: float
    alone: float
    ratio: float
    cpu_ratio: float
    ours_cpu_ms: dict[str, float]
    alone_cpu_ms: dict[str, float]


class Latency(msgspec.Struct, frozen=True):
    """Latency percentiles, in milliseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """The percentiles of ``seconds``."""
        ordered = sorted(seconds)
        return cls(*(round(ordered[int(len(ordered) * part)] * 1000, 2) for part in (0.5, 0.99)))


class PermitLatencies(msgspec.Struct, frozen=True):
    """Latencies of permits; ``write`` is a plain patch of a VM, ``ratio`` the median ``increase`` over it."""

    agents: int
    first: Latency
    increase: Latency
    unchanged: Latency
    write: Latency
    ratio: float
    load: float


class Start(msgspec.Struct, frozen=True):
    """The scheduler's start; ``reading`` is the time to only read the lists, ``ratio`` is ``seconds`` over it."""

    vms: int
    seconds: float
    reading: float
    ratio: float
    cpu_seconds: float
    memory_mib: float
    load: float


def scheduling(rounds: Sequence[Round]) -> SchedulingSpeed:
    """Summarize alternating rounds with the same number of nodes."""
    ours = [result for result in rounds if result.side == OURS]
    alone = [result for result in rounds if result.side == ALONE]
    # Pair consecutive rounds, which ran under similar load.
    pairs = list(zip(ours, alone, strict=True))
    return SchedulingSpeed(
        nodes=rounds[0].nodes,
        ours=median(result.pods_per_second for result in ours),
        alone=median(result.pods_per_second for result in alone),
        ratio=round(median(a.pods_per_second / b.pods_per_second for a, b in pairs), 3),
        cpu_ratio=round(median(sum(a.cpu_ms_per_pod.values()) / sum(b.cpu_ms_per_pod.values()) for a, b in pairs), 3),
        ours_cpu_ms=_cpu_by_program(ours),
        alone_cpu_ms=_cpu_by_program(alone),
    )


def _cpu_by_program(rounds: Sequence[Round]) -> dict[str, float]:
    return {
        name: round(median(result.cpu_ms_per_pod[name] for result in rounds), 2) for name in rounds[0].cpu_ms_per_pod
    }


def scheduling_table(figures: Sequence[SchedulingSpeed]) -> Table:
    """A table with a row for each number of nodes."""
    title = "Pods bound per second, medians of alternating rounds"
    table = Table("nodes", "ours", "no extender", "ratio", "CPU ms per pod: ours", "no extender", "ratio", title=title)
    for speed in figures:
        cpu = [_cpu(speed.ours_cpu_ms), _cpu(speed.alone_cpu_ms), f"{speed.cpu_ratio:.2f}"]
        table.add_row(str(speed.nodes), f"{speed.ours:.0f}", f"{speed.alone:.0f}", f"{speed.ratio:.2f}", *cpu)
    return table


def _cpu(by_program: dict[str, float]) -> str:
    return "\n".join(f"{ms:.2f} {name}" for name, ms in by_program.items())


def permit_table(figures: PermitLatencies) -> Table:
    """A table with a row for each kind of request."""
    title = f"Permits, {figures.agents} agents at once (load {figures.load})"
    table = Table("milliseconds", "p50", "p99", title=title)
    rows = {"first contact": figures.first, "increase": figures.increase, "unchanged": figures.unchanged}
    for name, latency in (rows | {"a bare patch of a VM": figures.write}).items():
        table.add_row(name, f"{latency.p50:.1f}", f"{latency.p99:.1f}")
    table.add_row("increase / bare patch", f"{figures.ratio:.2f}", "")
    return table


def start_table(figures: Start) -> Table:
    """A table with one row."""
    table = Table("VMs", "ready after", "reading alone", "ratio", "CPU", "memory", "load", title="Start of the service")
    times = [
        f"{figures.seconds:.2f} s",
        f"{figures.reading:.2f} s",
        f"{figures.ratio:.2f}",
        f"{figures.cpu_seconds:.2f} s",
    ]
    table.add_row(str(figures.vms), *times, f"{figures.memory_mib:.0f} MiB", str(figures.load))
    return table
