"""The QEMU processes of a local cluster's VMs on this machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from protocol.messages import ObjectName
from scripts.process_costs import MIB, memory_of

_PROC: Final = Path("/proc")


def qemu_memory(cluster: Path, vm: ObjectName, proc: Path = _PROC) -> int | None:
    """Bytes of memory of all QEMU processes of ``vm`` in the cluster with this folder; None if there are none."""
    pids = qemu_pids(cluster, vm, proc)
    return sum(map(_memory, pids)) if pids else None


def qemu_pids(cluster: Path, vm: ObjectName, proc: Path = _PROC) -> list[int]:
    """All QEMU processes of ``vm`` in the cluster with this folder."""
    return [int(line.parent.name) for line in proc.glob("[0-9]*/cmdline") if _is_of(line, cluster, vm)]


def _is_of(line: Path, cluster: Path, vm: ObjectName) -> bool:
    # The process may end meanwhile.
    with suppress(OSError):
        arguments = line.read_bytes().split(b"\0")
        # The disk's path distinguishes VMs of the same name in other clusters on this machine.
        return f"guest={vm.namespace}.{vm.name}".encode() in arguments and f"{cluster}/".encode() in b" ".join(
            arguments
        )
    return False


def _memory(pid: int) -> int:
    with suppress(OSError):
        return round(memory_of(pid) * MIB)
    return 0
