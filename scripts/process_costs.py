"""CPU time and memory of processes, from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from protocol.units import Seconds

MIB: Final = 1024**2


def cpu_of(pid: int) -> Seconds:
    """CPU time of a process so far. Raises ``OSError`` if it has ended."""
    # After the last parenthesis: the program's name may contain spaces and parentheses.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Seconds((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def memory_of(pid: int) -> float:
    """Memory of a process in MiB (PSS: shared pages count in part). Raises ``OSError`` if it has ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / MIB


def load_of_machine() -> float:
    """The machine's 1-minute load average."""
    return round(os.getloadavg()[0], 1)
