"""Figures of a run, the ratios between them, and their tables (pure).

A ratio compares rounds that followed one another: the median over all pairs.
"""

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
    """One round: the rate at which pods were bound, each program's CPU time for one, and the load average before."""

    side: Side
    nodes: int
    pods: int
    seconds: float
    pods_per_second: float
    cpu_ms_per_pod: dict[str, float]
    load: float


class SchedulingSpeed(msgspec.Struct, frozen=True):
    """Pods per second at this many nodes; ``ratio`` is ours over that without any extender.

    ``cpu_ratio`` is the same of the CPU time that all programs take for a pod: it does not depend on what else the
    machine does.
    """

    nodes: int
    ours: float
    alone: float
    ratio: float
    cpu_ratio: float
    ours_cpu_ms: dict[str, float]
    alone_cpu_ms: dict[str, float]


class Latency(msgspec.Struct, frozen=True):
    """Latency of answers, in milliseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """The latencies of all ``seconds``."""
        ordered = sorted(seconds)
        return cls(*(round(ordered[int(len(ordered) * part)] * 1000, 2) for part in (0.5, 0.99)))


class PermitLatencies(msgspec.Struct, frozen=True):
    """Permits through the API server; ``ratio`` is the median increase over that of ``write``, a bare patch of a VM."""

    agents: int
    first: Latency
    increase: Latency
    unchanged: Latency
    write: Latency
    ratio: float
    load: float


class Start(msgspec.Struct, frozen=True):
    """The service's start; ``reading`` is what a client takes that only reads the lists, and ``ratio`` is over that."""

    vms: int
    seconds: float
    reading: float
    ratio: float
    cpu_seconds: float
    memory_mib: float
    load: float


def scheduling(rounds: Sequence[Round]) -> SchedulingSpeed:
    """The figures of rounds at one number of nodes, which alternate between the two sides."""
    ours = [result for result in rounds if result.side == OURS]
    alone = [result for result in rounds if result.side == ALONE]
    # Rounds that followed one another met the same machine; the ratio of two medians would mix good and bad minutes.
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


def scheduling_table(found: Sequence[SchedulingSpeed]) -> Table:
    """A row for each number of nodes."""
    title = "Pods bound per second, medians of alternating rounds"
    table = Table("nodes", "ours", "no extender", "ratio", "CPU ms per pod: ours", "no extender", "ratio", title=title)
    for speed in found:
        cpu = [_cpu(speed.ours_cpu_ms), _cpu(speed.alone_cpu_ms), f"{speed.cpu_ratio:.2f}"]
        table.add_row(str(speed.nodes), f"{speed.ours:.0f}", f"{speed.alone:.0f}", f"{speed.ratio:.2f}", *cpu)
    return table


def _cpu(by_program: dict[str, float]) -> str:
    return "\n".join(f"{ms:.2f} {name}" for name, ms in by_program.items())


def permit_table(found: PermitLatencies) -> Table:
    """A row for each kind of request."""
    title = f"Permits, {found.agents} agents at once (load {found.load})"
    table = Table("milliseconds", "p50", "p99", title=title)
    rows = {"first contact": found.first, "increase": found.increase, "unchanged": found.unchanged}
    for name, latency in (rows | {"a bare patch of a VM": found.write}).items():
        table.add_row(name, f"{latency.p50:.1f}", f"{latency.p99:.1f}")
    table.add_row("increase / bare patch", f"{found.ratio:.2f}", "")
    return table


def start_table(found: Start) -> Table:
    """One row."""
    table = Table("VMs", "ready after", "reading alone", "ratio", "CPU", "memory", "load", title="Start of the service")
    times = [f"{found.seconds:.2f} s", f"{found.reading:.2f} s", f"{found.ratio:.2f}", f"{found.cpu_seconds:.2f} s"]
    table.add_row(str(found.vms), *times, f"{found.memory_mib:.0f} MiB", str(found.load))
    return table
