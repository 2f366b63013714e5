"""Costs of processes on this machine, as the kernel counts them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from protocol.units import Seconds

MIB: Final = 1024**2


def cpu_of(pid: int) -> Seconds:
    """The CPU time that the process has used so far. Raises ``OSError`` if it has ended."""
    # After the last parenthesis: a program's name may itself contain spaces and parentheses.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Seconds((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def memory_of(pid: int) -> float:
    """The memory of the process in MiB, what it shares counted in part. Raises ``OSError`` if it has ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    # ``Pss`` divides shared pages among those that share them.
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / MIB


def load_of_machine() -> float:
    """The machine's load average of the last minute."""
    return round(os.getloadavg()[0], 1)
