"""Results of ``bench-kubernetes``, and their tables (pure). Ratios are medians over pairs of consecutive rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, Literal

import msgspec
from rich.table import Table

Side = Literal["ours", "alone"]
OURS: Final[Side] = "ours"
ALONE: Final[Side] = "alone"
INCREASE: Final = "increase"
WRITE: Final = "a bare patch of a VM"


class Round(msgspec.Struct, frozen=True):
    """One round: bindings per second, and CPU time per pod of each program."""

    side: Side
    nodes: int
    pods_per_second: float
    cpu_ms_per_pod: dict[str, float]


class Start(msgspec.Struct, frozen=True):
    """One start of the scheduler. ``list_seconds``: time to only read the lists. ``load``: load average before."""

    vms: int
    seconds: float
    list_seconds: float
    cpu_seconds: float
    memory_mib: float
    load: float


def scheduling_table(rounds_by_nodes: Sequence[Sequence[Round]]) -> Table:
    """Format one row per number of nodes."""
    title = "Pods bound per second, medians of alternating rounds"
    table = Table("nodes", "ours", "no extender", "ratio", "CPU ms per pod: ours", "no extender", "ratio", title=title)
    for rounds in rounds_by_nodes:
        ours = [result for result in rounds if result.side == OURS]
        alone = [result for result in rounds if result.side == ALONE]
        # Consecutive rounds ran under similar load.
        pairs = list(zip(ours, alone, strict=True))
        ratio = median(a.pods_per_second / b.pods_per_second for a, b in pairs)
        # CPU time does not depend on the machine's load.
        cpu_ratio = median(sum(a.cpu_ms_per_pod.values()) / sum(b.cpu_ms_per_pod.values()) for a, b in pairs)
        speeds = [f"{median(result.pods_per_second for result in side):.0f}" for side in (ours, alone)]
        cpu = [_cpu_by_program(ours), _cpu_by_program(alone), f"{cpu_ratio:.2f}"]
        table.add_row(str(rounds[0].nodes), *speeds, f"{ratio:.2f}", *cpu)
    return table


def _cpu_by_program(rounds: Sequence[Round]) -> str:
    programs = rounds[0].cpu_ms_per_pod
    return "\n".join(f"{median(result.cpu_ms_per_pod[name] for result in rounds):.2f} {name}" for name in programs)


def permit_table(latencies: Mapping[str, Sequence[float]], agents: int, load: float) -> Table:
    """Format one row per kind of request; ``latencies`` are in seconds."""
    table = Table("milliseconds", "p50", "p99", title=f"Permits, {agents} concurrent agents (load {load})")
    for name, seconds in latencies.items():
        ordered = sorted(seconds)
        table.add_row(name, *(f"{ordered[int(len(ordered) * quantile)] * 1000:.1f}" for quantile in (0.5, 0.99)))
    table.add_row("increase / bare patch", f"{median(latencies[INCREASE]) / median(latencies[WRITE]):.2f}", "")
    return table


def start_table(start: Start) -> Table:
    """Format the start as one row."""
    table = Table("VMs", "ready after", "only listing", "ratio", "CPU", "memory", "load", title="Start of the service")
    times = [f"{start.seconds:.2f} s", f"{start.list_seconds:.2f} s", f"{start.seconds / start.list_seconds:.2f}"]
    costs = [f"{start.cpu_seconds:.2f} s", f"{start.memory_mib:.0f} MiB"]
    table.add_row(str(start.vms), *times, *costs, str(start.load))
    return table
