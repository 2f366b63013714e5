"""Checks whether this machine can run a real cluster; what the checks create is removed."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from deploy.local.kubernetes.machine import control_groups
from deploy.local.kubernetes.plan.requirements import PACKAGES, MachineReport
from deploy.local.kubernetes.programs.toolchain import NoGoError, find_go
from deploy.owned_process import run_command
from protocol.units import Bytes, MilliCpu, Resources

# sbin is often not in PATH, and the folders of CNI plugins never are.
_SEARCH_PATH: Final = os.pathsep.join((*os.get_exec_path(), "/usr/sbin", "/sbin", "/usr/lib/cni", "/opt/cni/bin"))
_KMSG: Final = Path("/dev/kmsg")
_INOTIFY: Final = Path("/proc/sys/fs/inotify/max_user_instances")
_NAMESPACES: Final = ("unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc", "--")
_OVERLAY: Final = 'cd "$1" && mkdir a b c d && exec mount -t overlay overlay -o lowerdir=a,upperdir=b,workdir=c d'
_NFTABLES: Final = "table ip t {\nchain c {\ntype nat hook prerouting priority -100;\n}\n}\n"


async def survey(state: Path) -> MachineReport:
    """Report on this machine for a cluster with its files under ``state``. Without root, nothing is created."""
    root = os.geteuid() == 0
    no_namespaces = await _run(*_NAMESPACES, "true") if root else ""
    can_isolate = root and not no_namespaces
    return MachineReport(
        root=root,
        programs=frozenset(program for program in PACKAGES if shutil.which(program, path=_SEARCH_PATH)),
        without_go=_without_go(),
        without_namespaces=f"cannot create namespaces: {no_namespaces}" if no_namespaces else "",
        without_overlay=await _without_overlay(state) if can_isolate else "",
        without_nftables=await _without_nftables() if can_isolate and shutil.which("nft", path=_SEARCH_PATH) else "",
        unified_cgroups=control_groups.is_unified(),
        controllers=control_groups.controllers(),
        kmsg=_KMSG.exists(),
        without_groups=await asyncio.to_thread(control_groups.creation_problem) if root else "",
        inotify_instances=int(_INOTIFY.read_text()) if _INOTIFY.exists() else 0,
    )


def machine_size(meminfo: Path = Path("/proc/meminfo")) -> Resources:
    """This machine's CPUs and memory."""
    meminfo_fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    # /proc/meminfo is in KiB.
    return Resources(MilliCpu.cores(os.cpu_count() or 1), Bytes(int(meminfo_fields["MemTotal"].split()[0]) * 1024))


def can_overcommit_cpus() -> bool:
    """Return True if a node can have more CPUs than this machine, which requires the kernel's list of NUMA nodes."""
    return Path("/sys/devices/system/node/node0/distance").exists()


def _without_go() -> str:
    try:
        find_go()
    except NoGoError as error:
        return str(error)
    return ""


async def _without_overlay(state: Path) -> str:
    existing = next(path for path in (state, *state.parents) if path.is_dir())  # `state` need not exist yet
    with tempfile.TemporaryDirectory(prefix=".overlay-", dir=existing) as folder:
        error = await _run(*_NAMESPACES, "sh", "-c", _OVERLAY, "sh", folder)
    return f"cannot mount overlayfs in {state} ({error}); set AUTOSCALE_HOME to another folder" if error else ""


async def _without_nftables() -> str:
    error = await _run(*_NAMESPACES, "nft", "-f", "-", stdin=_NFTABLES)
    return f"nftables NAT does not work: {error}" if error else ""


async def _run(*command: str, stdin: str = "") -> str:
    """Run a command; return its error, empty on success."""
    try:
        code, _, errors = await run_command(*command, stdin=stdin)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if not code:
        return ""
    # Only up to the first comma: `mount`, for example, continues with guesses.
    return " ".join(errors.split()).partition(", ")[0] or f"{command[0]}: exit code {code}"
