"""The processes of a pod, as this machine knows them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def processes_of(pod_uid: str, program: str) -> list[int]:
    """The processes in that pod whose command line names ``program``."""
    found = []
    for each in Path("/proc").iterdir():
        with suppress(OSError):
            if pod_uid in (each / "cgroup").read_text() and program.encode() in (each / "cmdline").read_bytes():
                found.append(int(each.name))
    return found
