"""The figures of ``make bench-kubernetes`` as tables."""

from __future__ import annotations

from rich.table import Table

from scripts.bench.kubernetes.speed_figures import PermitLatencies, SchedulingSpeed, SpeedReport, Start


def tables(found: SpeedReport) -> list[Table]:
    """One table for each kind of measurement that was made."""
    made = [_scheduling(found.scheduling)] if found.scheduling else []
    made += [_permits(found.permits)] if found.permits is not None else []
    made += [_start(found.start)] if found.start is not None else []
    for table in made:
        table.caption = f"Kubernetes {found.kubernetes} on {found.cores} cores"
    return made


def _scheduling(found: list[SchedulingSpeed]) -> Table:
    title = "Pods bound per second, medians of alternating rounds"
    table = Table("nodes", "ours", "no extender", "ratio", "CPU ms per pod: ours", "no extender", "ratio", title=title)
    for speed in found:
        cpu = [_cpu(speed.ours_cpu_ms), _cpu(speed.alone_cpu_ms), f"{speed.cpu_ratio:.2f}"]
        table.add_row(str(speed.nodes), f"{speed.ours:.0f}", f"{speed.alone:.0f}", f"{speed.ratio:.2f}", *cpu)
    return table


def _cpu(by_program: dict[str, float]) -> str:
    return "\n".join(f"{ms:.2f} {name}" for name, ms in by_program.items())


def _permits(found: PermitLatencies) -> Table:
    title = f"Permits, {found.agents} agents at once (load {found.load})"
    table = Table("milliseconds", "p50", "p99", title=title)
    rows = {"first contact": found.first, "increase": found.increase, "unchanged": found.unchanged}
    for name, latency in (rows | {"a bare patch of a VM": found.write}).items():
        table.add_row(name, f"{latency.p50:.1f}", f"{latency.p99:.1f}")
    table.add_row("increase / bare patch", f"{found.ratio:.2f}", "")
    return table


def _start(found: Start) -> Table:
    table = Table("VMs", "ready after", "reading alone", "ratio", "CPU", "memory", "load", title="Start of the service")
    times = [f"{found.seconds:.2f} s", f"{found.reading:.2f} s", f"{found.ratio:.2f}", f"{found.cpu_seconds:.2f} s"]
    table.add_row(str(found.vms), *times, f"{found.memory_mib:.0f} MiB", str(found.load))
    return table
