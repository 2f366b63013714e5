"""``make bench-costs``: time and memory of a weekly report of a large fleet, and its error against the samples.

A made-up history is written, kept as a recorder would keep it, and asked by ``autoscale cost`` as people ask it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from scheduler_plugin.history.core.samples import DAY, HOUR
from scheduler_plugin.history.sqlite.store import SqliteStore
from scripts.bench.costs.made_history import Integral, made

QUESTIONS: Final = (
    ("--by", "vm"),
    ("--by", "namespace"),
    ("--by", "node"),
    ("--by", "vm", "-o", "opencost"),
    ("--by", "namespace", "--policy", "default"),
)
_MIB_OF_KIB: Final = 1024
_COMMAND: Final = "import sys; from scripts.autoscale.main import main; sys.exit(main())"


@dataclass(frozen=True, slots=True)
class Asked:
    """Time and memory of one run of ``autoscale cost``, in seconds and MiB, and its output."""

    took: float
    cpu: float
    mib: float
    said: bytes


def bench_costs(
    vms: Annotated[int, typer.Option(min=1, help="How many VMs the history has.")] = 10_000,
    days: Annotated[int, typer.Option(min=1, max=35, help="Of how many days.")] = 7,
    halvings: Annotated[int, typer.Option(min=0, max=11, help="How coarse it is: 7 is what 10,000 VMs get.")] = 7,
) -> None:
    """Measure costs of a large fleet."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="bench-costs-") as folder:
        path = Path(folder) / "history.sqlite"
        until = round(time.time() * 1000) // HOUR * HOUR
        began = time.monotonic()
        integral = made(path, vms, until - days * DAY, until, halvings)
        console.print(f"{integral.spans:,} spans of {vms:,} VMs were written in {time.monotonic() - began:.0f} s.")
        console.print(_upkeep(path, until))
        table = Table("autoscale cost", "took", "CPU", "memory", "printed")
        for question in QUESTIONS:
            report = _asked(path, days + 1, *question)
            printed = f"{len(report.said) / 1024:,.0f} KiB"
            words = " ".join(question)
            table.add_row(words, f"{report.took:.1f} s", f"{report.cpu:.1f} s", f"{report.mib:.0f} MiB", printed)
        console.print(table)
        console.print(_agreement(_asked(path, days + 1, "--by", "vm", "-o", "json").said, integral))


def _upkeep(path: Path, until: int) -> str:
    store = SqliteStore(path, time.time)
    try:
        began = time.monotonic()
        store.upkeep(until)
        took = time.monotonic() - began
        size, rows = store.size()
    finally:
        store.close()
    return f"Upkeep took {took:.1f} s; {rows:,} rows are left in {size / 2**20:,.0f} MiB."


def _asked(path: Path, days: int, *question: str) -> Asked:
    began = time.monotonic()
    arguments = ["cost", "--file", str(path), "--since", f"{days}d", *question]
    with subprocess.Popen([sys.executable, "-c", _COMMAND, *arguments], stdout=subprocess.PIPE) as process:
        output = process.stdout.read() if process.stdout is not None else b""
        # ``wait4`` tells the resources of this child alone; ``getrusage`` would sum up all of them.
        _, status, usage = os.wait4(process.pid, 0)
        # ``Popen`` would wait once more at the end of the block and find no child.
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise typer.Exit(process.returncode)
    cpu = usage.ru_utime + usage.ru_stime
    return Asked(time.monotonic() - began, cpu, usage.ru_maxrss / _MIB_OF_KIB, output)


def _agreement(said: bytes, integral: Integral) -> str:
    """Difference of the report to the integral over the samples, and of its lines to its total."""
    report = json.loads(said)
    total, lines = report["total"], report["lines"]
    off = max(
        abs(total["reserved_cpu_hours"] / integral.cpu_hours - 1),
        abs(total["reserved_gib_hours"] / integral.gib_hours - 1),
    )
    parts = sum(line["reserved_cost"] for line in lines)
    return (
        f"Hours are {off:.4%} from the integral over the samples; {len(lines):,} lines are together "
        f"{parts:.2f} of {total['reserved_cost']:.2f}."
    )


if __name__ == "__main__":
    typer.run(bench_costs)
